"""
Robust regression in ten lines
==============================

Two fifths of the rows are corrupted: half of these are shifted upwards, the others sit
in a cluster of leverage points that pulls ordinary fits towards it.
"""

import time

import numpy as np
from sklearn.linear_model import (
    HuberRegressor,
    LinearRegression,
    RANSACRegressor,
    TheilSenRegressor,
)

from sklearn_mm import HalfQuadraticRobustRegressor

# %%
# Data with 40 % outliers
# -----------------------
rng = np.random.default_rng(0)
n, coef, intercept = 500, np.array([1.0, -2.0, 0.5, 3.0]), 4.0
X = rng.normal(size=(n, 4))
y = X @ coef + intercept + 0.5 * rng.normal(size=n)
y[:100] += rng.uniform(5, 50, size=100)
X[100:200] = [8.0, 0.0, 0.0, 0.0] + 0.5 * rng.normal(size=(100, 4))
y[100:200] = -30.0 + 0.5 * rng.normal(size=100)
truth = np.arange(n) >= 200  # the inliers

# %%
# Fit, without tuning anything
# ----------------------------
model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
print(f"true coefficients  {coef}, intercept {intercept}, noise 0.5")
print(
    f"fitted             {model.coef_.round(2)}, intercept {model.intercept_:.2f}, "
    f"noise {model.scale_:.2f}"
)
found = np.sum(~model.inlier_mask_ & ~truth)
print(f"outliers found     {found} of {np.sum(~truth)}")
print(f"rows lost          {np.sum(~model.inlier_mask_ & truth)} of {truth.sum()}")
history = model.history_
print(
    f"certificate        J is between {history.lower_bound[0]:.4f} and "
    f"{history.upper_bound[0]:.4f} after one iteration, "
    f"{history.lower_bound[-1]:.4f} at the end"
)

# %%
# Compared with scikit-learn's own regressors
# -------------------------------------------
oracle = LinearRegression().fit(X[truth], y[truth])
peers = {
    "oracle (knows the inliers)": oracle,
    "HalfQuadraticRobustRegressor": HalfQuadraticRobustRegressor(random_state=0),
    "LinearRegression": LinearRegression(),
    "HuberRegressor": HuberRegressor(max_iter=1000),
    "RANSACRegressor": RANSACRegressor(random_state=0),
    "TheilSenRegressor": TheilSenRegressor(random_state=0),
}
print(f"\n{'':30s} {'coefficient error':>18s} {'seconds':>8s}")
for name, peer in peers.items():
    start = time.perf_counter()
    if peer is not oracle:
        peer.fit(X, y)
    seconds = time.perf_counter() - start
    fitted = getattr(peer, "estimator_", peer)
    error = np.linalg.norm(fitted.coef_ - coef)
    print(f"{name:30s} {error:18.3f} {seconds:8.2f}")

# %%
# What the fit made of each row
# -----------------------------
# Residuals against predictions: the inliers in their band, shifted rows above it, and
# the cluster of leverage points far below.
try:
    import matplotlib.pyplot as plt

    from sklearn_mm import RobustFitDisplay
except ImportError:
    print('\nTo see the outliers: pip install "sklearn-mm[plot]", and run again')
else:
    display = RobustFitDisplay.from_estimator(model, X, y)
    display.ax_.set_title("Residuals of a robust fit, 40 % outliers")
    plt.show()
