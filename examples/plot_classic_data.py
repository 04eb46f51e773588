"""
Classic data sets
=================

Tables of the literature on robust regression, with default settings. Three ship with
statsmodels:

* Stack loss (Brownlee): rows 1, 3, 4 and 21 are taken for outliers by most authors.
* Murder rates of the states of the US against the share of single-parent households:
  the District of Columbia pulls least squares to a slope that is half as large again.
* Engel's food expenditure of Belgian households: the noise grows with income, and so
  the rows that are flagged are those of rich households, a reminder that flags are
  about the model as much as about the rows.

Three more are drawn where their tables are at hand (see `datasets.py`):

* Hawkins, Bradu and Kass: rows 1 to 10 are bad leverage points; 11 to 14 lie as far out
  but follow the other rows, and are to be kept.
* The star cluster CYG OB1: four giants pull least squares to a slope of the wrong sign.
* Belgian telephone calls: from 1964 to 1969 another quantity was recorded.
"""

import matplotlib.pyplot as plt
import numpy as np
from datasets import load_classic
from sklearn.linear_model import LinearRegression
from statsmodels.datasets import engel, stackloss, statecrime

from sklearn_mm import HalfQuadraticRobustRegressor, RobustFitDisplay

# %%
# Data
# ----
# Each as features, targets, names of rows, and labels of the axes.
stack, crime, food = (
    module.load_pandas().data for module in (stackloss, statecrime, engel)
)


def numbers(y):
    """Rows are called by their number, from one."""
    return [str(i + 1) for i in range(len(y))]


loss = stack["STACKLOSS"].to_numpy()
features = stack[["AIRFLOW", "WATERTEMP", "ACIDCONC"]].to_numpy()
sets = {
    "Stack loss": (features, loss, numbers(loss), ()),
    "Murder rates": (
        crime[["single"]].to_numpy(),
        crime["murder"].to_numpy(),
        list(crime.index),
        ("single-parent households (%)", "murders per 100,000"),
    ),
    "Engel's food expenditure": (
        food[["income"]].to_numpy(),
        food["foodexp"].to_numpy(),
        [""] * len(food),
        ("income (Belgian francs)", "food expenditure"),
    ),
}
for name, title, labels in (
    ("hbk", "Hawkins–Bradu–Kass", ()),
    (
        "starsCYG",
        "Stars of CYG OB1",
        ("log surface temperature", "log light intensity"),
    ),
    ("telef", "Belgian telephone calls", ("year (19..)", "calls (ten millions)")),
):
    data = load_classic(name)
    if data is not None:
        sets[title] = (*data, numbers(data[1]), labels)

# %%
# Fits
# ----
# For one feature the lines are drawn, and the names of the rows that are flagged; for
# more, residuals against predictions. The band is three noise scales wide on either
# side.
n_rows = len(sets) // 3
fig, axes = plt.subplots(n_rows, 3, figsize=(13, 4.2 * n_rows), layout="constrained")
for ax, (title, (X, y, names, labels)) in zip(axes.flat, sets.items(), strict=True):
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    flagged = np.flatnonzero(~model.inlier_mask_)
    told = [names[i] for i in flagged if names[i]]
    print(f"{title}: {len(flagged)} of {len(y)} rows flagged: {', '.join(told) or '–'}")
    RobustFitDisplay.from_estimator(model, X, y, ax=ax)
    ax.set_title(title)
    single = X.shape[1] == 1
    if single:
        grid = np.linspace(X.min(), X.max(), 2)[:, None]
        ols = LinearRegression().fit(X, y).predict(grid)
        ax.plot(grid, ols, "--", color="0.5", label="least squares")
        handles = ax.get_legend_handles_labels()
        ax.legend(*handles, loc="upper center", ncols=2, fontsize="small")
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.1 * (high - low))  # the legend has a line more
    if labels:
        ax.set(xlabel=labels[0], ylabel=labels[1])
    predicted = model.predict(X)
    places = np.column_stack([X[:, 0], y] if single else [predicted, y - predicted])
    for i in flagged if len(flagged) <= 8 else []:
        left = places[i, 0] > ax.get_xlim()[0] + 0.2 * np.ptp(ax.get_xlim())
        ax.annotate(
            names[i],
            places[i],
            xytext=(-6, -3) if left else (6, -3),
            textcoords="offset points",
            ha="right" if left else "left",
            size=7,
        )
plt.show()
