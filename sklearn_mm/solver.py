r"""The solver, for latent-variable problems of your own.

The objective is a sum over rows of minima over latent variables,
:math:`J(\theta) = \sum_i \min_{u_i} \bar J_i(\theta, u_i)`. To minimise it with the
criteria of this package, write a class that derives from `Problem` and has three
methods:

``infer(point, latent, effort)``
    returns latent variables that are as accurate as the effort, a number from 0 (as
    loose as can be) to 1 (exact), asks for;
``evaluate(point, latent)``
    returns `Bounds` with :math:`\underline J \le J(\theta) \le \bar J`;
``minimize_upper(point, latent)``
    returns the theta that minimises the upper bound with the latent variables held
    fixed, the decrease on the way there, and the relative size of the move.

Then call `solve`. A point is what is known at a theta; by default ``point.theta`` is
all. Override ``at(theta)`` to compute what several of the methods need (distances, say)
once for each theta.

``examples/own_problem.py`` does all of this for k-means.
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
# Exact latents take over when the criterion's certificate is this tight.
_HANDOVER = 1e-3


@dataclass(frozen=True)
class Point:
    """What is known at a theta; derive from it to carry more.

    Parameters
    ----------
    theta : ndarray
        The parameters.
    """

    theta: Array


class Problem:
    """Base class of problems for `solve`.

    Subclasses define `infer`, `evaluate` and `minimize_upper`.
    """

    def at(self, theta: Array) -> Any:
        """What is known at a theta.

        Parameters
        ----------
        theta : ndarray
            The parameters.

        Returns
        -------
        point : Point
            An object with an attribute ``theta``.
        """
        return Point(theta)

    def start(self, batch: Batch) -> Any:
        """Latent variables before the first inference at a theta; None by default.

        Parameters
        ----------
        batch : slice
            All rows.

        Returns
        -------
        latent : object
            What `infer` receives first.
        """
        return None

    def infer(self, point: Any, latent: Any, effort: float) -> Any:
        """Latent variables of an effort in [0, 1].

        Parameters
        ----------
        point : Point
            What is known at theta.
        latent : object
            What was inferred last at this point, or the value of `start`.
        effort : float
            0 is as loose as can be, 1 is exact. The upper bound must fall with it.

        Returns
        -------
        latent : object
            The latent variables, in any form.
        """
        raise NotImplementedError

    def evaluate(self, point: Any, latent: Any) -> Bounds:
        """Bounds of the objective.

        Parameters
        ----------
        point : Point
            What is known at theta.
        latent : object
            The latent variables.

        Returns
        -------
        bounds : Bounds
            ``Bounds(upper, lower)``. The lower bound may be J itself where that is
            cheap.
        """
        raise NotImplementedError

    def minimize_upper(self, point: Any, latent: Any) -> tuple[Array, float, float]:
        """Minimise the upper bound over theta.

        Parameters
        ----------
        point : Point
            What is known at theta.
        latent : object
            The latent variables, which are held fixed.

        Returns
        -------
        theta : ndarray
            The minimiser.
        decrease : float
            Decrease of the upper bound from the point to the minimiser.
        change : float
            Size of the move, relative to something that makes `tol` meaningful.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Solution:
    """Outcome of `solve`.

    Parameters
    ----------
    theta : ndarray
        The parameters.
    point : Point
        What is known there.
    status : Status
        Why the run ended; ``status.value`` is a message.
    n_iter : int
        Number of updates.
    history : Bunch
        One array per quantity and one entry per update: `upper_bound`, `lower_bound`,
        `gap`, `effort`, `decrease`, `change`, .... `ConvergenceDisplay` draws it.
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
        Where to start.

    criterion : {"regemm", "sudemm", "fixed", "graduated"} or Criterion, \
            default="regemm"
        How accurately latent variables are inferred before theta moves. "fixed" is
        plain majorization-minimization with exact latent variables.

    effort : float, default=0.0
        Effort of the first latent variables; 0 trusts the start least.

    max_iter : int, default=100
        Largest number of updates.

    tol : float, default=1e-6
        The run ends when an update with exact latent variables changes theta by less,
        in the measure of the problem.

    step : object, default=None
        How theta moves; the minimiser of the upper bound by default.

    Returns
    -------
    solution : Solution
        Parameters, status and history.

    Examples
    --------
    The median of some numbers, whose absolute deviations are minima over weights u of
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
        lambda: max_iter - len(history),
    )
    return Solution(
        result.point.theta,
        result.point,
        result.status,
        len(history),
        history.to_bunch(),
    )
