"""
Gradient boosting that does not follow outliers
===============================================

A third of the targets are wrong, all in the same direction. Gradient boosting follows
them; with the absolute error as its loss it follows them less; wrapped in
`RobustRegressor` it finds out which rows are wrong, and fits the others.

    python examples/robust_boosting.py [FILE]
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from sklearn_mm import ConvergenceDisplay, RobustRegressor

# %%
# Data
# ----
# A sensor that sometimes reads too much, and more often so on the left.
rng = np.random.default_rng(0)
n = 1000
X = rng.uniform(0, 10, size=(n, 1))
truth = np.sin(X[:, 0]) + 0.2 * X[:, 0]
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
# Bounds on the right are those of the robust loss of the out-of-fold residuals.
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
inlier = robust.inlier_mask_
left.scatter(X[inlier, 0], y[inlier], s=4, color="0.6", label="inliers")
left.scatter(X[~inlier, 0], y[~inlier], s=8, marker="x", c="C3", label="outliers")
grid = np.linspace(0, 10, 500)[:, None]
for (name, model), style in zip(models.items(), ("C0:", "C1--", "C2-"), strict=True):
    left.plot(grid, model.predict(grid), style, label=name)
left.set(xlabel="feature", ylabel="target", title="30 % outliers on one side")
left.set_ylim(top=11)
left.legend(fontsize=7, ncols=2, loc="upper left")
ConvergenceDisplay.from_estimator(robust, ax=right)
right.axhline(robust.history_.plain_loss, color="0.4", linestyle=":")
right.annotate("plain fit", (1, robust.history_.plain_loss), va="bottom", fontsize=8)
right.margins(y=0.1)
rounds = 1 + np.arange(robust.n_iter_)
right.set(title="Robust loss of out-of-fold residuals", xlabel="round", xticks=rounds)
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=80)
plt.show()
