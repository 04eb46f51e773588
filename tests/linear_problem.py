"""Linear models as the solver sees them: for tests of what lies below the estimator."""

import numpy as np

from sklearn_mm._robust.linear import LinearResidual
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._robust.scaling import ColumnMoments
from sklearn_mm._rows.table import Rows


def frame_of(X, weight, fit_intercept=True, **rows):
    """How the columns of X are standardised."""
    moments = ColumnMoments.of(Rows.of(X, **rows), weight, fit_intercept)
    return moments.frame(X.dtype)


def make_model(
    X, Y, weight, fit_intercept=True, alpha=0.0, chunk_size=None, n_jobs=None
):
    """The residuals of X and Y, as they stand."""
    rows = Rows.of(X, chunk_size, n_jobs)
    frame, d = frame_of(X, weight, fit_intercept), Y.shape[1]
    return LinearResidual(rows, Y, frame, np.zeros(d), np.ones(d), alpha)


def make_problem(model, weight, kernel, tau):
    """A robust fit of a model."""
    return HalfQuadraticProblem(model, model.rows.beside, kernel, tau, weight)


def least_squares_bound(model, theta, weight):
    """Half the weighted squares of the residuals at theta, with the penalty."""
    point = model.at(theta)
    squares = np.square(point.residual).sum(axis=1)
    return weight @ squares / 2 + point.penalty
