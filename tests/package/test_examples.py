"""Every example runs, on small data where it takes an option for that."""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
# Gallery scripts are told from modules and tools by their cells.
GALLERY = [
    path.name
    for path in sorted(EXAMPLES.glob("*.py"))
    if "\n# %%\n" in path.read_text(encoding="utf-8")
]
# Figures of the paper, and the CSV and PNG files that they write.
PAPER = {
    "fig2_bundle_iterations.py": ["fig2.csv", "fig2.png"],
    "fig3_final_objectives.py": ["fig3.csv", "fig3.png"],
    "fig4_full_batch.py": ["fig4.csv", "fig4_block.png", "fig4_coordinate.png"],
    "fig5_stochastic.py": ["fig5.csv", "fig5_block.png", "fig5_coordinate.png"],
}


def run(script, *args, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / script), *args],
        capture_output=True,
        text=True,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT), **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# What a script must have found; the others must have printed something.
FINDINGS = {
    "quickstart.py": r"outliers found     200 of 200",
    "which_criterion.py": r"fixed +fails on +(10|[6-9])(.*\n){2}regemm +\D+[01] of",
    "grid_search.py": r"nonsense found: 8[5-8] of 88",
    "overview.py": r"slope 1\.[45]\d ",
    "robust_boosting.py": r"RobustRegressor +RMSE to the truth 0\.0[3-6]",
    "robust_model_selection.py": r"R² .* 0\.[67]\d+\nrobust_scorer .* 0\.1[0-4]",
}


@pytest.mark.parametrize("script", GALLERY)
def test_gallery(script):
    assert re.search(FINDINGS.get(script, "."), run(script))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_scale_out(tmp_path):
    parts = ("--parts", "memory", "cores", "rows")
    output = run("scale_out.py", "--quick", *parts, "--output", str(tmp_path))
    small, large = map(float, re.findall(r"batches.*peak ([\d.]+) MB", output))
    assert large < 2.0 * small  # of 16 times the rows
    assert "HalfQuadraticRobustRegressor, 100000 x 50: one thread" in output
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "scale_out.csv",
        "scale_out.png",
    ]


def test_readme_ends_in_a_plot(pyplot, monkeypatch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 11
    monkeypatch.setattr(pyplot, "show", lambda: None)
    names = {}
    exec(code, names)
    assert names["model"].inlier_mask_.sum() == 300
    assert len(pyplot.gcf().axes) == 2


def test_readme_names_files_that_exist():
    for page in (ROOT / "README.md", *EXAMPLES.glob("*/README.md")):
        text = page.read_text(encoding="utf-8")
        scripts = re.findall(r"examples/[\w/]+\.(?:py|png|ipynb)", text)
        links = re.findall(r"\]\(([^)#:]+)\)", text)
        assert scripts
        for name in scripts:
            assert (ROOT / name).exists(), name
        for name in links:
            assert (page.parent / name).exists(), name


def test_gallery_is_complete():
    wanted = "quickstart plot_classic_data which_criterion grid_search hebbian_digits"
    wanted += " custom_kernel_and_criterion online_learning overview"
    wanted += " robust_boosting robust_model_selection"
    assert {f"{name}.py" for name in wanted.split()} <= set(GALLERY)


def test_gallery_without_data(tmp_path):
    assert run("plot_classic_data.py", SKLEARN_MM_DATA=str(tmp_path))


@pytest.mark.parametrize(
    "script", ["robust_accuracy.py", "robust_speed.py", "robust_clean.py"]
)
def test_robust_benchmarks(script, tmp_path):
    name = f"benchmarks/{script}"
    output = run(name, "--quick", "--output", str(tmp_path))
    assert any(word in output for word in ("ridge", "oracle", "efficiency"))
    assert list(tmp_path.glob("*.csv"))
    if script == "robust_accuracy.py":
        assert list(tmp_path.glob("*.png"))
        # A second run finds everything done.
        again = run(name, "--quick", "--output", str(tmp_path))
        assert "failed" not in again


@pytest.mark.parametrize(
    ("name", "word"),
    [("robust_inference", "coverage"), ("sparse_regression", "oracle")],
)
def test_benchmarks_of_inference(name, word, tmp_path):
    output = run(f"benchmarks/{name}.py", "--quick", "--output", str(tmp_path))
    assert word in output
    assert len((tmp_path / f"{name}.csv").read_text().splitlines()) >= 3


@pytest.mark.parametrize("name", ["robust_anything", "scorer_regret"])
def test_benchmarks_of_other_models(name, tmp_path):
    output = run(f"benchmarks/{name}.py", "--quick", "--output", str(tmp_path))
    assert "robust" in output
    assert len((tmp_path / f"{name}.csv").read_text().splitlines()) >= 4


@pytest.mark.parametrize("script", PAPER)
def test_figures_of_the_paper(script, tmp_path):
    run(f"paper/{script}", "--quick", "--output", str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == PAPER[script]
    with (tmp_path / PAPER[script][0]).open(newline="") as file:
        assert len(list(csv.DictReader(file))) >= 4


def test_figure_on_a_page_is_small():
    made = EXAMPLES / "guide" / "gallery"  # when the site is built
    pictures = [p for p in EXAMPLES.rglob("*.png") if made not in p.parents]
    assert pictures
    assert all(path.stat().st_size < 100_000 for path in pictures)


def outputs(notebook):
    """Kinds of output of each code cell."""
    return [
        sorted({kind for out in cell["outputs"] for kind in out.get("data", ["text"])})
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def test_tour(tmp_path):
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    # In a process of its own: an event loop and the kernel's threads stay out of here.
    code = (
        "import sys, nbformat; from nbclient import NotebookClient;"
        "notebook = nbformat.read(sys.argv[1], 4);"
        "NotebookClient(notebook, timeout=200, kernel_name='python3').execute();"
        "nbformat.write(notebook, sys.argv[2])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("MPLBACKEND", None)  # pictures go into the notebook
    tour, executed = EXAMPLES / "tour.ipynb", tmp_path / "tour.ipynb"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tour), str(executed)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    stored = json.loads(tour.read_text(encoding="utf-8"))
    assert outputs(json.loads(executed.read_text(encoding="utf-8"))) == outputs(stored)
    assert all(outputs(stored))
    assert sum("image/png" in kinds for kinds in outputs(stored)) == 4


@pytest.mark.parametrize(
    ("script", "args"),
    [
        ("benchmarks/hebbian_accuracy.py", ["--only", "mnist"]),
        ("benchmarks/hebbian_speed.py", []),
    ],
)
def test_hebbian_scripts_without_data(script, args, tmp_path):
    options = ["--quick", *args, "--output", str(tmp_path)]
    run(script, *options, SKLEARN_MM_DATA=str(tmp_path))
    (table,) = tmp_path.glob("*.csv")
    assert len(table.read_text().splitlines()) >= 5
