"""Truncated inference for models with latent variables, in scikit-learn's manner."""

from sklearn_mm import criteria, kernels
from sklearn_mm._convergence_display import ConvergenceDisplay
from sklearn_mm._hebbian import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
)
from sklearn_mm._problems._block_structure import BlockStructure
from sklearn_mm._robust_fit_display import RobustFitDisplay
from sklearn_mm._robust_least_squares import robust_least_squares
from sklearn_mm._robust_regressor import HalfQuadraticRobustRegressor

__version__ = "0.1.0.dev0"

__all__ = [
    "BlockStructure",
    "ContrastiveHebbianClassifier",
    "ContrastiveHebbianRegressor",
    "ConvergenceDisplay",
    "HalfQuadraticRobustRegressor",
    "RobustFitDisplay",
    "criteria",
    "kernels",
    "robust_least_squares",
]
