"""
The package in one picture
==========================

Left: a line through data of which two fifths are outliers, half of them in a cluster of
leverage points. Right: the certified bounds of the objective, after a start from least
squares, when weights are inferred exactly (IRLS), and when ReGeMM decides how
accurately.

::

    python examples/overview.py [FILE]
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import HuberRegressor, LinearRegression

from sklearn_mm import (
    ConvergenceDisplay,
    HalfQuadraticRobustRegressor,
    RobustFitDisplay,
)

# %%
# Data
# ----
rng = np.random.default_rng(1)
X = rng.uniform(0, 10, size=(200, 1))
y = 1.5 * X[:, 0] + 2.0 + 0.5 * rng.normal(size=200)
y[:40] += rng.uniform(4, 20, size=40)
X[40:80] = rng.normal(15, 0.5, size=(40, 1))
y[40:80] = rng.normal(3, 0.8, size=40)

# %%
# Fits
# ----
model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
print(f"slope {model.coef_[0]:.2f} (1.5), intercept {model.intercept_:.2f} (2)")
peers = {"least squares": LinearRegression(), "Huber": HuberRegressor()}
Z = rng.normal(size=(500, 4))
t = Z @ [1.0, -2.0, 0.5, 3.0] + 4.0 + 0.5 * rng.normal(size=500)
t[:250] += rng.uniform(2, 20, size=250)
runs = {
    name: HalfQuadraticRobustRegressor(
        criterion=criterion, init="ols", scale=0.5, max_iter=1000
    )
    for name, criterion in {"IRLS": "fixed", "ReGeMM": "regemm"}.items()
}
for run in runs.values():
    run.fit(Z, t)

# %%
# Picture
# -------
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
RobustFitDisplay.from_estimator(
    model, X, y, ax=left, line_kwargs={"label": "HalfQuadraticRobustRegressor"}
)
for (name, peer), style in zip(peers.items(), (":", "--"), strict=True):
    across = np.array([[0.0], [16.0]])
    left.plot(across, peer.fit(X, y).predict(across), style, color="0.4", label=name)
left.set(title="A line through 40 % outliers, nothing tuned", ylim=(-2, 50))
left.legend(fontsize=7, loc="upper left", ncols=2)
ConvergenceDisplay.from_estimator(runs, ax=right)
right.set(title="Certified bounds, 50 % outliers", xlim=(0.5, 15.5))
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=80)
plt.show()
