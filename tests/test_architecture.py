"""Dependencies point one way, and a plain import stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sklearn_mm

PACKAGE = Path(sklearn_mm.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))


def imports(path):
    """Absolute names that a module imports; relative imports are not allowed."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            found.add(node.module)
    return found


def layer(path):
    return path.relative_to(PACKAGE).parts[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows(path):
    own = {name for name in imports(path) if name.split(".")[0] == "sklearn_mm"}
    if layer(path) == "_core":
        allowed = ("sklearn_mm._core",)
    elif layer(path) == "_problems":
        allowed = ("sklearn_mm._core", "sklearn_mm._problems", "sklearn_mm.kernels")
    elif path.name == "kernels.py":
        allowed = ()
    elif path.name == "criteria.py":
        allowed = ("sklearn_mm._core._protocols",)
    else:
        return
    upward = [name for name in own if not name.startswith(allowed or ("none",))]
    assert not upward


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_callbacks_are_known_in_one_place(path):
    if path.name != "_base.py":
        assert not any(name.startswith("sklearn.callback") for name in imports(path))


def test_plain_import_brings_run_time_dependencies_only():
    code = (
        "import sys, sklearn_mm; "
        "heavy = {'matplotlib', 'polars', 'statsmodels', 'hypothesis', 'pytest'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == "[]"


def test_public_names_exist():
    for name in sklearn_mm.__all__:
        assert hasattr(sklearn_mm, name)
