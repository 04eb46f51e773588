"""Robust regression, nonlinear least squares and energy-based networks.

Scikit-learn compatible estimators for models with latent variables. Latent variables
are inferred only as accurately as a criterion with convergence guarantees requires
(truncated inference), and each fit reports certified bounds of its objective.

Robust regression for data with outliers:

- `HalfQuadraticRobustRegressor`: linear models, with automatic scale and start
- `RobustRegressor`: any other regressor that supports sample weights
- `robust_curve_fit`, `robust_least_squares`: `scipy.optimize.curve_fit` and
  `least_squares` with robust kernels, for problems up to the size of bundle adjustment
  (with a `BlockStructure`)
- `metrics`: metrics and a scorer that are robust to outliers

Networks with a certified loss:

- `ContrastiveHebbianClassifier`, `ContrastiveHebbianRegressor`: used like
  `MLPClassifier` and `MLPRegressor`, trained by contrastive Hebbian learning

Displays: `RobustFitDisplay` (residuals, weights, outliers) and `ConvergenceDisplay`
(bounds during the iterations).

The modules `kernels`, `criteria`, `losses` and `baselines` contain the objects that can
be passed to estimators by name, and base classes for custom ones. `solver` solves
custom latent-variable problems.

A first fit::

    from sklearn_mm import HalfQuadraticRobustRegressor, RobustFitDisplay

    model = HalfQuadraticRobustRegressor().fit(X, y)
    model.coef_, model.scale_, model.inlier_mask_
    RobustFitDisplay.from_estimator(model, X, y)

Fitted estimators can be saved with pickle, joblib, cloudpickle or skops, without any
change of their predictions. A file contains the version of the package that has written
it, and loading it with another version gives a warning
(`sklearn.exceptions.InconsistentVersionWarning`). skops does not execute code from the
file. The types of this package, and those of custom kernels and criteria, have to be
trusted::

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
