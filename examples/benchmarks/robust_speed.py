"""Time and memory of the robust regressor, in multiples of one ridge regression.

All in one run, with one thread, in processor time; each is the median of several, taken
in turns so that a busy moment of the machine hits everybody. A fifth of the rows are
outliers; of small sizes, every repetition is another data set.
Peak memory is what one fit allocates beyond the data (tracemalloc, in its own run).

    python examples/benchmarks/robust_speed.py --output results/
"""

from __future__ import annotations

import argparse
import csv
import time
import tracemalloc

from _common import output_directory, print_environment

import numpy as np
from sklearn.linear_model import HuberRegressor, Ridge

from sklearn_mm import HalfQuadraticRobustRegressor

SIZES = (
    *((50, 3), (200, 5), (5_000, 200)),
    *((100_000, 20), (100_000, 50), (1_000_000, 20)),
)
QUICK = ((20_000, 10),)


def make_data(n, p, seed=0):
    """Rows on a plane, a fifth of them shifted."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    y = X @ rng.standard_normal(p) + rng.standard_normal(n)
    y[: n // 5] += rng.uniform(5, 50, size=n // 5)
    return X, y


def median_times(models, n, p, repeats):
    """Median seconds of each model's fit, the models taking turns."""
    seconds = {name: [] for name in models}
    small = n <= 1_000
    X, y = make_data(n, p)
    for i in range(7 * repeats if small else repeats):
        if small:
            X, y = make_data(n, p, i)
        for name, model in models.items():
            start = time.process_time()
            model.fit(X, y)
            seconds[name].append(time.process_time() - start)
    return {name: float(np.median(times)) for name, times in seconds.items()}


def peak_memory(model, X, y):
    """Bytes that a fit has allocated at its peak."""
    tracemalloc.start()
    model.fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small size")
    parser.add_argument("--output", default="results", help="directory of the CSV")
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args(argv)
    print_environment()
    path = output_directory(args.output) / "robust_speed.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["n", "p", "model", "seconds", "ratio", "peak_bytes", "X_bytes"]
        )
        for n, p in QUICK if args.quick else SIZES:
            X, y = make_data(n, p)
            models = {
                "Ridge(solver='cholesky')": Ridge(solver="cholesky"),
                "HalfQuadraticRobustRegressor": HalfQuadraticRobustRegressor(
                    random_state=0
                ),
            }
            if n <= 1_000 or n == 100_000:
                models["HuberRegressor"] = HuberRegressor(max_iter=1000)
            seconds = median_times(models, n, p, 1 if args.quick else args.repeats)
            unit = seconds["Ridge(solver='cholesky')"]
            for name, model in models.items():
                ratio, peak = seconds[name] / unit, peak_memory(model, X, y)
                writer.writerow([n, p, name, seconds[name], ratio, peak, X.nbytes])
                print(
                    f"{n:8d} x {p:3d} {name:30s} {1e3 * seconds[name]:8.1f} ms "
                    f"= {ratio:5.2f} x ridge, peak {peak / 1e6:7.1f} MB "
                    f"= {peak / X.nbytes:4.2f} x X",
                    flush=True,
                )


if __name__ == "__main__":
    main()
