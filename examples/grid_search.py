"""
Grid search in a pipeline
=========================

Kernel and width of a robust regressor, chosen by cross-validation inside a pipeline.
Two things to know: outliers are in the validation folds as well, so that the score has
to be robust, too (the median absolute error), and parameters are named after the step.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mm import HalfQuadraticRobustRegressor, RobustFitDisplay

# %%
# Data
# ----
# Diabetes progression, with every fifth target replaced by nonsense.
X, y = load_diabetes(return_X_y=True)
rng = np.random.default_rng(0)
wrong = rng.choice(len(y), size=len(y) // 5, replace=False)
y[wrong] = rng.uniform(500, 1000, size=len(wrong))

# %%
# Search
# ------
# `tuning` is the width of the kernel in noise scales; None would give 95 % efficiency.
pipeline = make_pipeline(
    StandardScaler(), HalfQuadraticRobustRegressor(random_state=0, max_iter=300)
)
step = "halfquadraticrobustregressor__"
kernels, tunings = ["tukey", "welsch"], [1.5, 2.5, 4.0, 6.0]
search = GridSearchCV(
    pipeline,
    {f"{step}kernel": kernels, f"{step}tuning": tunings},
    scoring="neg_median_absolute_error",
    cv=3,
).fit(X, y)
print("chosen:", {k.removeprefix(step): v for k, v in search.best_params_.items()})
print(f"median absolute error {-search.best_score_:.1f}")
found = np.flatnonzero(~search.best_estimator_[-1].inlier_mask_)
print(f"nonsense found: {np.isin(wrong, found).sum()} of {len(wrong)} rows")

# %%
# Results
# -------
# The display looks into searches and pipelines; it shows which rows the best model
# takes for nonsense.
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
scores = -search.cv_results_["mean_test_score"].reshape(len(kernels), len(tunings))
for kernel, curve in zip(kernels, scores, strict=True):
    left.plot(tunings, curve, "o-", label=kernel)
left.set(xlabel="tuning (noise scales)", ylabel="median absolute error, 3 folds")
left.legend(title="kernel")
RobustFitDisplay.from_estimator(search, X, y, ax=right)
right.set_title("The chosen model")
plt.show()
