"""What robust regression costs on clean data, and how well it estimates the noise.

    python examples/benchmarks/robust_clean.py --output results/

Data have standard normal features and coefficients, an intercept, and noise of unit
variance. "efficiency" is the mean squared error of the coefficients of least squares
divided by that of the robust fit with default settings, "flagged" the share of rows
that are not inliers, and "scale" the mean of `scale_`. "near" is the mean of `scale_`
if a fifth of the rows are shifted upwards by 4 to 8 noise scales. The seeds were not
used when constants of the estimator were chosen.
"""

from __future__ import annotations

import argparse
import csv
import warnings

from _common import output_directory, print_environment

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import HalfQuadraticRobustRegressor

# Data sets for each size.
SIZES = {
    **{(20, 3): 600, (30, 5): 600, (60, 10): 300, (30, 10): 200, (60, 3): 300},
    **{(100, 5): 300, (100, 10): 200, (200, 10): 150, (400, 20): 150},
}
FIELDS = ("n", "p", "data_sets", "efficiency", "flagged", "scale", "near")


def fit(X, y):
    """The robust fit; that there are few rows per parameter is known here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return HalfQuadraticRobustRegressor(random_state=0).fit(X, y)


def simulate(n, p, seed):
    """Squared errors of least squares and ours, share of flagged rows, two scales."""
    rng = np.random.default_rng([seed, n, p])
    X, coef = rng.standard_normal((n, p)), rng.standard_normal(p + 1)
    y = X @ coef[:p] + coef[p] + rng.standard_normal(n)
    design = np.hstack([X, np.ones((n, 1))])
    plain = np.linalg.lstsq(design, y, rcond=None)[0]
    model = fit(X, y)
    ours = np.append(model.coef_, model.intercept_)
    errors = [np.sum(np.square(found - coef)) for found in (plain, ours)]
    y[: n // 5] += rng.uniform(4.0, 8.0, size=n // 5)
    return (*errors, 1.0 - model.inlier_mask_.mean(), model.scale_, fit(X, y).scale_)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one size, few data sets")
    parser.add_argument("--output", default="results", help="directory of the CSV")
    parser.add_argument("--first-seed", type=int, default=0)
    args = parser.parse_args(argv)
    print_environment()
    path = output_directory(args.output) / "robust_clean.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for (n, p), number in ({(60, 3): 5} if args.quick else SIZES).items():
            seeds = range(args.first_seed, args.first_seed + number)
            mean = np.mean([simulate(n, p, seed) for seed in seeds], axis=0)
            values = (n, p, number, mean[0] / mean[1], *mean[2:])
            writer.writerow(dict(zip(FIELDS, values, strict=True)))
            file.flush()
            print(
                f"{n:4d} x {p:2d}, {number} data sets: efficiency {values[3]:.3f}, "
                f"flagged {100 * mean[2]:.2f} %, scale {mean[3]:.3f}, "
                f"near {mean[4]:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
