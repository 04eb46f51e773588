"""
Choosing a model when the validation folds have outliers
=========================================================

A robust fit is only half of the solution: if training rows are wrong, so are rows of
the validation folds. R² is dominated by those, and selects a model by chance. A bounded
loss is determined by the other rows, if all models are judged with the same scale.

::

    python examples/robust_model_selection.py [FILE]
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import SplineTransformer

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm.metrics import bounded_loss, robust_scorer

# %%
# Data
# ----
# A curve, with a fifth of the targets replaced by nonsense.
rng = np.random.default_rng(3)
X = rng.uniform(0, 1, size=(150, 1))
truth = np.sin(12 * X[:, 0]) + 2 * X[:, 0]
y = truth + 0.3 * rng.normal(size=150)
wrong = rng.permutation(150) < 30
y[wrong] += rng.uniform(20, 60, size=30)

# %%
# Three searches
# --------------
# How much should the spline be smoothed? The second scorer takes its scale from one
# reference model. The third one measures every model in units of its own scale, which
# is a mistake: the worse a model, the larger its scale, and the more it is forgiven.
model = make_pipeline(
    SplineTransformer(20, extrapolation="linear"),
    HalfQuadraticRobustRegressor(alpha=0.1, max_iter=300, random_state=0),
)
alphas = np.logspace(-5, 4, 10)


def own_scale(estimator, X, y):
    scale = estimator[-1].scale_
    return -bounded_loss(y, estimator.predict(X), scale=scale)


scorers = {
    "R²": "r2",
    "robust_scorer": robust_scorer(model.fit(X, y)),
    "own scale (wrong)": own_scale,
}
searches = {}
for name, scoring in scorers.items():
    search = GridSearchCV(
        model,
        {"halfquadraticrobustregressor__alpha": alphas},
        scoring=scoring,
        cv=5,
    )
    searches[name] = search.fit(X, y)
    error = np.sqrt(np.mean((search.predict(X) - truth) ** 2))
    (chosen,) = search.best_params_.values()
    print(f"{name:18} alpha {chosen:g}, RMSE to the truth {error:.3f}")

# %%
# Picture
# -------
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
for (name, search), style in zip(searches.items(), "os^", strict=True):
    scores = search.cv_results_["mean_test_score"]
    low, high = scores.min(), scores.max()
    axes[0].semilogx(alphas, (scores - low) / (high - low), f"{style}-", label=name)
axes[0].set(
    xlabel="alpha", ylabel="score (worst to best)", title="Mean score of 5 folds"
)
axes[0].legend(fontsize=8)
axes[1].scatter(X[:, 0], y, s=6, color="0.6")
grid = np.linspace(0, 1, 300)[:, None]
for (name, search), style in zip(searches.items(), ("-", "-", "--"), strict=True):
    axes[1].plot(grid, search.predict(grid), style, label=name)
axes[1].set(xlabel="feature", ylabel="target", ylim=(-2, 5))
axes[1].set_title("Chosen models (outliers are off the scale)")
axes[1].legend(fontsize=8)
if len(sys.argv) > 1:
    figure.savefig(sys.argv[1], dpi=80)
plt.show()
