"""RobustRegressor: five learners, five data sets, outliers of three kinds.

    python examples/benchmarks/robust_anything.py --output results/

Targets of a share of the training rows are moved by 3 to 10 standard deviations of the
noise-free targets: all upwards ("one-sided"), up or down ("symmetric"), or upwards
within a part of the feature space where two fifths of the rows are moved ("region").
Errors are those on new rows: the RMSE to the noise-free function, or, on California
housing (the logarithm of the median value), where that is not known, the root of the
mean bounded loss of clean test rows, with one scale for all models. The oracle is the
plain learner fitted to the rows that were not moved.

The constants of the estimator were chosen on other functions (the Franke and Ishigami
functions, products, steps, heteroscedastic noise, heavy-tailed features); the data
sets here were not looked at before.

Times in plain fits are process times; those of cheap learners are mostly scikit-learn's
fixed cost per fit.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings

import _common  # pins threads first

import numpy as np
from sklearn.base import clone
from sklearn.datasets import make_friedman1, make_friedman2, make_friedman3
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler

from datasets import data_file
from sklearn_mm import ContrastiveHebbianRegressor, RobustRegressor
from sklearn_mm.kernels import get_kernel

KINDS = ("one-sided", "symmetric", "region")
SHARES = (0.1, 0.2, 0.3, 0.4)
LEARNERS = {
    "boosting": HistGradientBoostingRegressor(random_state=0),
    "forest": RandomForestRegressor(50, min_samples_leaf=3, random_state=0),
    "spline": make_pipeline(
        StandardScaler(), SplineTransformer(8, extrapolation="linear"), Ridge(0.1)
    ),
    "kernel ridge": make_pipeline(
        StandardScaler(), KernelRidge(alpha=0.1, kernel="rbf", gamma=0.1)
    ),
    "hebbian": make_pipeline(
        StandardScaler(),
        ContrastiveHebbianRegressor(
            hidden_layer_sizes=(32,), max_iter=30, batch_size=50, random_state=0
        ),
    ),
}
# Learners with a robust loss of their own.
OWN = {"boosting": HistGradientBoostingRegressor(loss="absolute_error", random_state=0)}


CELL = ("data", "learner", "kind", "share", "seed")
MODELS = ("oracle", "plain", "own", "robust")
FIELDS = (*CELL, *MODELS, *(f"time_{name}" for name in MODELS))


def wavy(rng, n):
    X = rng.uniform(-3, 3, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * np.cos(X[:, 1]), 0.1


def friedman(make, noise):
    def draw(rng, n):
        X, truth = make(n, noise=0.0, random_state=int(rng.integers(2**31)))
        return X, truth, noise

    return draw


FUNCTIONS = {
    "friedman1": friedman(make_friedman1, 1.0),
    "friedman2": friedman(make_friedman2, 40.0),
    "friedman3": friedman(make_friedman3, 0.1),
    "wavy": wavy,
}


def california():
    """Features and the logarithm of the median value, or None."""
    path = data_file("california_housing.csv.gz")
    if path is None:
        return None
    import pandas

    frame = pandas.read_csv(path).dropna()
    frame = frame[frame["median_house_value"] < 500_000]  # where values are cut off
    y = np.log(frame.pop("median_house_value").to_numpy(dtype=float))
    X = frame.select_dtypes("number").to_numpy(dtype=float)
    X[:, 2:] = np.log1p(np.abs(X[:, 2:]))  # counts and incomes
    return X, y


def draw(name, rng, n):
    """Training rows with clean targets, and the error of a model on new rows."""
    if name != "california":
        X, truth, noise = FUNCTIONS[name](rng, n)
        X_new, truth_new, _ = FUNCTIONS[name](rng, 3000)
        y = truth + noise * rng.normal(size=n)

        def error(model):
            return float(np.sqrt(np.mean((model.predict(X_new) - truth_new) ** 2)))

        return X, y, np.std(truth), error
    X, y = california()
    rows = rng.permutation(len(y))[: n + 3000]
    (X, X_new), (y, y_new) = ((a[rows[:n]], a[rows[n:]]) for a in (X, y))
    kernel, width = get_kernel("smooth_truncated_quadratic"), 3.673 * 0.25

    def error(model):
        z = np.square((y_new - model.predict(X_new)) / width)
        return float(np.sqrt(np.mean(kernel.loss(z))))

    return X, y, np.std(y), error


def spoil(rng, X, y, size, kind, share):
    """Targets with outliers, and where they are."""
    n = len(y)
    rows = np.arange(n)
    if kind == "region":
        part = min(1.0, share / 0.4)
        rows = np.flatnonzero(X[:, 0] <= np.quantile(X[:, 0], part))
    bad = rng.choice(rows, size=round(share * n), replace=False)
    shift = size * rng.uniform(3, 10, size=len(bad))
    if kind == "symmetric":
        shift *= rng.choice([-1, 1], size=len(bad))
    y = y.copy()
    y[bad] += shift
    return y, np.isin(np.arange(n), bad)


def measure(data, learner, kind, share, seed, n):
    """One row of the table."""
    tag = sum(map(ord, data + kind)) + round(100 * share)
    rng = np.random.default_rng([seed, tag])
    X, y, size, error = draw(data, rng, n)
    y, bad = spoil(rng, X, y, size, kind, share)
    plain = LEARNERS[learner]
    models = {
        "oracle": lambda: clone(plain).fit(X[~bad], y[~bad]),
        "plain": lambda: clone(plain).fit(X, y),
        "robust": lambda: RobustRegressor(plain, random_state=seed).fit(X, y),
    }
    if learner in OWN:
        models["own"] = lambda: clone(OWN[learner]).fit(X, y)
    row = dict(zip(CELL, (data, learner, kind, share, seed), strict=True))
    for name, fit in models.items():
        start = time.process_time()
        model = fit()
        row[f"time_{name}"] = time.process_time() - start
        row[name] = error(model)
    return row


def cells(args):
    """Data, learner, kind, share and seed of every measurement."""
    sets = [*FUNCTIONS, *(["california"] if california() is not None else [])]
    for seed in range(args.first_seed, args.first_seed + args.seeds):
        for learner in args.learners:
            for data in sets:
                yield data, learner, "clean", 0.0, seed
                for share in args.shares:
                    for kind in KINDS:
                        yield data, learner, kind, share, seed


def load(path):
    """Rows of an earlier run, which this one goes on with."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = [{k: v for k, v in row.items() if v} for row in csv.DictReader(file)]
    for row in rows:
        row.update({k: float(v) for k, v in row.items() if k not in CELL[:3]})
        row["seed"] = int(row["seed"])
    return rows


