"""Coverage of confidence and prediction intervals under contamination.

    python examples/benchmarks/robust_inference.py --output results/

Data have standard normal features, an intercept, and noise of unit variance. In every
simulation the fit makes 95 % intervals for all coefficients and for the target of one
new row. "prediction" is the probability that the interval covers this target, which
has the noise of the clean rows.

- "clean": no outliers;
- "near": 20 % of the rows are shifted by 4 to 8 noise scales, all upwards;
- "coded": 30 % of the targets are 999;
- "one-sided": 30 % of the rows are shifted by 5 to 50 noise scales, all upwards;
- "heteroscedastic": clean, noise of standard deviation 0.5 + |x0|, `cov_type="HC3"`.

"length" is the mean length over that of an oracle: least squares on the clean rows
alone. Where R and robustbase are installed, `lmrob`'s intervals (its standard errors
with n - p degrees of freedom, as in `confint`) are made for the first simulations.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings

import _common  # pins threads first
import _r_peers

import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import HalfQuadraticRobustRegressor

SIZES = ((50, 3), (50, 10), (100, 10), (500, 10))
KINDS = ("clean", "near", "coded", "one-sided", "heteroscedastic")
LEVEL = 0.95


def draw(kind, n, p, seed):
    """Data, true coefficients (intercept last), clean rows, and a new row.

    The new row comes with the mean and the standard deviation of its target.
    """
    rng = np.random.default_rng([seed, n, p, KINDS.index(kind)])
    X = rng.normal(size=(n + 1, p))
    coef = rng.normal(size=p + 1)
    noise = 0.5 + np.abs(X[:, 0]) if kind == "heteroscedastic" else np.ones(n + 1)
    mean = X @ coef[:-1] + coef[-1]
    y = mean + noise * rng.normal(size=n + 1)
    share = {"near": 0.2, "coded": 0.3, "one-sided": 0.3}.get(kind, 0.0)
    bad = np.flatnonzero(rng.permutation(n) < share * n)
    new = X[n:], mean[n], noise[n]
    X, y = X[:n], y[:n]
    if kind == "near":
        y[bad] += rng.uniform(4, 8, size=len(bad))
    elif kind == "one-sided":
        y[bad] += rng.uniform(5, 50, size=len(bad))
    elif kind == "coded":
        y[bad] = 999.0
    return X, y, coef, np.setdiff1d(np.arange(n), bad), new


def oracle(X, y, new):
    """Intervals of least squares for the coefficients, and for a new row."""
    design = np.column_stack([X, np.ones(len(X))])
    coef, *_ = np.linalg.lstsq(design, y, rcond=None)
    freedom = len(y) - design.shape[1]
    inverse = np.linalg.inv(design.T @ design)
    noise = np.sum(np.square(y - design @ coef)) / freedom
    quantile = student.ppf(0.5 + LEVEL / 2, freedom)
    x = np.append(new, 1.0)
    return (
        2 * quantile * np.sqrt(noise * np.diag(inverse)),
        2 * quantile * np.sqrt(noise * (1 + x @ inverse @ x)),
    )


def simulate(kind, n, p, seed, kernel="smooth_truncated_quadratic"):
    """Hits and lengths of one data set."""
    X, y, coef, clean, (x_new, *target) = draw(kind, n, p, seed)
    cov_type = "HC3" if kind == "heteroscedastic" else "nonrobust"
    begin = time.process_time()
    model = HalfQuadraticRobustRegressor(kernel, cov_type=cov_type, random_state=seed)
    low, high = model.fit(X, y).conf_int(LEVEL).T
    ((left, right),) = model.predict_interval(x_new, LEVEL)
    seconds = time.process_time() - begin
    length, prediction_length = oracle(X[clean], y[clean], x_new[0])
    return {
        "coverage": np.mean((low <= coef) & (coef <= high)),
        "length": np.mean(high - low) / np.mean(length),
        "prediction": normal.cdf(right, *target) - normal.cdf(left, *target),
        "prediction_length": (right - left) / prediction_length,
        "seconds": seconds,
    }


def lmrob(kind, n, p, seeds):
    """Coverage of lmrob's intervals, coefficients in a row with their errors."""
    data = [draw(kind, n, p, seed) for seed in seeds]
    found, errors = _r_peers.with_errors([(X, y) for X, y, *_ in data])
    errors, found = np.nan_to_num(errors, nan=np.inf), np.nan_to_num(found, nan=np.inf)
    half = student.ppf(0.5 + LEVEL / 2, n - p - 1) * errors
    truth = np.array([coef for _, _, coef, *_ in data])
    done = np.isfinite(errors) & np.isfinite(found)  # it fails at times
    return float(np.mean(np.abs(found - truth)[done] <= half[done]))


def size(text):
    """Rows and columns, from "50x3"."""
    n, p = map(int, text.split("x"))
    return n, p


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="results")
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--r-simulations", type=int, default=500)
    parser.add_argument("--first-seed", type=int, default=10_000)
    parser.add_argument("--sizes", nargs="+", type=size, default=SIZES, metavar="NxP")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--kernel", default="smooth_truncated_quadratic")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    first, number = args.first_seed, 10 if args.quick else args.simulations
    sizes, kinds = args.sizes, args.kinds
    if args.quick:
        sizes, kinds = SIZES[:1], KINDS[-2:]
    with_r = not args.quick and args.r_simulations > 0 and _r_peers.available()
    _common.print_environment()
    path = _common.output_directory(args.output) / "robust_inference.csv"
    names = ("coverage", "length", "prediction", "prediction_length", "seconds")
    heads = ("coverage", "(error)", "length", "prediction", "length", "ms", "lmrob")
    print(f"{'':24}" + "".join(f"{head:>11}" for head in heads))
    with warnings.catch_warnings(), path.open("w", newline="") as file:
        warnings.simplefilter("ignore", ConvergenceWarning)
        writer = csv.writer(file)
        writer.writerow(["kind", "n", "p", *names, "coverage_error", "lmrob"])
        for kind in kinds:
            for n, p in sizes:
                seeds = range(first, first + number)
                rows = [simulate(kind, n, p, seed, args.kernel) for seed in seeds]
                mean = {name: np.mean([row[name] for row in rows]) for name in names}
                error = np.std([row["coverage"] for row in rows]) / np.sqrt(number)
                peer = np.nan
                if with_r:
                    peer = lmrob(kind, n, p, seeds[: args.r_simulations])
                writer.writerow([kind, n, p, *mean.values(), error, peer])
                file.flush()
                print(
                    f"{kind:16}{n:4}x{p:<3}{mean['coverage']:11.3f}{error:11.4f}"
                    f"{mean['length']:11.2f}{mean['prediction']:11.3f}"
                    f"{mean['prediction_length']:11.2f}{1e3 * mean['seconds']:11.1f}"
                    f"{peer:11.3f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
