"""What the scripts of the paper's figures share: command line, files, networks."""

from __future__ import annotations

import argparse
import copy
import csv
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from _common import output_directory, print_environment

import numpy as np
from joblib import Memory
from PIL import Image

import bal
from datasets import data_file

from sklearn_mm import ContrastiveHebbianClassifier

# Methods of Figs. 2 and 3, by their names for `robust_least_squares`.
METHODS = {
    "fixed": "IRLS",
    "joint": "joint HQ",
    "graduated": "graduated",
    "regemm": "ReGeMM",
}
SCENES = {
    "Ladybug-49": "bal/problem-49-7776-pre.txt.bz2",
    "Trafalgar-21": "bal/problem-21-11315-pre.txt.bz2",
    "Dubrovnik-16": "bal/problem-16-22106-pre.txt.bz2",
}
# A last bound beyond this many times the first is called divergence.
DIVERGED = 10.0


def arguments(doc, argv=None, **extra):
    """Command line of a figure; further options as name=(type, default, help)."""
    parser = argparse.ArgumentParser(description=doc.strip().split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small data, seconds")
    parser.add_argument("--output", default=".", help="folder for CSV and PNG")
    parser.add_argument("--cache", help="folder where fits are kept, to go on later")
    for name, (kind, default, text) in extra.items():
        many = {"nargs": "+"} if isinstance(default, list) else {}
        parser.add_argument(f"--{name}", type=kind, default=default, help=text, **many)
    args = parser.parse_args(argv)
    args.output = output_directory(args.output)
    print_environment()
    return args


def write_csv(path, rows):
    """A table of dicts with equal keys."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def add_row(rows, row, path):
    """Append a row to a table, print it, and write the table so far."""
    if not rows:
        print("".join(f"{key:>14}" for key in row))
    rows.append(row)
    print_row(row)
    write_csv(path, rows)


def print_row(row):
    """A line with aligned entries."""
    texts = (f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values())
    print("".join(f"{text:>14}" for text in texts), flush=True)


def save(figure, path):
    """Write the picture, with few colours: small enough for a page."""
    figure.savefig(path, dpi=75)
    with Image.open(path) as image:
        # Maximum coverage keeps the colours of single points.
        few = image.convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE)
        few.save(path, optimize=True)
    print(f"written: {path}")


def legend_beside(display):
    """Move the display's legend out of the axes, once for the figure."""
    legend = display.ax_.get_legend()
    if not display.figure_.legends:
        display.figure_.legend(
            handles=legend.legend_handles, loc="outside right upper", fontsize=9
        )
    legend.remove()


# -- Bundle adjustment ---------------------------------------------------------------


def scenes(quick):
    """BAL scenes at hand by name; made-up ones without them, and if quick."""
    found = {name: data_file(file) for name, file in SCENES.items()}
    if quick or not any(found.values()):
        return {
            f"made up {seed}": bal.synthetic_scene(6, 120, random_state=seed)
            for seed in range(2)
        }
    return {name: bal.read_bal(path) for name, path in found.items() if path}


def adjust(problem, criterion, iterations):
    """Result of a number of iterations at tau = 1 px, and the start's model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # observations behind cameras are dropped
        return bal.Reprojection(bal.drop_behind(problem)).solve(
            eta=0.5,  # the paper's constant
            tau=1.0,
            criterion=criterion,
            max_nfev=iterations + 1,
            ftol=0.0,
            xtol=0.0,
            gtol=None,
        )


# -- Contrastive Hebbian learning ----------------------------------------------------


def trainer(args):
    """The function `train`, with fits kept in a folder if one was given."""
    return Memory(args.cache, verbose=0).cache(train)


def train(X, y, hidden, epochs, **params):
    """A network with the paper's energy (feedback 1, no penalty) and plain steps."""
    model = ContrastiveHebbianClassifier(
        hidden,
        loss="squared_error",
        standardize=False,
        average=False,
        feedback=1.0,
        alpha=0.0,
        solver="sgd",
        momentum=0.0,
        max_iter=epochs,
        n_iter_no_change=epochs,
        tol=0.0,
        random_state=0,
        **params,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # divergence is among the findings
        return model.fit(X, y)


def has_diverged(history):
    """Whether bounds went far above the first one, and stayed there or left off."""
    return bool(history.upper_bound[-1] > DIVERGED * history.upper_bound[0])


def summary(model, X, y):
    """The objective that the weights reach, by inference to the end, and passes."""
    history = model.history_
    tenth = max(1, len(history.passes) // 10)
    exact = copy.copy(model).set_params(
        inference="block", max_passes=2000, inference_tol=1e-3
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lower, upper = exact.bounds(X, y)
        accuracy = exact.score(X, y)
    return {
        "updates": len(history.passes),
        "diverged": has_diverged(history),
        "J lower": lower,
        "J upper": upper,
        "accuracy": accuracy,
        "first passes": float(np.mean(history.passes[:tenth])),
        "last passes": float(np.mean(history.passes[-tenth:])),
        "all passes": float(np.sum(history.work)),
    }
