"""
Accuracy of contrastive Hebbian learning beside back-propagation
================================================================

Image data (MNIST, Fashion-MNIST, greyscale CIFAR-10): the classifier against
`MLPRegressor` on class indicators, with the same layers, mini-batches and number of
epochs. Tables (diabetes, California housing, Friedman's functions): the regressor
against `MLPRegressor`, both with their default settings, after a `StandardScaler`.

Data is read from the folder named by SKLEARN_MM_DATA (default: ``../shared/data`` from
the project). Without it, digits and diabetes from scikit-learn stand in.

    python examples/benchmarks/hebbian_accuracy.py [--quick] [--only NAME ...]
"""

import argparse
import csv
import time
import warnings

from _common import print_environment

import numpy as np
from sklearn.datasets import (
    load_diabetes,
    make_friedman1,
    make_friedman2,
    make_friedman3,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from datasets import data_file, load_images, load_small_images

from sklearn_mm import ContrastiveHebbianClassifier, ContrastiveHebbianRegressor

IMAGES = ("mnist", "fashion_mnist", "cifar10_grey")
COLUMNS = ["data", "seed", "model", "train", "test", "epochs", "seconds", "passes"]


def images(name):
    """Pixels in [0, 1] and labels, training and test part, and hidden layers."""
    train, test = (load_images(name, part=part) for part in ("train", "test"))
    if train is None:
        X, y, _ = load_small_images()
        X, X_test, y, y_test = train_test_split(X, y, random_state=0)
        return X.astype("f4"), y, X_test.astype("f4"), y_test, (32, 32)
    return train[0].astype("f4"), train[1], test[0].astype("f4"), *test[1:]


def tables():
    """Regression problems."""
    yield "diabetes", *load_diabetes(return_X_y=True)
    yield "friedman1", *make_friedman1(1000, noise=1.0, random_state=0)
    yield "friedman2", *make_friedman2(1000, noise=1.0, random_state=0)
    yield "friedman3", *make_friedman3(1000, noise=0.1, random_state=0)
    path = data_file("california_housing.csv.gz")
    if path is not None:
        import pandas as pd

        frame = pd.read_csv(path).select_dtypes("number").dropna()
        y = frame.pop("median_house_value").to_numpy(float)
        yield "california", frame.to_numpy(float), y


def timed(function, *args):
    start = time.perf_counter()
    result = function(*args)
    return result, time.perf_counter() - start


def compare_images(name, epochs, n_rows, seed):
    X, y, X_test, y_test, hidden = images(name)
    X, y = X[:n_rows], y[:n_rows]
    indicators = np.eye(y.max() + 1, dtype="f4")[y]
    common = {"batch_size": 100, "max_iter": epochs, "random_state": seed}
    model = ContrastiveHebbianClassifier(hidden, n_iter_no_change=epochs, **common)
    model, seconds = timed(model.fit, X, y)
    passes = float(np.mean(model.history_.passes))
    scores = model.score(X[:10000], y[:10000]), model.score(X_test, y_test)
    yield [name, seed, "hebbian", *scores, model.n_iter_, seconds, passes]
    model = MLPRegressor(hidden_layer_sizes=hidden, n_iter_no_change=epochs, **common)
    model, seconds = timed(model.fit, X, indicators)
    scores = [
        np.mean(model.predict(A).argmax(axis=1) == b)
        for A, b in ((X[:10000], y[:10000]), (X_test, y_test))
    ]
    yield [name, seed, "mlp", *scores, model.n_iter_, seconds, ""]


def compare_tables(only, n_seeds):
    for name, X, y in tables():
        if only and name not in only:
            continue
        for seed in range(n_seeds):
            A, B, a, b = train_test_split(X, y, random_state=seed)
            for label, cls in (
                ("hebbian", ContrastiveHebbianRegressor),
                ("mlp", MLPRegressor),
            ):
                model = make_pipeline(StandardScaler(), cls(random_state=seed))
                model, seconds = timed(model.fit, A, a)
                scores = model.score(A, a), model.score(B, b)
                yield [name, seed, label, *scores, model[-1].n_iter_, seconds, ""]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="few rows and epochs")
    parser.add_argument("--only", nargs="*", default=[], help="names of data sets")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--output", default="hebbian_accuracy.csv")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_environment()
    epochs, n_rows = (2, 5000) if args.quick else (args.epochs, None)
    with open(args.output, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        print(("{:>14}" * len(COLUMNS)).format(*COLUMNS))

        def write(row):
            row = [round(v, 4) if isinstance(v, float) else v for v in row]
            writer.writerow(row)
            file.flush()
            print(("{:>14}" * len(row)).format(*row), flush=True)

        for name in IMAGES:
            for seed in range(args.seeds):
                if not args.only or name in args.only:
                    for row in compare_images(name, epochs, n_rows, seed):
                        write(row)
        for row in compare_tables(args.only, 1 if args.quick else 4):
            write(row)


if __name__ == "__main__":
    main()
