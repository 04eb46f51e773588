"""
Classic data sets
=================

Four data sets of the robust regression literature, with default settings.

* Hawkins, Bradu and Kass: rows 1 to 10 are bad leverage points; 11 to 14 lie as far out
  but follow the other rows, and are to be kept.
* The star cluster CYG OB1: four giants pull least squares to a slope of the wrong sign.
* Stack loss: rows 1, 3, 4 and 21 are taken for outliers by most authors.
* Belgian telephone calls: from 1964 to 1969 another quantity was recorded.

Without the data at hand, each is replaced by a made-up one and called so.
"""

import matplotlib.pyplot as plt
import numpy as np
from datasets import load_classic
from sklearn.linear_model import LinearRegression

from sklearn_mm import HalfQuadraticRobustRegressor, RobustFitDisplay

TITLES = {
    "hbk": "Hawkins–Bradu–Kass",
    "starsCYG": "Stars of CYG OB1",
    "stackloss": "Stack loss",
    "telef": "Belgian telephone calls",
}
LABELS = {
    "starsCYG": ("log surface temperature", "log light intensity"),
    "telef": ("year (19..)", "calls (ten millions)"),
}


# %%
# Data
# ----
def made_up(seed):
    """A line with a fifth of the rows far away from it."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 10, size=(40, 1))
    y = 2.0 * X[:, 0] + 1.0 + 0.3 * rng.normal(size=40)
    y[:8] = 15.0 - X[:8, 0]
    return X, y


sets = {}
for i, name in enumerate(TITLES):
    data = load_classic(name)
    if data is None:
        sets[f"Made up, in place of {TITLES[name]}"] = made_up(i), ("x", "y")
    else:
        sets[TITLES[name]] = data, LABELS.get(name, ())

# %%
# Fits
# ----
# For one feature the lines are drawn, and the numbers of the rows that are flagged; for
# more, residuals against predictions. The band is three noise scales wide on either
# side.
fig, axes = plt.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
for ax, (title, ((X, y), labels)) in zip(axes.flat, sets.items(), strict=True):
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    flagged = np.flatnonzero(~model.inlier_mask_)
    print(f"{title}: flagged rows: {(flagged + 1).tolist()}")
    RobustFitDisplay.from_estimator(model, X, y, ax=ax)
    ax.set_title(title)
    if X.shape[1] == 1:
        grid = np.linspace(X.min(), X.max(), 2)[:, None]
        ols = LinearRegression().fit(X, y).predict(grid)
        ax.plot(grid, ols, "--", color="0.5", label="least squares")
        for i in flagged:
            ax.annotate(
                str(i + 1),
                (X[i, 0], y[i]),
                xytext=(3, 3),
                textcoords="offset points",
                fontsize=7,
                color="C3",
            )
        ax.set(**dict(zip(("xlabel", "ylabel"), labels, strict=False)))
    ax.legend(fontsize=8)
plt.show()
