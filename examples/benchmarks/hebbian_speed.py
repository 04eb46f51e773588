"""
Time of an epoch compared with MLPRegressor, and where it goes
==============================================================

Fits of `ContrastiveHebbianRegressor` (SuDeMM, tested in every update) and of
`MLPRegressor` alternate in one process on the same network, mini-batches of 100 and one
BLAS thread. Two median ratios of their processor times are printed: that of an epoch,
from the difference between fits of one epoch and of some more, and that of the longer
fits as a whole, which include what is done once (validation, and here the
standardisation of the features). Then the share of every part of a fit of one epoch.

Images are read from the folder named by SKLEARN_MM_DATA (default: ``../shared/data``
from the project); random pixels stand in without it.

    python examples/benchmarks/hebbian_speed.py [--quick]
"""

import argparse
import csv
import time
import warnings

from _common import output_directory, print_environment

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from threadpoolctl import threadpool_limits

from datasets import load_images

from sklearn_mm import ContrastiveHebbianRegressor
from sklearn_mm._hebbian.difference import DifferencePhases
from sklearn_mm._hebbian.problem import ContrastiveProblem
from sklearn_mm._solver.gradient_steps import Adam
from sklearn_mm._solver.history import History

CASES = [
    ("mnist", (64,) * 4, np.float32),
    ("fashion_mnist", (64,) * 4, np.float32),
    ("cifar10_grey", (128,) * 3, np.float32),
    ("mnist", (64,) * 2, np.float32),
    ("mnist", (64,) * 4, np.float64),
]
PARTS = [
    (ContrastiveProblem, "gather", "take rows, convert"),
    (ContrastiveProblem, "drive", "input times W_0"),
    (DifferencePhases, "free", "free phase"),
    (DifferencePhases, "clamped", "clamped phase"),
    (DifferencePhases, "measure", "bounds"),
    (DifferencePhases, "gradient", "gradient"),
    (ContrastiveProblem, "at", "unpack parameters"),
    (Adam, "_direction", "Adam"),
    (History, "append", "record"),
]


def pixels(name, n_rows, dtype):
    data = load_images(name, n_rows)
    if data is not None:
        X, y, _ = data
    else:
        rng = np.random.default_rng(0)
        X, y = rng.random((n_rows, 784)), rng.integers(0, 10, n_rows)
    return X.astype(dtype), np.eye(10, dtype=dtype)[y]


class Stopwatch:
    """Adds up the time spent in functions, by replacing them with timed ones."""

    def __init__(self):
        self.seconds = {}
        self._originals = []

    def __enter__(self):
        for owner, name, label in PARTS:
            self._originals.append((owner, name, getattr(owner, name)))
            setattr(owner, name, self._timed(getattr(owner, name), label))
        return self

    def __exit__(self, *_):
        for owner, name, function in self._originals:
            setattr(owner, name, function)

    def _timed(self, function, label):
        self.seconds[label] = 0.0

        def wrapper(*args, **kwargs):
            start = time.process_time()
            result = function(*args, **kwargs)
            self.seconds[label] += time.process_time() - start
            return result

        return wrapper


def timed(model, X, Y):
    # Time of the processor: with one thread, that of the clock on an idle machine.
    start = time.process_time()
    model.fit(X, Y)
    return time.process_time() - start


def measure(name, hidden, dtype, n_rows, n_epochs, n_seeds, write):
    X, Y = pixels(name, n_rows, dtype)
    ratios, whole = [], []
    for seed in range(n_seeds):
        common = {
            "hidden_layer_sizes": hidden,
            "batch_size": 100,
            "n_iter_no_change": n_epochs + 1,
            "random_state": seed,
        }
        hebbian = ContrastiveHebbianRegressor(**common)
        models = hebbian, MLPRegressor(**common)
        once = [timed(model.set_params(max_iter=1), X, Y) for model in models]
        longer = {"max_iter": n_epochs + 1}
        more = [timed(model.set_params(**longer), X, Y) for model in models]
        times = [(b - a) / n_epochs for a, b in zip(once, more, strict=True)]
        ratios.append(times[0] / times[1])
        whole.append(more[0] / more[1])
        history = hebbian.history_
        counts = float(history.passes.mean()), float(history.satisfied.mean())
        layers = "x".join(str(n) for n in hidden)
        write([name, layers, np.dtype(dtype).name, seed, *times, *counts])
    case = f"{name}, hidden layers {hidden}, {np.dtype(dtype).name}"
    print(f"{case}: median ratio {np.median(ratios):.2f} for an epoch, ", end="")
    print(f"{np.median(whole):.2f} for fits of {n_epochs + 1} epochs, ", end="")
    print(f"{counts[0]:.2f} passes, criterion met in {counts[1]:.1%} of the updates")
    hebbian.set_params(max_iter=1)
    with Stopwatch() as watch:
        total = timed(hebbian, X, Y)
    watch.seconds["the rest"] = total - sum(watch.seconds.values())
    for label, seconds in watch.seconds.items():
        milliseconds = 1e3 * seconds / (n_rows / 100)
        print(f"  {label:>20} {seconds / total:6.1%} {milliseconds:8.3f} ms per batch")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="few rows and epochs")
    parser.add_argument("--rows", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", default="results", help="directory of the CSV")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_environment()
    size = (3000, 1, 1) if args.quick else (args.rows, args.epochs, args.seeds)
    path = output_directory(args.output) / "hebbian_speed.csv"
    with threadpool_limits(1), path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            [
                "data",
                "hidden",
                "dtype",
                "seed",
                "seconds",
                "mlp_seconds",
                "passes",
                "satisfied",
            ]
        )
        for name, hidden, dtype in CASES:
            measure(name, hidden, dtype, *size, writer.writerow)


if __name__ == "__main__":
    main()
