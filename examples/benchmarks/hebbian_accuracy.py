"""
Accuracy of contrastive Hebbian learning compared with back-propagation
=======================================================================

MNIST, Fashion-MNIST and greyscale CIFAR-10 (pixels divided by 255): the classifier with
default settings against `MLPClassifier`, and `MLPRegressor` on class indicators, with
the same layers, mini-batches and number of epochs. Test accuracy, expected calibration
error of the probabilities (15 bins), passes, and the share of updates that met the
criterion.

Data are read from the folder named by SKLEARN_MM_DATA (default: ``../shared/data`` from
the project). Without it, digits from scikit-learn stand in. Tables of numbers:
`hebbian_defaults.py`.

    python examples/benchmarks/hebbian_accuracy.py [--quick] [--only NAME ...]
        [--epochs 10] [--seeds 3]
"""

import argparse
import csv
import time
import warnings

from _common import output_directory, print_environment

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier, MLPRegressor
from threadpoolctl import threadpool_limits

from datasets import load_images, load_small_images

from sklearn_mm import ContrastiveHebbianClassifier

IMAGES = ("mnist", "fashion_mnist", "cifar10_grey")
COLUMNS = ["data", "seed", "model", "test", "calibration", "seconds", "passes", "met"]


def images(name):
    """Pixels in [0, 1] and labels, training and test part, and hidden layers."""
    train, test = (load_images(name, part=part) for part in ("train", "test"))
    if train is None:
        X, y, _ = load_small_images()
        X, X_test, y, y_test = train_test_split(X, y, random_state=0)
        return X.astype("f4"), y, X_test.astype("f4"), y_test, (32, 32)
    return train[0].astype("f4"), train[1], test[0].astype("f4"), *test[1:]


def calibration_error(probability, y, n_bins=15):
    """Mean difference of confidence and accuracy, over bins of confidence."""
    confidence, right = probability.max(axis=1), probability.argmax(axis=1) == y
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    error = sum(
        abs(np.sum(confidence[bins == b]) - np.sum(right[bins == b]))
        for b in range(n_bins)
    )
    return float(error / len(y))


def compare(name, epochs, n_rows, seed):
    X, y, X_test, y_test, hidden = images(name)
    X, y = X[:n_rows], y[:n_rows]
    common = {
        "hidden_layer_sizes": hidden,
        "batch_size": 100,
        "max_iter": epochs,
        "n_iter_no_change": epochs,
        "random_state": seed,
    }
    indicators = np.eye(y.max() + 1, dtype="f4")[y]
    for label, cls, target in (
        ("hebbian", ContrastiveHebbianClassifier, y),
        ("mlp", MLPClassifier, y),
        ("mlp squared", MLPRegressor, indicators),
    ):
        start = time.process_time()
        model = cls(**common).fit(X, target)
        seconds = time.process_time() - start
        row = [name, seed, label]
        if label == "mlp squared":
            row += [np.mean(model.predict(X_test).argmax(axis=1) == y_test), ""]
        else:
            probability = model.predict_proba(X_test)
            row += [model.score(X_test, y_test), calibration_error(probability, y_test)]
        row += [seconds]
        if label == "hebbian":
            history = model.history_
            row += [history.passes.mean(), history.satisfied.mean()]
        yield [*row, *[""] * (len(COLUMNS) - len(row))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="few rows and epochs")
    parser.add_argument("--only", nargs="*", default=[], help="names of data sets")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", default="results", help="directory of the CSV")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_environment()
    epochs, n_rows = (2, 5000) if args.quick else (args.epochs, None)
    n_seeds = 2 if args.quick else args.seeds
    path = output_directory(args.output) / "hebbian_accuracy.csv"
    with threadpool_limits(1), path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        print(("{:>14}" * len(COLUMNS)).format(*COLUMNS))
        for seed in range(n_seeds):
            for name in IMAGES:
                if args.only and name not in args.only:
                    continue
                for row in compare(name, epochs, n_rows, seed):
                    row = [
                        round(float(v), 4) if isinstance(v, float) else v for v in row
                    ]
                    writer.writerow(row)
                    file.flush()
                    print(("{:>14}" * len(row)).format(*row), flush=True)


if __name__ == "__main__":
    main()
