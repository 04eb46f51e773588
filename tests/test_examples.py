"""Every example runs, on small data where it takes an option for that."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
GALLERY = ["quickstart.py", *(p.name for p in sorted(EXAMPLES.glob("plot_*.py")))]


def run(script, *args, **environment):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *args],
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT), **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("script", GALLERY)
def test_gallery(script):
    assert run(script)


def test_gallery_without_data(tmp_path):
    assert run("plot_classic_data.py", SKLEARN_MM_DATA=str(tmp_path))


def test_quickstart_finds_the_outliers():
    output = run("quickstart.py")
    assert "outliers found     200 of 200" in output


@pytest.mark.parametrize("script", ["robust_accuracy.py", "robust_speed.py"])
def test_robust_benchmarks(script, tmp_path):
    name = f"benchmarks/{script}"
    output = run(name, "--quick", "--output", str(tmp_path))
    assert "ridge" in output or "oracle" in output
    assert list(tmp_path.glob("*.csv"))
    if script == "robust_accuracy.py":
        assert list(tmp_path.glob("*.png"))
        # A second run finds everything done.
        again = run(name, "--quick", "--output", str(tmp_path))
        assert "failed" not in again


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("benchmarks/hebbian_accuracy.py", ["--only", "mnist", "diabetes"]),
        ("benchmarks/hebbian_speed.py", []),
        ("paper/hebbian_criteria.py", []),
    ],
)
def test_hebbian_scripts_without_data(script, args, tmp_path):
    table = tmp_path / "table.csv"
    options = ["--quick", *args, "--output", str(table)]
    run(script, *options, SKLEARN_MM_DATA=str(tmp_path))
    assert len(table.read_text().splitlines()) >= 5
