"""
Time of an epoch beside MLPRegressor, and where it goes
=======================================================

Epochs of SuDeMM training and of `MLPRegressor` alternate in one process on the same
network (784-64-64-64-64-10), mini-batches of 100 and one BLAS thread; the median ratio
of their processor times is printed, then the share of every part of an update.

Images are read from the folder named by SKLEARN_MM_DATA (default: ``../shared/data``
from the project); random pixels stand in without it.

Measured with ``--rows 15000 --epochs 5`` (6 passes a batch): an epoch takes 3.7 times
that of `MLPRegressor` on MNIST in float32, 2.6 times in float64, and 3.5 times on
Fashion-MNIST in float32. (With four hidden layers and the default feedback, passes run
in float64 in either case.) Of an update, MNIST in float32:

========================================  =====
sweeps over the layers, 6 free, 2 clamped   36 %
activations' start, implied activations,
penalty, norms, record                      21 %
bounds                                      16 %
gradient                                    12 %
Adam                                         5 %
input times W_0                              4 %
taking rows                                  4 %
norms of matrices, unpacking                 3 %
========================================  =====

    python examples/benchmarks/hebbian_speed.py [--quick]
"""

import argparse
import csv
import time
import warnings

from _common import print_environment

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPRegressor
from threadpoolctl import threadpool_limits

from datasets import load_images

from sklearn_mm import ContrastiveHebbianRegressor
from sklearn_mm._solver import gradient_steps
from sklearn_mm._hebbian import energy, problem

HIDDEN = (64,) * 4
CASES = [("mnist", np.float32), ("mnist", np.float64), ("fashion_mnist", np.float32)]
PARTS = [
    (problem.ContrastiveProblem, "start", "take rows"),
    (problem, "build_network", "unpack parameters"),
    (problem, "prepare_sweeps", "norms of matrices"),
    (problem.ContrastiveProblem, "drive", "input times W_0"),
    (energy.Phase, "sweep", "sweeps"),
    (problem.ContrastiveProblem, "settle", "bounds"),
    (problem, "gradient", "gradient"),
    (gradient_steps.Adam, "_direction", "Adam"),
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


def epoch(model, X, Y):
    # Time of the processor: with one thread, that of the clock on an idle machine.
    start = time.process_time()
    model.partial_fit(X, Y)
    return time.process_time() - start


def measure(name, dtype, n_rows, n_epochs, write):
    X, Y = pixels(name, n_rows, dtype)
    common = {"batch_size": 100, "random_state": 0}
    hebbian = ContrastiveHebbianRegressor(HIDDEN, **common)
    mlp = MLPRegressor(hidden_layer_sizes=HIDDEN, **common)
    times = []
    for i in range(n_epochs):
        times.append((epoch(hebbian, X, Y), epoch(mlp, X, Y)))
        passes = float(np.mean(hebbian.history_.passes))
        write([name, np.dtype(dtype).name, i, *times[-1], passes])
    ratios = [ours / theirs for ours, theirs in times]
    print(f"{name}, {np.dtype(dtype).name}: median ratio {np.median(ratios):.2f}")
    with Stopwatch() as watch:
        total = epoch(hebbian, X, Y)
    watch.seconds["the rest"] = total - sum(watch.seconds.values())
    for label, seconds in watch.seconds.items():
        milliseconds = 1e3 * seconds / (n_rows / 100)
        print(f"  {label:>20} {seconds / total:6.1%} {milliseconds:8.3f} ms a batch")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="few rows and epochs")
    parser.add_argument("--rows", type=int, default=60000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", default="hebbian_speed.csv")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    print_environment()
    n_rows, n_epochs = (5000, 2) if args.quick else (args.rows, args.epochs)
    with threadpool_limits(1), open(args.output, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["data", "dtype", "epoch", "hebbian_seconds", "mlp_seconds", "passes"]
        )
        for name, dtype in CASES:
            measure(name, dtype, n_rows, n_epochs, writer.writerow)


if __name__ == "__main__":
    main()
