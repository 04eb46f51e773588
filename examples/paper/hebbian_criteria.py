"""
Fixed numbers of passes against the criteria
============================================

The paper's findings on contrastive Hebbian learning, in numbers: on a subset of MNIST
(scikit-learn's digits without it), networks are trained with a few fixed passes of
inference, with many, and with passes as ReGeMM and SuDeMM ask for them. What counts is
the objective that the weights reach, with inference carried to the end afterwards.

Full batches are in the paper's setting: its energy (a feedback of 1), no penalty,
inference unit by unit with at most 40 passes, and plain gradient steps of one length
for all. That length is well below 1/L: what a step gains, and with it the gap that
ReGeMM allows, is then small beside the ||g||^2 / (2L) that SuDeMM compares the gap
with. Mini-batches are trained with Adam and a feedback of 0.3, at which passes matter.

    python examples/paper/hebbian_criteria.py [--quick]
"""

import argparse
import csv
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from _common import print_environment

import numpy as np
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning

from datasets import data_file

from sklearn_mm import ContrastiveHebbianClassifier

COLUMNS = ["mode", "criterion", "lower", "upper", "accuracy", "first", "last", "total"]


def data(n_rows):
    path = data_file("mnist.npz")
    if path is None:
        X, y = load_digits(return_X_y=True)
        return X[:n_rows].astype("f4") / 16, y[:n_rows], (32,) * 4
    with np.load(path) as arrays:
        X, y = arrays["X_train"][:n_rows], arrays["y_train"][:n_rows]
    return X.astype("f4") / 255, y, (64,) * 4


def settings(full):
    for n_passes in (2, 3, 4, 32):
        yield f"fixed {n_passes}", {"criterion": "fixed", "n_passes": n_passes}
    yield "sudemm", {"criterion": "sudemm"}
    if full:
        yield "regemm", {"criterion": "regemm"}
        yield "alternating 1", {"criterion": "alternating", "n_passes": 1}


PAPER = {
    "feedback": 1.0,
    "inference": "coordinate",
    "solver": "sgd",
    "momentum": 0.0,
    "learning_rate_init": 3e-3,
    "batch_size": None,
    "max_passes": 40,
}
MINI_BATCH = {"feedback": 0.3, "batch_size": 100}


def run(X, y, hidden, full, params, epochs):
    model = ContrastiveHebbianClassifier(
        hidden,
        alpha=0.0,
        max_iter=epochs,
        n_iter_no_change=epochs,
        tol=0.0,
        random_state=0,
        **(PAPER if full else MINI_BATCH),
        **params,
    ).fit(X, y)
    model.set_params(max_passes=2000, inference_tol=1e-3, inference="block")
    lower, upper = model.bounds(X, y)
    passes = model.history_.passes
    tenth = max(1, len(passes) // 10)
    first, last = passes[:tenth].mean(), passes[-tenth:].mean()
    total = model.history_.work.sum()
    return [lower, upper, model.score(X, y), first, last, total]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="few rows and epochs")
    parser.add_argument("--output", default="hebbian_criteria.csv")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_environment()
    X, y, hidden = data(100 if args.quick else 500)
    with open(args.output, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        print(("{:>15}" * len(COLUMNS)).format(*COLUMNS))
        for full in (True, False):
            mode = "full batch" if full else "mini-batch"
            epochs = (10 if full else 4) if args.quick else (300 if full else 40)
            for name, params in settings(full):
                row = [mode, name, *run(X, y, hidden, full, params, epochs)]
                row = [float(f"{v:.4g}") if isinstance(v, float) else v for v in row]
                writer.writerow(row)
                print(("{:>15}" * len(row)).format(*row), flush=True)


if __name__ == "__main__":
    main()
