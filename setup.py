"""The project's page on PyPI; all other metadata are in pyproject.toml.

README.md shows a picture from its own folder, which PyPI does not have. Where the
address of the documentation site is known, the picture is taken from there; otherwise
it is left out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent


def long_description():
    """README.md without links into its folder."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    with (ROOT / "pyproject.toml").open("rb") as file:
        urls = tomllib.load(file)["project"].get("urls", {})
    if "Documentation" in urls:
        images = urls["Documentation"].rstrip("/") + "/_images/"
        return text.replace("(examples/images/", f"({images}")
    picture = r"<!-- picture -->.*?<!-- end of picture -->\n*"
    return re.sub(picture, "", text, flags=re.DOTALL)


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
