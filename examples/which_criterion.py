"""
Which criterion when?
=====================

How accurately should latent variables be inferred before the parameters are moved? Two
problems with opposite answers: in robust regression inference is cheap, and *less* of
it finds better minima; in contrastive Hebbian learning it is expensive, and too little
of it ruins the gradient.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ConvergenceDisplay,
    HalfQuadraticRobustRegressor,
)


# %%
# Robust regression: meet the criterion, but do not surpass it
# ------------------------------------------------------------
# Half of the rows are shifted upwards, all fits start from least squares, and the noise
# scale is given, so that nothing but the criterion differs. Exact weights ("fixed",
# which is iteratively reweighted least squares) and SuDeMM, which soon asks for them,
# trust the poor start; ReGeMM loosens the kernel as far as its guarantee allows.
def contaminated(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(200, 5))
    y = X @ np.arange(1.0, 6.0) + rng.normal(size=200)
    y[:100] += rng.uniform(3, 30, size=100)
    return X, y


failures = {}
for criterion in ("fixed", "sudemm", "regemm"):
    model = HalfQuadraticRobustRegressor(
        criterion=criterion, init="ols", scale=1.0, max_iter=1000
    )
    fits = [model.fit(*contaminated(seed)).coef_ for seed in range(10)]
    errors = np.linalg.norm(fits - np.arange(1.0, 6.0), axis=1)
    failures[criterion] = int(np.sum(errors > 1.0))
    print(f"{criterion:8s} fails on {failures[criterion]:2d} of 10 data sets")

hardest = contaminated(3)
ConvergenceDisplay.from_estimator(
    {
        criterion: HalfQuadraticRobustRegressor(
            criterion=criterion, init="ols", scale=1.0, max_iter=1000
        ).fit(*hardest)
        for criterion in failures
    }
)
plt.suptitle("Robust regression, 50 % outliers")

# %%
# Learning: as many passes as the gradient needs
# ----------------------------------------------
# With two passes the bounds are far apart and the upper one is no guide; with many,
# most of them are wasted at first. SuDeMM makes as many as the next step is worth.
X, y = load_digits(return_X_y=True)
X = X / 16
networks = {}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # eight epochs are not meant to converge
    for name, params in {
        "2 passes": {"criterion": "fixed", "n_passes": 2},
        "32 passes": {"criterion": "fixed", "n_passes": 32},
        "SuDeMM": {"criterion": "sudemm"},
    }.items():
        networks[name] = ContrastiveHebbianClassifier(
            (32, 32, 32), batch_size=50, max_iter=8, random_state=0, **params
        ).fit(X[:1200], y[:1200])

for name, model in networks.items():
    print(
        f"{name:10s} test accuracy {model.score(X[1200:], y[1200:]):.3f} after "
        f"{model.history_.work.sum():6.0f} passes"
    )
ConvergenceDisplay.from_estimator(networks)
plt.suptitle("Contrastive Hebbian learning")
plt.show()

# %%
# In short
# --------
# * "regemm" for non-convex objectives with poor starts, on full batches;
# * "sudemm" for mini-batches, and where the start is good;
# * "fixed" as a baseline: IRLS for regression, a number of passes for networks.
