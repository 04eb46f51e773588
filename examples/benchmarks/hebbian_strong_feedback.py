"""
Time of an update with strong feedback: modulus iteration and unit by unit
==========================================================================

SuDeMM updates with the paper's energy (feedback 1, squared error, 784-64(x4)-10) on
MNIST: full batches of 500 digits, and mini-batches of ten. `inference="block"` (the
modulus iteration, with this feedback) and `inference="coordinate"` (unit by unit, as in
the paper) take turns in one process, one BLAS thread; processor time per update,
passes, and the ratio.

    python examples/benchmarks/hebbian_strong_feedback.py [--quick] [--seeds 3]
"""

import argparse
import csv
import inspect
import time
import warnings

from _common import output_directory, print_environment

import numpy as np
from threadpoolctl import threadpool_limits

from datasets import load_images, load_small_images

from sklearn_mm import ContrastiveHebbianClassifier

CASES = {"full batch of 500": (500, None, 20), "batches of 10": (1000, 10, 1)}


def fit_time(X, y, hidden, batch_size, epochs, inference, seed):
    """Processor time per update, and mean number of passes."""
    params = {
        "loss": "squared_error",
        "standardize": False,
        "average": False,
        "feedback": 1.0,
        "alpha": 0.0,
        "solver": "sgd",
        "momentum": 0.0,
        "learning_rate_init": 0.03,
        "batch_size": batch_size,
        "max_iter": epochs,
        "inference": inference,
        "random_state": seed,
    }
    # Earlier versions, which this may be run with, had fewer parameters.
    known = inspect.signature(ContrastiveHebbianClassifier).parameters
    params = {name: value for name, value in params.items() if name in known}
    model = ContrastiveHebbianClassifier(hidden, **params)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too short to converge
        model.fit(X, y)
    spent = time.process_time() - start
    history = model.history_
    return spent / len(history.passes), float(np.mean(history.work))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="small images, one seed")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", default="results", help="directory of the CSV")
    args = parser.parse_args()
    print_environment()
    columns = ["case", "seed", "inference", "milliseconds", "passes"]
    n_seeds = 1 if args.quick else args.seeds
    path = output_directory(args.output) / "hebbian_strong_feedback.csv"
    with threadpool_limits(1), path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for case, (n_rows, batch_size, epochs) in CASES.items():
            n_rows = 60 if args.quick else n_rows
            data = None if args.quick else load_images("mnist", n_rows)
            X, y, hidden = load_small_images(n_rows) if data is None else data
            X = X.astype("f4")
            times = {"block": [], "coordinate": []}
            for seed in range(n_seeds):
                for inference, spent in times.items():
                    task = (X, y, hidden, batch_size, epochs, inference, seed)
                    seconds, passes = fit_time(*task)
                    spent.append(1e3 * seconds)
                    writer.writerow([case, seed, inference, spent[-1], passes])
                    print(f"{case:>18} {inference:>11} {spent[-1]:8.2f} ms", end="")
                    print(f" per update, {passes:.1f} passes", flush=True)
            block, coordinate = (np.median(spent) for spent in times.values())
            print(
                f"{case:>18}: unit by unit takes {coordinate / block:.1f} times as long"
            )


if __name__ == "__main__":
    main()
