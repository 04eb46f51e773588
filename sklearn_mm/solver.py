r"""Solver for custom latent-variable problems.

The objective is a sum over rows of minima over latent variables,
:math:`J(\theta) = \sum_i \min_{u_i} \bar J_i(\theta, u_i)`. To minimise it with the
criteria of this package, derive a class from `Problem` and define three methods:

``infer(point, latent, effort)``
    returns latent variables with the accuracy given by the effort, a number between 0
    (least accurate) and 1 (exact);
``evaluate(point, latent)``
    returns `Bounds` with :math:`\underline J \le J(\theta) \le \bar J`;
``minimize_upper(point, latent)``
    returns the theta that minimises the upper bound for fixed latent variables, the
    decrease of the upper bound, and the relative size of the change of theta.

Then call `solve`. A point contains what is known at a theta, by default only
``point.theta``. Override ``at(theta)`` to compute quantities that several methods need,
such as distances, only once per theta.

See ``examples/own_problem.py`` for k-means as an example.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sklearn.utils import Bunch

from sklearn_mm._solver.history import History
from sklearn_mm._solver.loop import Status
from sklearn_mm._solver.roles import Array, Batch, Bounds
from sklearn_mm._solver.stages import Stage, run_stages
from sklearn_mm._solver.steps import SurrogateMinimizer
from sklearn_mm.criteria import Fixed, get_criterion

__all__ = ["Bounds", "Point", "Problem", "Solution", "Status", "solve"]

_EXACT = 1.0
# Exact inference takes over when the certificate of the criterion is this tight.
_HANDOVER = 1e-3


@dataclass(frozen=True)
class Point:
    """What is known at a theta. Derive from it to store more.

    Parameters
    ----------
    theta : ndarray
        The parameters.
    """

    theta: Array


class Problem:
    """Base class for problems to pass to `solve`.

    Subclasses must define `infer`, `evaluate` and `minimize_upper`.
    """

    def at(self, theta: Array) -> Any:
        """Compute what is known at a theta.

        Parameters
        ----------
        theta : ndarray
            The parameters.

        Returns
        -------
        point : Point
            Object with an attribute ``theta``.
        """
        return Point(theta)

    def start(self, batch: Batch) -> Any:
        """Latent variables before the first inference at a theta. None by default.

        Parameters
        ----------
        batch : slice
            All rows.

        Returns
        -------
        latent : object
            Passed to the first call of `infer`.
        """
        return None

    def infer(self, point: Any, latent: Any, effort: float) -> Any:
        """Infer latent variables with a given effort.

        Parameters
        ----------
        point : Point
            What is known at theta.
        latent : object
            The last latent variables at this point, or the value of `start`.
        effort : float
            Effort in [0, 1]: 0 is least accurate, 1 is exact. The upper bound must
            decrease with the effort.

        Returns
        -------
        latent : object
            The latent variables, in any form.
        """
        raise NotImplementedError

    def evaluate(self, point: Any, latent: Any) -> Bounds:
        """Compute bounds of the objective.

        Parameters
        ----------
        point : Point
            What is known at theta.
        latent : object
            The latent variables.

        Returns
        -------
        bounds : Bounds
            ``Bounds(upper, lower)``. The lower bound may be J itself if that is cheap
            to evaluate.
        """
        raise NotImplementedError

    def minimize_upper(self, point: Any, latent: Any) -> tuple[Array, float, float]:
        """Minimise the upper bound over theta.

        Parameters
        ----------
        point : Point
            What is known at theta.
        latent : object
            The latent variables, which are kept fixed.

        Returns
        -------
        theta : ndarray
            The minimiser.
        decrease : float
            Decrease of the upper bound from the point to the minimiser.
        change : float
            Size of the change of theta, relative to a quantity that makes `tol`
            meaningful.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Solution:
    """Result of `solve`.

    Parameters
    ----------
    theta : ndarray
        The parameters.
    point : Point
        What is known at these parameters.
    status : Status
        Reason for termination; ``status.value`` is a message.
    n_iter : int
        Number of updates.
    history : Bunch
        One array per quantity and one entry per update: `upper_bound`, `lower_bound`,
        `gap`, `effort`, `decrease`, `change` and others. Use `ConvergenceDisplay` to
        plot it.
    """

    theta: Array
    point: Any
    status: Status
    n_iter: int
    history: Bunch


def solve(
    problem: Any,
    theta: Array,
    *,
    criterion: Any = "regemm",
    effort: float = 0.0,
    max_iter: int = 100,
    tol: float = 1e-6,
    step: Any = None,
) -> Solution:
    """Minimise the objective of a latent-variable problem.

    Parameters
    ----------
    problem : Problem
        The problem.

    theta : ndarray
        Initial parameters.

    criterion : {"regemm", "sudemm", "fixed", "graduated"} or Criterion, \
            default="regemm"
        How accurately latent variables are inferred before theta is updated. "fixed" is
        plain majorization-minimization with exact latent variables.

    effort : float, default=0.0
        Effort of the first inference. Smaller values put less trust in the initial
        parameters.

    max_iter : int, default=100
        Maximum number of updates.

    tol : float, default=1e-6
        Tolerance for the stopping criterion. The solver stops when an update with exact
        latent variables changes theta by less than `tol`, as measured by the problem.

    step : object, default=None
        Rule for the update of theta. If None, theta is the minimiser of the upper
        bound.

    Returns
    -------
    solution : Solution
        Parameters, status and history.

    Examples
    --------
    Compute the median of numbers. The absolute deviations are minima over weights u of
    ``u * (x - theta)**2 / 2 + 1 / (2 * u)``:

    >>> import numpy as np
    >>> from sklearn_mm.solver import Bounds, Problem, solve
    >>> x = np.array([0.0, 1.0, 2.0, 3.0, 50.0])
    >>> class Median(Problem):
    ...     def infer(self, point, latent, effort):
    ...         distance = np.maximum(np.abs(x - point.theta), 1e-6)
    ...         return effort / distance + (1 - effort) * np.mean(1 / distance)
    ...     def evaluate(self, point, u):
    ...         square = (x - point.theta) ** 2
    ...         upper = np.sum(u * square / 2 + 1 / (2 * u))
    ...         return Bounds(upper, np.sum(np.sqrt(square)))
    ...     def minimize_upper(self, point, u):
    ...         theta = np.array([u @ x / u.sum()])
    ...         move = float(theta[0] - point.theta[0])
    ...         return theta, u.sum() * move**2 / 2, abs(move)
    >>> solution = solve(Median(), np.array([10.0]), tol=1e-4)
    >>> print(solution.theta.round(2))
    [2.]
    """
    criterion = get_criterion(criterion, effort=_EXACT)
    step = SurrogateMinimizer() if step is None else step
    exact = Fixed(_EXACT)
    first = Stage(problem, criterion, step, max(tol, _HANDOVER), effort)
    last = Stage(problem, exact, step, tol, _EXACT)
    history = History()
    result = run_stages(
        None if criterion == exact else first,
        last,
        problem.at(theta),
        history,
        max_iter,
    )
    return Solution(
        result.point.theta,
        result.point,
        result.status,
        len(history),
        history.to_bunch(),
    )
