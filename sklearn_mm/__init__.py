"""Robust regression, nonlinear least squares and energy-based networks.

Estimators for models with latent variables, in scikit-learn's manner. Latent variables
are inferred only as accurately as a proven criterion asks (truncated inference), and
every fit reports certified bounds of its objective.

Robust regression, where some rows are wrong:

- `HalfQuadraticRobustRegressor`: linear models; scale and start are chosen by itself
- `RobustRegressor`: any other regressor that takes sample weights
- `robust_curve_fit`, `robust_least_squares`: `scipy.optimize.curve_fit` and
  `least_squares` with robust kernels; with a `BlockStructure` up to bundle adjustment
- `metrics`: scores and a scorer that outliers do not decide

Networks whose loss is certified:

- `ContrastiveHebbianClassifier`, `ContrastiveHebbianRegressor`: used like
  `MLPClassifier` and `MLPRegressor`, trained by contrastive Hebbian learning

Pictures: `RobustFitDisplay` (residuals, weights, outliers) and `ConvergenceDisplay`
(bounds over the iterations).

To be passed by name or as objects of your own: `kernels`, `criteria`, `losses`, and
`baselines` to compare with. `solver` runs latent-variable problems of your own.

A first fit::

    from sklearn_mm import HalfQuadraticRobustRegressor, RobustFitDisplay

    model = HalfQuadraticRobustRegressor().fit(X, y)
    model.coef_, model.scale_, model.inlier_mask_
    RobustFitDisplay.from_estimator(model, X, y)

Fitted estimators can be kept with pickle, joblib, cloudpickle or skops; predictions are
the same to the last bit. A file says which version of the package has written it, and
another version that reads it warns (`sklearn.exceptions.InconsistentVersionWarning`).
skops runs no code from the file; to be trusted are this package's own types, and those
of your own kernels and criteria::

    import skops.io

    skops.io.dump(model, "model.skops")
    types = skops.io.get_untrusted_types(file="model.skops")
    assert all(name.startswith("sklearn_mm.") for name in types)
    model = skops.io.load("model.skops", trusted=types)
"""

from sklearn_mm import baselines, criteria, kernels, losses, metrics, solver
from sklearn_mm._convergence_display import ConvergenceDisplay
from sklearn_mm._hebbian.classifier import ContrastiveHebbianClassifier
from sklearn_mm._hebbian.regressor import ContrastiveHebbianRegressor
from sklearn_mm._robust.block_structure import BlockStructure
from sklearn_mm._robust.curve_fit import robust_curve_fit
from sklearn_mm._robust.display import RobustFitDisplay
from sklearn_mm._robust.learner.regressor import RobustRegressor
from sklearn_mm._robust.least_squares import robust_least_squares
from sklearn_mm._robust.regressor import HalfQuadraticRobustRegressor

__version__ = "0.1.0"

__all__ = [
    "BlockStructure",
    "ContrastiveHebbianClassifier",
    "ContrastiveHebbianRegressor",
    "ConvergenceDisplay",
    "HalfQuadraticRobustRegressor",
    "RobustFitDisplay",
    "RobustRegressor",
    "baselines",
    "criteria",
    "kernels",
    "losses",
    "metrics",
    "robust_curve_fit",
    "robust_least_squares",
    "solver",
]
