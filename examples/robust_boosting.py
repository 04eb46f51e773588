"""
Gradient boosting that does not follow outliers
===============================================

A third of the targets are wrong, all in the same direction. Gradient boosting follows
them, and less so with the absolute error as its loss. Wrapped in `RobustRegressor`, it
finds out which rows are wrong, and fits the others.

::

    python examples/robust_boosting.py [FILE]
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from sklearn_mm import RobustRegressor

# %%
# Data
# ----
# A sensor that sometimes reads too much, and more often so on the left.
rng = np.random.default_rng(0)
n = 1000


def true_function(x):
    """A wave on a slope."""
    return np.sin(x) + 0.2 * x


X = rng.uniform(0, 10, size=(n, 1))
truth = true_function(X[:, 0])
y = truth + 0.1 * rng.normal(size=n)
wrong = rng.uniform(size=n) < np.where(X[:, 0] < 5, 0.4, 0.2)
y[wrong] += rng.uniform(1, 6, size=wrong.sum())

# %%
# Fits
# ----
settings = {"max_iter": 40, "random_state": 0}
models = {
    "squared error": HistGradientBoostingRegressor(**settings),
    "absolute error": HistGradientBoostingRegressor(loss="absolute_error", **settings),
    "RobustRegressor": RobustRegressor(
        HistGradientBoostingRegressor(**settings), random_state=0
    ),
}
for name, model in models.items():
    error = np.sqrt(np.mean((model.fit(X, y).predict(X) - truth) ** 2))
    print(f"{name:16} RMSE to the truth {error:.3f}")
robust = models["RobustRegressor"]
found = np.sum(wrong & ~robust.inlier_mask_)
print(f"wrong rows found: {found} of {wrong.sum()}")
print(f"right rows suspected: {np.sum(~wrong & ~robust.inlier_mask_)}")

# %%
# Picture
# -------
# On the right, how far each of the fits is from the truth, in 40 bins of the feature.
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
inlier = robust.inlier_mask_
left.scatter(X[inlier, 0], y[inlier], s=4, color="0.6", label="inliers")
left.scatter(X[~inlier, 0], y[~inlier], s=8, marker="x", c="C3", label="outliers")
grid = np.linspace(0, 10, 800)[:, None]
for (name, model), style in zip(models.items(), ("C0:", "C1--", "C2-"), strict=True):
    fitted = model.predict(grid)
    left.plot(grid, fitted, style, label=name)
    errors = (fitted - true_function(grid[:, 0])).reshape(40, -1)
    right.plot(grid[10::20, 0], np.sqrt(np.mean(errors**2, axis=1)), style)
left.set(xlabel="feature", ylabel="target", title="30 % outliers on one side")
left.set_ylim(top=11)
left.legend(fontsize=7, ncols=2, loc="upper left")
right.set(xlabel="feature", ylabel="RMSE to the truth", title="Error of the fits")
right.set(yscale="log", ylim=(1e-2, 10))
right.axhline(0.1, color="0.4", linewidth=0.8)
right.annotate("noise", (10, 0.1), ha="right", va="bottom", fontsize=8)
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=80)
plt.show()