def summary(rows):
    """Ratios to the oracle: median and largest over data sets, kinds and seeds."""
    names = ("plain", "own", "robust")
    print(f"\n{'learner':14}{'share':>6}" + "".join(f"{name:>18}" for name in names))
    for learner in dict.fromkeys(row["learner"] for row in rows):
        for share in sorted({row["share"] for row in rows}):
            part = [r for r in rows if r["learner"] == learner and r["share"] == share]
            if not part:
                continue
            line = f"{learner:14}{share:6.0%}"
            for name in names:
                if name in part[0]:
                    ratio = [row[name] / row["oracle"] for row in part]
                    line += f"{np.median(ratio):9.2f} ({max(ratio):6.2f})"
                else:
                    line += f"{'-':>18}"
            print(line)
    robust = [row for row in rows if 0 < row["share"] <= 0.3]
    over = [row for row in robust if row["robust"] > 1.5 * row["oracle"]]
    print(f"\nup to 30 %: above 1.5 of the oracle in {len(over)} of {len(robust)}")
    for row in over:
        cell = [row[name] for name in ("data", "learner", "kind", "share")]
        ratios = [row[name] / row["oracle"] for name in ("robust", "plain")]
        print("   ", *cell, "{:.2f} (plain {:.2f})".format(*ratios))
    clean = [row["robust"] / row["plain"] for row in rows if row["share"] == 0]
    print(f"clean: robust over plain at most {max(clean):.3f}, above 1.05 in ", end="")
    print(f"{sum(ratio > 1.05 for ratio in clean)} of {len(clean)}")
    own = [row for row in rows if row["share"] > 0 and "own" in row]
    worse = sum(row["robust"] >= row["own"] for row in own)
    print(f"not better than the learner's own robust loss in {worse} of {len(own)}")
    for learner in dict.fromkeys(row["learner"] for row in rows):
        part = [row for row in rows if row["learner"] == learner]
        times = np.array([[r["time_robust"], r["time_plain"]] for r in part]).sum(
            axis=0
        )
        print(f"time in plain fits, {learner}: {times[0] / times[1]:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="results")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1000)
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=[*LEARNERS])
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.rows, args.learners, args.shares = 200, ["spline"], [0.2]
    _common.print_environment()
    path = _common.output_directory(args.output) / "robust_anything.csv"
    rows = load(path)
    done = {tuple(str(row[name]) for name in CELL) for row in rows}
    with warnings.catch_warnings(), path.open("a", newline="") as file:
        # Networks are trained for a fixed number of epochs.
        warnings.simplefilter("ignore", ConvergenceWarning)
        writer = csv.DictWriter(file, FIELDS)
        if not rows:
            writer.writeheader()
        for cell in cells(args):
            if tuple(map(str, cell)) in done:
                continue
            rows.append(row := measure(*cell, args.rows))
            writer.writerow(row)
            file.flush()
            ratios = " ".join(
                f"{name} {row[name] / row['oracle']:.2f}"
                for name in ("plain", "own", "robust")
                if name in row
            )
            print(*cell, f"oracle {row['oracle']:.3g}", ratios, flush=True)
    summary(rows)


if __name__ == "__main__":
    main()
