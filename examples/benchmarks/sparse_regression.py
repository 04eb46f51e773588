"""More columns than rows, outliers in y or in X: robust elastic net and its peers.

    python examples/benchmarks/sparse_regression.py --output results/

100 rows, 200 or 1,000 standard normal columns, five coefficients of size 2 to 3 that
are not zero, noise of unit variance.

- "vertical": bad rows are shifted by 10 to 30 noise scales, all upwards;
- "leverage": the same, and five columns without influence are shifted by 8.

Every method chooses its penalty by 5-fold cross-validation: the oracle (Lasso
on the clean rows) and Lasso by the squared error, HuberRegressor (which has an L2
penalty only) by the absolute error, ours by `robust_scorer` with the scale of a fit in
the middle of the grid. "error" is the RMSE of predictions for clean new rows compared
with the noise-free targets, over the oracle's; "found" and "extra" are the numbers of
true and of other columns in the model.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings

import _common  # pins threads first

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, LassoCV
from sklearn.model_selection import GridSearchCV, KFold

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm.metrics import robust_scorer

N_ROWS, N_TRUE = 100, 5
CELLS = (
    ("vertical", 0.0),
    ("vertical", 0.1),
    ("vertical", 0.3),
    ("leverage", 0.1),
    ("leverage", 0.3),
)
METHODS = ("oracle", "ours", "lasso", "huber")


def draw(kind, p, share, seed):
    """Data, coefficients, clean rows, and new rows with noise-free targets."""
    rng = np.random.default_rng([seed, p, round(100 * share), kind == "leverage"])
    X = rng.normal(size=(N_ROWS, p))
    coef = np.zeros(p)
    used = rng.choice(p, N_TRUE, replace=False)
    coef[used] = rng.choice([-1.0, 1.0], N_TRUE) * rng.uniform(2, 3, N_TRUE)
    y = X @ coef + 1.0 + rng.normal(size=N_ROWS)
    bad = rng.permutation(N_ROWS) < share * N_ROWS
    y[bad] += rng.uniform(10, 30, size=bad.sum())
    if kind == "leverage":
        columns = rng.choice(np.flatnonzero(coef == 0.0), 5, replace=False)
        X[np.ix_(bad, columns)] += 8.0
    X_new = rng.normal(size=(2000, p))
    return X, y, coef, ~bad, X_new, X_new @ coef + 1.0


def ours(X, y, folds):
    """A robust lasso, its penalty chosen by the robust scorer."""
    model = HalfQuadraticRobustRegressor(l1_ratio=1.0, random_state=0)
    alphas = np.geomspace(3.0, 30.0, 6)
    reference = model.set_params(alpha=alphas[3]).fit(X, y)
    search = GridSearchCV(
        model, {"alpha": alphas}, scoring=robust_scorer(reference), cv=folds
    )
    return search.fit(X, y).best_estimator_


def huber(X, y, folds):
    """HuberRegressor, its L2 penalty chosen by the absolute error."""
    search = GridSearchCV(
        HuberRegressor(max_iter=200),
        {"alpha": np.geomspace(1e-1, 1e3, 5)},
        scoring="neg_mean_absolute_error",
        cv=folds,
    )
    return search.fit(X, y).best_estimator_


def measure(kind, p, share, seed, methods):
    """Errors, columns found, other columns, and seconds, by method."""
    X, y, coef, clean, X_new, y_new = draw(kind, p, share, seed)
    folds = KFold(5, shuffle=True, random_state=seed)
    fits = {
        "oracle": lambda: LassoCV(cv=folds, alphas=30).fit(X[clean], y[clean]),
        "ours": lambda: ours(X, y, folds),
        "lasso": lambda: LassoCV(cv=folds, alphas=30).fit(X, y),
        "huber": lambda: huber(X, y, folds),
    }
    rows = {}
    for name in methods:
        begin = time.process_time()
        model = fits[name]()
        seconds = time.process_time() - begin
        error = float(np.sqrt(np.mean(np.square(model.predict(X_new) - y_new))))
        used = np.abs(model.coef_) > 1e-8
        found, extra = int(used[coef != 0].sum()), int(used[coef == 0].sum())
        rows[name] = (error / rows["oracle"][1] if rows else 1.0, error, found, extra)
        rows[name] += (seconds,)
    begin = time.process_time()
    HalfQuadraticRobustRegressor(alpha=12.0, l1_ratio=1.0, random_state=0).fit(X, y)
    rows["ours"] += (time.process_time() - begin,)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="results")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=900)
    parser.add_argument("--columns", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--kinds", nargs="+", default=["vertical", "leverage"])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1, 0.3])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds))
    cells = [each for each in CELLS if each[0] in args.kinds and each[1] in args.shares]
    columns = args.columns
    if args.quick:
        columns, cells = [120], CELLS[1:2]
    methods = METHODS[:3] if args.quick else args.methods
    _common.print_environment()
    path = _common.output_directory(args.output) / "sparse_regression.csv"
    heads = ("error", "(largest)", "found", "extra", "s search", "s fit")
    print(f"{'':30}" + "".join(f"{head:>10}" for head in heads))
    with warnings.catch_warnings(), path.open("w", newline="") as file:
        warnings.simplefilter("ignore", ConvergenceWarning)
        writer = csv.writer(file)
        names = ("ratio", "error", "found", "extra", "seconds", "fit_seconds")
        writer.writerow(["kind", "share", "p", "seed", "method", *names])
        for p in columns:
            for kind, share in cells:
                found = [measure(kind, p, share, seed, methods) for seed in seeds]
                for seed, rows in zip(seeds, found, strict=True):
                    for name, row in rows.items():
                        writer.writerow([kind, share, p, seed, name, *row])
                file.flush()
                for name in methods:
                    rows = np.array([each[name] for each in found])
                    middle = np.median(rows, axis=0)
                    label = f"{kind} {share:.0%} {N_ROWS}x{p} {name}"
                    line = f"{label:30}{middle[0]:10.2f}{rows[:, 0].max():10.2f}"
                    line += "".join(f"{value:10.2f}" for value in middle[2:])
                    print(line, flush=True)


if __name__ == "__main__":
    main()
