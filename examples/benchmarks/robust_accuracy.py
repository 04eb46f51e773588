"""Robust regression on contaminated and on everyday data, compared with its peers.

Every regressor runs with its default settings and without knowledge of the noise. A fit
*fails* if its coefficient error (intercept included) exceeds three times the root mean
square error of an oracle in the same cell. The oracle is least squares on the clean
rows; under Student noise it is maximum likelihood, and under heteroscedastic noise
weighted least squares with the true variances. A cell is one size, one family of data
and one share of bad rows; the families are in ``_robust_families.py``.

There are two suites. ``contamination`` has two sizes, the classic families and shares
up to 60 %. ``everyday`` has nine sizes, from 30 x 1 to 2000 x 60, and all families; its
table pools the sizes, 400 data sets or more for each family and share. Families that
are marked as held out, and the seeds from zero on, were not looked at when constants of
the estimator were chosen; the seeds from 100,000 on were.

Peers are scikit-learn's robust regressors, those of statsmodels, pylmrob where it is
installed, and lmrob, ltsReg and rlm of R where Rscript finds the packages robustbase
and MASS. The results are appended cell by cell to a CSV file; a run that is interrupted
goes on where it stopped, and a run with ``--only`` adds some methods. The pooled table
is written next to it as Markdown. ``--quick`` takes a few cells and seeds.

    python examples/benchmarks/robust_accuracy.py --suite everyday --output results/
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
import zlib
from importlib.util import find_spec
from itertools import product

import _r_peers
from _common import output_directory, print_environment
from _robust_families import FAMILIES, weighted_fit

import numpy as np
from sklearn.linear_model import (
    HuberRegressor,
    LinearRegression,
    RANSACRegressor,
    TheilSenRegressor,
)

from sklearn_mm import HalfQuadraticRobustRegressor

CONTAMINATION = {
    "symmetric": (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    "one_sided": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
    "plane": (0.1, 0.2, 0.3, 0.4, 0.45),
    "leverage": (0.1, 0.2, 0.3, 0.4, 0.45),
    "student": (1.0,),
    "hetero": (0.2, 0.4, 0.6),
}
EVERYDAY = {name: family.shares for name, family in FAMILIES.items()}
# Data sets for each size: large ones take R seconds, and tell more apiece.
SIZES = {
    "contamination": {(200, 5): 100, (500, 10): 100},
    "everyday": {
        **{(30, 1): 100, (30, 5): 100, (60, 10): 75, (100, 3): 90, (100, 20): 20},
        **{(300, 10): 12, (1000, 20): 3, (300, 40): 2, (2000, 60): 1},
    },
}
SHARES = {"contamination": CONTAMINATION, "everyday": EVERYDAY}
# Peers that take a second and more; they see every fifth data set of the first suite.
SLOW = ("RANSACRegressor", "TheilSenRegressor", "statsmodels S", "statsmodels MM")
FIELDS = (
    *("suite", "n", "p", "family", "share", "method", "first_seed", "seeds"),
    *("failures", "rmse", "oracle_rmse", "seconds"),
)
KEY = FIELDS[:8]


def make_data(name, share, n, p, seed):
    """X, y, true coefficients (intercept last), weights of the oracle."""
    key = zlib.crc32(f"{name} {share} {n} {p}".encode())
    return FAMILIES[name](np.random.default_rng([seed, key]), n, p, share)


def one_by_one(fit):
    """A method for batches from one for a single data set."""

    def method(data, seeds):
        found, seconds = [], []
        for (X, y), seed in zip(data, seeds, strict=True):
            start = time.perf_counter()
            try:
                found.append(fit(X, y, seed))
            except (ValueError, RuntimeError, np.linalg.LinAlgError):
                found.append(np.full(X.shape[1] + 1, np.nan))  # no fit is a failure
            seconds.append(time.perf_counter() - start)
        return np.array(found), np.array(seconds)

    return method


def with_sklearn(make):
    """The method of a scikit-learn regressor, made for each seed."""

    def fit(X, y, seed):
        model = make(seed).fit(X, y)
        model = getattr(model, "estimator_", model)
        return np.append(model.coef_, model.intercept_)

    return one_by_one(fit)


def with_pylmrob(make):
    """The method of a regressor that has predictions but no coefficients."""

    def fit(X, y, seed):
        model = make().fit(X, y, seed=seed)
        at = model.predict(np.vstack([np.eye(X.shape[1]), np.zeros(X.shape[1])]))
        return np.append(at[:-1] - at[-1], at[-1])

    return one_by_one(fit)


def with_statsmodels(fit):
    """The method of a function of y and the design."""

    def fit_one(X, y, seed):
        # The constant goes first: the S and MM estimators expect it there.
        design = np.hstack([np.ones((len(X), 1)), X])
        return np.roll(np.asarray(fit(y, design).params), -1)

    return one_by_one(fit_one)


def methods():
    """Every method that is installed: from data and seeds to coefficients, seconds."""
    found = {
        "sklearn_mm": with_sklearn(
            lambda seed: HalfQuadraticRobustRegressor(random_state=seed)
        ),
        "LinearRegression": with_sklearn(lambda seed: LinearRegression()),
        "HuberRegressor": with_sklearn(lambda seed: HuberRegressor(max_iter=1000)),
        "RANSACRegressor": with_sklearn(lambda s: RANSACRegressor(random_state=s)),
        "TheilSenRegressor": with_sklearn(lambda s: TheilSenRegressor(random_state=s)),
    }
    if find_spec("statsmodels"):
        from statsmodels.robust import norms
        from statsmodels.robust.resistant_linear_model import RLMDetS, RLMDetSMM
        from statsmodels.robust.robust_linear_model import RLM

        tukey = norms.TukeyBiweight
        found["RLM Tukey"] = with_statsmodels(lambda y, X: RLM(y, X, M=tukey()).fit())
        found["statsmodels S"] = with_statsmodels(
            lambda y, X: RLMDetS(y, X).fit(h=(sum(X.shape) + 1) // 2)
        )
        found["statsmodels MM"] = with_statsmodels(lambda y, X: RLMDetSMM(y, X).fit())
    else:
        print("# statsmodels is not installed: its estimators are left out")
    if find_spec("pylmrob"):
        from pylmrob import LmRob

        found["pylmrob"] = with_pylmrob(LmRob)
    else:
        print("# pylmrob is not installed: it is left out")
    if _r_peers.available():
        found |= {name: _r_peers.batch(name) for name in _r_peers.CALLS}
    else:
        print("# R with robustbase and MASS is not installed: its fits are left out")
    return found


def run_cell(method, name, share, n, p, seeds):
    """One row of the result."""
    cell = [make_data(name, share, n, p, seed) for seed in seeds]
    truth = np.array([coef for _, _, coef, _ in cell])
    ideal = np.array([weighted_fit(X, y, weight) for X, y, _, weight in cell])
    oracle_errors = np.linalg.norm(ideal - truth, axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, seconds = method([(X, y) for X, y, _, _ in cell], seeds)
    errors = np.linalg.norm(found - truth, axis=1)
    oracle_rmse = float(np.sqrt(np.mean(np.square(oracle_errors))))
    return {
        "failures": int(np.sum(~(errors <= 3.0 * oracle_rmse))),
        "rmse": float(np.sqrt(np.mean(np.square(errors)))),
        "oracle_rmse": oracle_rmse,
        "seconds": float(np.mean(seconds)),
    }


def pooled(rows):
    """Failures in percent, and their number of data sets: all sizes of a suite."""
    table = {}
    for row in rows:
        cell = (row["family"], float(row["share"]))
        sums = table.setdefault(cell, {}).setdefault(row["method"], [0, 0])
        sums[0] += int(row["failures"])
        sums[1] += int(row["seeds"])
    return table


def markdown(rows):
    """A line for each family and share, a column for each method."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    lines = ["| family, share | data sets | " + " | ".join(names) + " |"]
    lines.append("|---" * (len(names) + 2) + "|")
    for (name, share), sums in pooled(rows).items():
        count = max(total for _, total in sums.values())
        values = []
        for method in names:
            failed, total = sums.get(method, (0, 0))
            fewer = f" ({total})" if total < count else ""
            values.append(f"{100 * failed / total:.1f}{fewer}" if total else "–")
        held_out = " *" if FAMILIES[name].held_out else ""
        line = [f"{name} {100 * share:.0f} %{held_out}", str(count), *values]
        lines.append("| " + " | ".join(line) + " |")
    lines += ["", "Failures in %. * held out; in brackets: a number of data sets."]
    return "\n".join(lines) + "\n"


