"""Robust regression under six kinds of contamination, beside its peers.

Every regressor runs with its default settings and without knowledge of the noise. A fit
*fails* if its coefficient error (intercept included) exceeds three times the root mean
square error of an oracle in the same cell. The oracle is least squares on the inliers;
under Student noise it is maximum likelihood, and under heteroscedastic noise weighted
least squares with the true variances.

Data: X and the coefficients are standard normal, the noise has unit variance, and a
share of the rows, drawn at random, is contaminated:

symmetric    N(0, 20**2) added to y
one_sided    U(5, 50) added to y
plane        y follows a second plane, with coefficients 3 N(0, 1)
leverage     x in a cluster 10 away from the origin, y 30 above the true plane
student      all noise is Student's t with 1.5 degrees of freedom (share 1)
hetero       noise of standard deviation 3 exp(1.5 |x_1|) added to y

The results are appended cell by cell to a CSV file; a run that is interrupted goes on
where it stopped. ``--quick`` takes a few cells and seeds.

    python examples/benchmarks/robust_accuracy.py --output results/
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
import zlib

from _common import output_directory, print_environment

import numpy as np
from sklearn.linear_model import (
    HuberRegressor,
    LinearRegression,
    RANSACRegressor,
    TheilSenRegressor,
)

from sklearn_mm import HalfQuadraticRobustRegressor

SHARES = {
    "symmetric": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    "one_sided": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    "plane": (0.1, 0.2, 0.3, 0.4, 0.45),
    "leverage": (0.1, 0.2, 0.3, 0.4, 0.45),
    "student": (1.0,),
    "hetero": (0.2, 0.4, 0.6),
}
SIZES = ((200, 5), (500, 10))
FIELDS = (
    *("n", "p", "kind", "share", "method", "seeds"),
    *("failures", "rmse", "oracle_rmse", "seconds"),
)


def make_data(kind, share, n, p, rng):
    """X, y, true coefficients (intercept last), weights of the oracle."""
    X = rng.standard_normal((n, p))
    coef = rng.standard_normal(p + 1)
    y = X @ coef[:p] + coef[p] + rng.standard_normal(n)
    bad = rng.permutation(n)[: round(share * n)]
    m = len(bad)
    oracle = np.ones(n)
    oracle[bad] = 0.0
    if kind == "symmetric":
        y[bad] += 20.0 * rng.standard_normal(m)
    elif kind == "one_sided":
        y[bad] += rng.uniform(5.0, 50.0, m)
    elif kind == "plane":
        other = 3.0 * rng.standard_normal(p)
        y[bad] = X[bad] @ other + 10.0 * rng.standard_normal() + rng.standard_normal(m)
    elif kind == "leverage":
        direction = rng.standard_normal(p)
        direction /= np.linalg.norm(direction)
        X[bad] = 10.0 * direction + 0.5 * rng.standard_normal((m, p))
        y[bad] = X[bad] @ coef[:p] + coef[p] + 30.0 + rng.standard_normal(m)
    elif kind == "student":
        y = X @ coef[:p] + coef[p] + rng.standard_t(1.5, n)
        oracle = student_weights(X, y, 1.5)
    elif kind == "hetero":
        spread = 3.0 * np.exp(1.5 * np.abs(X[bad, 0]))
        y[bad] += spread * rng.standard_normal(m)
        oracle[bad] = 1.0 / (1.0 + spread**2)
    return X, y, coef, oracle


def weighted_fit(X, y, weight):
    """Weighted least squares, intercept last."""
    root = np.sqrt(weight)[:, None]
    design = np.hstack([X, np.ones((len(X), 1))])
    return np.linalg.lstsq(design * root, y * root[:, 0], rcond=None)[0]


def student_weights(X, y, dof):
    """Weights of the maximum-likelihood fit of unit scale."""
    weight = np.ones(len(y))
    for _ in range(100):
        coef = weighted_fit(X, y, weight)
        weight = (dof + 1.0) / (dof + np.square(y - X @ coef[:-1] - coef[-1]))
    return weight


def linear_coefficients(model, X, y):
    """Fit a scikit-learn regressor and return its coefficients, intercept last."""
    model.fit(X, y)
    model = getattr(model, "estimator_", model)
    return np.append(model.coef_, model.intercept_)


def with_statsmodels(fit):
    """Turn a statsmodels fit into a method like the others."""

    def method(X, y, seed):
        # The constant goes first: the S and MM estimators expect it there.
        design = np.hstack([np.ones((len(X), 1)), X])
        return np.roll(np.asarray(fit(y, design).params), -1)

    return method


def methods():
    """Name, function and whether it is slow."""
    found = {
        "sklearn_mm": (
            lambda X, y, s: linear_coefficients(
                HalfQuadraticRobustRegressor(random_state=s), X, y
            ),
            False,
        ),
        "LinearRegression": (
            lambda X, y, s: linear_coefficients(LinearRegression(), X, y),
            False,
        ),
        "HuberRegressor": (
            lambda X, y, s: linear_coefficients(HuberRegressor(max_iter=1000), X, y),
            False,
        ),
        "RANSACRegressor": (
            lambda X, y, s: linear_coefficients(RANSACRegressor(random_state=s), X, y),
            True,
        ),
        "TheilSenRegressor": (
            lambda X, y, s: linear_coefficients(
                TheilSenRegressor(random_state=s), X, y
            ),
            True,
        ),
    }
    try:
        from statsmodels.robust import norms
        from statsmodels.robust.resistant_linear_model import RLMDetS, RLMDetSMM
        from statsmodels.robust.robust_linear_model import RLM
    except ImportError:
        print("# statsmodels is not installed: its estimators are left out")
        return found
    tukey = norms.TukeyBiweight
    found["RLM Tukey"] = (
        with_statsmodels(lambda y, X: RLM(y, X, M=tukey()).fit()),
        False,
    )
    found["statsmodels S"] = (
        with_statsmodels(lambda y, X: RLMDetS(y, X).fit(h=(sum(X.shape) + 1) // 2)),
        True,
    )
    found["statsmodels MM"] = (
        with_statsmodels(lambda y, X: RLMDetSMM(y, X).fit()),
        True,
    )
    return found


def run_cell(method, kind, share, n, p, seeds):
    """One row of the result."""
    errors, oracle_errors, seconds = [], [], 0.0
    for seed in range(seeds):
        key = zlib.crc32(f"{kind} {share} {n} {p}".encode())
        rng = np.random.default_rng([seed, key])
        X, y, coef, oracle = make_data(kind, share, n, p, rng)
        oracle_errors.append(np.linalg.norm(weighted_fit(X, y, oracle) - coef))
        start = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = method(X, y, seed)
        except (ValueError, np.linalg.LinAlgError):
            found = np.full(p + 1, np.inf)  # no fit is a failure
        seconds += time.perf_counter() - start
        errors.append(np.linalg.norm(found - coef))
    oracle_rmse = float(np.sqrt(np.mean(np.square(oracle_errors))))
    return {
        "failures": int(np.sum(~(np.array(errors) <= 3.0 * oracle_rmse))),
        "rmse": float(np.sqrt(np.mean(np.square(errors)))),
        "oracle_rmse": oracle_rmse,
        "seconds": seconds / seeds,
    }


def draw(rows, path):
    """Failure rates as a heat map, a panel a size."""
    import matplotlib.pyplot as plt

    sizes = sorted({(int(r["n"]), int(r["p"])) for r in rows})
    names = list(dict.fromkeys(r["method"] for r in rows))
    cells = list(dict.fromkeys((r["kind"], float(r["share"])) for r in rows))
    fig, axes = plt.subplots(
        len(sizes),
        1,
        figsize=(0.36 * len(cells) + 2.6, 0.34 * len(names) * len(sizes) + 2.4),
        squeeze=False,
        sharex=True,
        layout="constrained",
    )
    for ax, (n, p) in zip(axes[:, 0], sizes, strict=True):
        rate = np.full((len(names), len(cells)), np.nan)
        for r in rows:
            if (int(r["n"]), int(r["p"])) == (n, p):
                cell = cells.index((r["kind"], float(r["share"])))
                share = int(r["failures"]) / int(r["seeds"])
                rate[names.index(r["method"]), cell] = 100.0 * share
        image = ax.imshow(rate, cmap="RdYlGn_r", vmin=0, vmax=100, aspect="auto")
        for (i, j), value in np.ndenumerate(rate):
            if np.isfinite(value) and value > 0:
                ax.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=7)
        ax.set_yticks(range(len(names)), names, fontsize=8)
        ax.set_title(f"{n} rows, {p} features", fontsize=9)
    labels = [
        "student" if kind == "student" else f"{kind} {100 * share:.0f} %"
        for kind, share in cells
    ]
    axes[-1, 0].set_xticks(range(len(cells)), labels, rotation=90, fontsize=8)
    fig.colorbar(image, ax=axes[:, 0].tolist(), label="fits that failed (%)")
    fig.savefig(path, dpi=150)
    plt.close(fig)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few cells and seeds")
    parser.add_argument("--output", default="results", help="directory of CSV and PNG")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--slow-seeds", type=int, default=20)
    parser.add_argument("--only", nargs="*", help="names of methods to run")
    args = parser.parse_args(argv)
    print_environment()
    sizes, shares = SIZES, SHARES
    if args.quick:
        args.seeds, args.slow_seeds = min(args.seeds, 3), min(args.slow_seeds, 1)
        sizes = ((60, 3),)
        shares = {"symmetric": (0.0, 0.4), "leverage": (0.3,)}
    path = output_directory(args.output) / "robust_accuracy.csv"
    rows = []
    if path.exists():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {tuple(r[name] for name in FIELDS[:6]) for r in rows}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not rows:
            writer.writeheader()
        for name, (method, slow) in methods().items():
            if args.only and name not in args.only:
                continue
            seeds = args.slow_seeds if slow else args.seeds
            for n, p in sizes:
                for kind, levels in shares.items():
                    for share in levels:
                        key = (n, p, kind, share, name, seeds)
                        if tuple(map(str, key)) in done:
                            continue
                        row = dict(zip(FIELDS, key, strict=False))
                        row |= run_cell(method, kind, share, n, p, seeds)
                        writer.writerow(row)
                        file.flush()
                        rows.append(row)
                        print(
                            f"{n:5d} x {p:2d} {kind:10s} {share:4.2f} {name:18s} "
                            f"failed {row['failures']:3d} of {seeds:3d}, error "
                            f"{row['rmse'] / row['oracle_rmse']:7.2f} x oracle, "
                            f"{1e3 * row['seconds']:7.1f} ms",
                            flush=True,
                        )
    try:
        draw(rows, path.with_suffix(".png"))
    except ImportError:
        print("# matplotlib is not installed: no picture")


if __name__ == "__main__":
    main()
