"""
Default settings on raw features, compared with back-propagation after scaling
==============================================================================

Sets that ship with scikit-learn, Friedman's functions and California housing, five-fold
cross-validation for a few seeds: `ContrastiveHebbianRegressor` and `-Classifier` with
nothing set and features as they are, `MLPRegressor` and `MLPClassifier` with nothing
set behind a `StandardScaler`. R2 or accuracy, and processor time of all fits.

    python examples/benchmarks/hebbian_defaults.py [--quick] [--only NAME ...]
"""

import argparse
import csv
import time
import warnings

from _common import output_directory, print_environment

import numpy as np
from sklearn.base import clone, is_classifier
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_friedman1,
    make_friedman2,
    make_friedman3,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from datasets import data_file

from sklearn_mm import ContrastiveHebbianClassifier, ContrastiveHebbianRegressor


def tables():
    """Names, data, and whether targets are classes."""
    for load in (load_iris, load_wine, load_breast_cancer, load_digits):
        yield load.__name__[5:], *load(return_X_y=True), True
    yield "diabetes", *load_diabetes(return_X_y=True, scaled=False), False
    yield "friedman1", *make_friedman1(1000, noise=1.0, random_state=0), False
    yield "friedman2", *make_friedman2(1000, noise=1.0, random_state=0), False
    yield "friedman3", *make_friedman3(1000, noise=0.1, random_state=0), False
    path = data_file("california_housing.csv.gz")
    if path is not None:
        import pandas as pd

        frame = pd.read_csv(path).select_dtypes("number").dropna()
        y = frame.pop("median_house_value").to_numpy(float)
        yield "california", frame.to_numpy(float), y, False


def models(classes):
    """Ours on raw features, theirs on scaled ones."""
    if classes:
        ours, theirs = ContrastiveHebbianClassifier(), MLPClassifier()
    else:
        ours, theirs = ContrastiveHebbianRegressor(), MLPRegressor()
    return {"hebbian": ours, "mlp": make_pipeline(StandardScaler(), theirs)}


def seeded(model, seed):
    model = clone(model)
    last = model[-1] if hasattr(model, "steps") else model
    last.set_params(random_state=seed)
    return model


def compare(X, y, classes, seeds):
    """Mean score and seconds of both, folds taken in turn."""
    totals = {name: [[], 0.0] for name in models(classes)}
    for seed in seeds:
        Fold = StratifiedKFold if classes else KFold
        for train, test in Fold(5, shuffle=True, random_state=seed).split(X, y):
            for name, model in models(classes).items():
                model = seeded(model, seed)
                start = time.process_time()
                model.fit(X[train], y[train])
                totals[name][1] += time.process_time() - start
                totals[name][0].append(model.score(X[test], y[test]))
    assert is_classifier(models(classes)["mlp"]) == classes
    return {name: (np.mean(scores), spent) for name, (scores, spent) in totals.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="iris and diabetes once")
    parser.add_argument("--only", nargs="*", default=[], help="names of data sets")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--output", default="results", help="directory of the CSV")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_environment()
    only = ["iris", "diabetes"] if args.quick else args.only
    seeds = args.seeds[:1] if args.quick else args.seeds
    columns = [
        "data",
        "hebbian",
        "mlp",
        "difference",
        "seconds",
        "mlp_seconds",
        "times",
    ]
    path = output_directory(args.output) / "hebbian_defaults.csv"
    with threadpool_limits(1), path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        print(("{:>14}" * len(columns)).format(*columns))
        for name, X, y, classes in tables():
            if only and name not in only:
                continue
            found = compare(X, y, classes, seeds)
            (ours, spent), (theirs, peer) = found["hebbian"], found["mlp"]
            row = [ours, theirs, ours - theirs, spent, peer, spent / peer]
            row = [name, *(round(float(value), 4) for value in row)]
            writer.writerow(row)
            print(("{:>14}" * len(row)).format(*row), flush=True)


if __name__ == "__main__":
    main()