def draw(rows, path):
    """Failure rates as a heat map, one panel per size."""
    import matplotlib.pyplot as plt

    sizes = sorted({(int(r["n"]), int(r["p"])) for r in rows})
    names = list(dict.fromkeys(r["method"] for r in rows))
    cells = list(dict.fromkeys((r["family"], float(r["share"])) for r in rows))
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
                cell = cells.index((r["family"], float(r["share"])))
                share = int(r["failures"]) / int(r["seeds"])
                rate[names.index(r["method"]), cell] = 100.0 * share
        image = ax.imshow(rate, cmap="RdYlGn_r", vmin=0, vmax=100, aspect="auto")
        for (i, j), value in np.ndenumerate(rate):
            if np.isfinite(value) and value > 0:
                ax.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=7)
        ax.set_yticks(range(len(names)), names, fontsize=8)
        ax.set_title(f"{n} rows, {p} features", fontsize=9)
    labels = [
        "student" if name == "student" else f"{name} {100 * share:.0f} %"
        for name, share in cells
    ]
    axes[-1, 0].set_xticks(range(len(cells)), labels, rotation=90, fontsize=8)
    fig.colorbar(image, ax=axes[:, 0].tolist(), label="fits that failed (%)")
    fig.savefig(path, dpi=150)
    plt.close(fig)


