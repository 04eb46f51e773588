"""The guide: its snippets run, and it names everything that is public."""

import doctest
import re
from pathlib import Path

import pytest

import sklearn_mm

GUIDE = Path(__file__).resolve().parents[2] / "examples" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))


def snippets(page):
    """Sessions on a page, as one session."""
    return "\n".join(re.findall(r"```pycon\n(.*?)```", page.read_text("utf-8"), re.S))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if snippets(page)], ids=lambda page: page.stem
)
def test_snippets(page):
    session = doctest.DocTestParser().get_doctest(
        snippets(page), {}, page.stem, str(page), 0
    )
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(session, out=report.append)
    assert runner.failures == 0, "".join(report)
    assert runner.tries > 3


def test_reference_names_everything_public():
    names = (GUIDE / "api.rst").read_text("utf-8").split()
    assert set(sklearn_mm.__all__) <= set(names)


def test_every_page_can_be_reached():
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    listed = set(re.findall(r"^(?:.*<)?([\w/]+)>?$", text, re.M))
    assert {page.stem for page in [*PAGES, GUIDE / "api.rst"]} <= listed | {"index"}
