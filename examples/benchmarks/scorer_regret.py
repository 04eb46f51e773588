"""What it costs to choose a model on contaminated folds, by scorer.

    python examples/benchmarks/scorer_regret.py --output results/

A grid of models is cross-validated (5 folds) on contaminated data, a scorer picks one,
and all are fitted to the training data and compared on clean new rows. The regret is
the RMSE to the noise-free targets of the picked model over that of the best one.

- "penalty": a robust linear model, 100 rows, 30 correlated features, seven penalties.
- "knots": a robust spline in one variable, 150 rows, 3 to 30 knots.
- "learner": least squares, Huber and robust linear models with three penalties each.

Outliers lie on one side, at 5 to 50 noise scales. "robust" is `robust_scorer` with the
scale of one reference model, the robust one in the middle of the grid; "own scale" is
the bounded loss in units of each model's own scale.
"""

from __future__ import annotations

import argparse
import csv
import warnings

import _common  # pins threads first

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import HuberRegressor, Ridge
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm.metrics import bounded_loss, robust_scorer

SHARES = (0.0, 0.1, 0.2, 0.3)
SCORERS = ("R2", "MAE", "own scale", "robust")


def robust(alpha):
    return HalfQuadraticRobustRegressor(alpha=alpha, max_iter=300, random_state=0)


def penalty(rng, n):
    mixing = rng.normal(size=(30, 30))
    X = rng.normal(size=(n, 30)) @ mixing / np.sqrt(30) + rng.normal(size=(n, 30)) / 3
    coef = np.random.default_rng(5).normal(size=30)
    models = [robust(alpha) for alpha in np.logspace(-2, 4, 7)]
    return X, X @ coef, 3.0, models, models[2]


def knots(rng, n):
    X = rng.uniform(0, 1, size=(n, 1))
    truth = np.sin(12 * X[:, 0]) + 2 * X[:, 0]
    models = [
        make_pipeline(SplineTransformer(k, extrapolation="linear"), robust(1e-3))
        for k in (3, 5, 8, 12, 20, 30)
    ]
    return X, truth, 0.5, models, models[2]


def learner(rng, n):
    X = rng.normal(size=(n, 15))
    coef = np.random.default_rng(6).normal(size=15)
    alphas = (0.1, 10.0, 1000.0)
    models = [Ridge(alpha) for alpha in alphas]
    models += [HuberRegressor(alpha=alpha, max_iter=10_000) for alpha in alphas]
    models += [robust(alpha) for alpha in alphas]
    return X, X @ coef, 1.0, models, models[7]


SETTINGS = {"penalty": (penalty, 100), "knots": (knots, 150), "learner": (learner, 100)}


def own_scale(model, X, y):
    """A robust model's scale, or that of the median residual."""
    scale = getattr(model[-1] if hasattr(model, "steps") else model, "scale_", None)
    if isinstance(scale, float):
        return scale
    return float(np.median(np.abs(y - model.predict(X)))) / 0.6745


def measure(setting, share, seed):
    """Regret of every scorer."""
    make, n = SETTINGS[setting]
    rng = np.random.default_rng([seed, sum(map(ord, setting)), round(100 * share)])
    X, truth, noise, models, reference = make(rng, n + 2000)
    y = truth + noise * rng.normal(size=n + 2000)
    X, X_new, y, truth_new = X[:n], X[n:], y[:n], truth[n:]
    bad = rng.permutation(n) < share * n
    y[bad] += noise * rng.uniform(5, 50, size=bad.sum())
    scorer = robust_scorer(clone(reference).fit(X, y))
    scores = np.zeros((len(SCORERS), len(models)))
    errors = []
    folds = list(KFold(5, shuffle=True, random_state=seed).split(X))
    for j, model in enumerate(models):
        fitted = clone(model).fit(X, y)
        errors.append(np.sqrt(np.mean((fitted.predict(X_new) - truth_new) ** 2)))
        for train, test in folds:
            fitted = clone(model).fit(X[train], y[train])
            residual = y[test] - fitted.predict(X[test])
            scale = own_scale(fitted, X[train], y[train])
            scores[:, j] += (
                1.0 - np.mean(residual**2) / np.var(y[test]),
                -np.mean(np.abs(residual)),
                -bounded_loss(residual, 0 * residual, scale=scale),
                scorer(fitted, X[test], y[test]),
            )
    picked = np.asarray(errors)[np.argmax(scores, axis=1)]
    return dict(zip(SCORERS, picked / min(errors), strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="results")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=500)
    parser.add_argument(
        "--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS)
    )
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + (1 if args.quick else args.seeds))
    _common.print_environment()
    path = _common.output_directory(args.output) / "scorer_regret.csv"
    print(f"{'median (90 %)':16}" + "".join(f"{name:>18}" for name in SCORERS))
    with warnings.catch_warnings(), path.open("w", newline="") as file:
        warnings.simplefilter("ignore", ConvergenceWarning)
        writer = csv.DictWriter(file, ("setting", "share", "seed", *SCORERS))
        writer.writeheader()
        for setting in args.settings:
            for share in [0.2] if args.quick else args.shares:
                rows = [measure(setting, share, seed) for seed in seeds]
                for seed, row in zip(seeds, rows, strict=True):
                    writer.writerow(
                        {"setting": setting, "share": share, "seed": seed, **row}
                    )
                line = f"{setting:10}{share:6.0%}"
                for name in SCORERS:
                    regret = [row[name] for row in rows]
                    line += (
                        f"{np.median(regret):9.2f} ({np.quantile(regret, 0.9):6.2f})"
                    )
                print(line, flush=True)


if __name__ == "__main__":
    main()
