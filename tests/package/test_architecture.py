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


# What each part may import of the package, besides itself. Whoever adds a folder or a
# module at the top adds it here.
VOCABULARIES = {"kernels", "criteria", "baselines", "losses"}
SHARED = {"_rows", "_solver", "_estimator", *VOCABULARIES}
ARROWS = {
    "kernels": set(),
    "metrics": {"kernels"},
    "criteria": {"_solver"},
    "baselines": {"criteria"},
    "solver": {"_solver", "criteria"},
    "losses": set(),
    "_solver": set(),
    "_rows": {"_solver"},
    "_estimator": {"_rows", "_solver", *VOCABULARIES},
    "_robust": SHARED,
    "_hebbian": SHARED,
    "_convergence_display": set(),
}


def part(name):
    """Top-level part of the package that a dotted name belongs to, if any."""
    names = name.split(".")
    return names[1] if names[0] == "sklearn_mm" and len(names) > 1 else None


def part_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows(path):
    own = part_of(path)
    if own == "__init__":  # the public face knows everything
        return
    found = {part(name) for name in imports(path)} - {None, own}
    assert found <= ARROWS[own]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_callbacks_are_known_in_one_place(path):
    if path.name != "_estimator.py":
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
