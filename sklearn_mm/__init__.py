"""Truncated inference for models with latent variables, in scikit-learn's manner.

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

__version__ = "0.1.0.dev0"

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