def cells(sizes, shares, args):
    """Family, share, size and number of data sets of what is to be run."""
    for family, levels in shares.items():
        if args.families and family not in args.families:
            continue
        for share, ((n, p), seeds) in product(levels, sizes.items()):
            if args.largest is None or n * p <= args.largest:
                yield family, share, (n, p), max(1, round(args.part * seeds))


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", choices=tuple(SIZES), default="contamination")
    parser.add_argument("--quick", action="store_true", help="few cells and seeds")
    parser.add_argument("--output", default="results", help="directory of CSV and PNG")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--part", type=float, default=1.0, help="of the data sets")
    parser.add_argument("--largest", type=int, help="number of entries of X")
    parser.add_argument("--only", nargs="*", help="names of methods to run")
    parser.add_argument("--families", nargs="*", help="names of families to run")
    args = parser.parse_args(argv)
    print_environment()
    sizes, shares = SIZES[args.suite], SHARES[args.suite]
    if args.quick:
        sizes = {(60, 3): 3}
        shares = {"symmetric": (0.0, 0.4), "leverage": (0.3,)}
    chosen = {k: m for k, m in methods().items() if not args.only or k in args.only}
    path = output_directory(args.output) / f"robust_accuracy_{args.suite}.csv"
    rows = []
    if path.exists():
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {tuple(row[name] for name in KEY) for row in rows}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if not rows:
            writer.writeheader()
        for cell in product(cells(sizes, shares, args), chosen.items()):
            (family, share, (n, p), seeds), (name, method) = cell
            if args.suite == "contamination" and name in SLOW:
                seeds = max(1, seeds // 5)
            first = args.first_seed
            key = (args.suite, n, p, family, share, name, first, seeds)
            if tuple(map(str, key)) in done:
                continue
            row = dict(zip(KEY, key, strict=True))
            row |= run_cell(method, family, share, n, p, range(first, first + seeds))
            writer.writerow(row)
            file.flush()
            rows.append(row)
            print(
                f"{n:5d} x {p:2d} {family:13s} {share:4.2f} {name:18s} "
                f"failed {row['failures']:3d} of {seeds:3d}, error "
                f"{row['rmse'] / row['oracle_rmse']:7.2f} x oracle, "
                f"{1e3 * row['seconds']:7.1f} ms",
                flush=True,
            )
    table = markdown(rows)
    print("\n" + table)
    path.with_suffix(".md").write_text(table, encoding="utf-8")
    try:
        draw(rows, path.with_suffix(".png"))
    except ImportError:
        print("# matplotlib is not installed: no picture")


if __name__ == "__main__":
    main()
