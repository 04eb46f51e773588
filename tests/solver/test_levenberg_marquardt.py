"""The damped step: acceptance, damping, and what a rejection leaves alone."""

from dataclasses import dataclass

import numpy as np
import pytest
from decay_curve import START, exponential, make_problem, upper_at
from parabola import At

from sklearn_mm import robust_least_squares
from sklearn_mm._robust.callable import CallableResidual
from sklearn_mm._robust.problem import HalfQuadraticProblem
from sklearn_mm._solver.history import History
from sklearn_mm._solver.inference import EffortBisection
from sklearn_mm._solver.levenberg_marquardt import LevenbergMarquardtStep
from sklearn_mm._solver.loop import minimize
from sklearn_mm._solver.roles import ALL_ROWS, Bounds, Inferred, Memory, Trial
from sklearn_mm.criteria import Fixed, Graduated, RelaxedGeneralized
from sklearn_mm.kernels import KERNELS

POINT = At(START)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
@pytest.mark.parametrize("effort", [0.3, 1.0])
def test_gradient_of_the_upper_bound(kernel, effort):
    problem = make_problem(kernel)
    point = problem.at(START)
    latent = problem.infer(point, problem.start(ALL_ROWS), effort)
    gradient = problem.normal_system(point, latent).gradient
    for k, h in enumerate(1e-6 * np.eye(3)):
        # Both from the same point, which the weights belong to.
        ahead, behind = (
            problem.decrease(point, latent, problem.at(START + step))
            for step in (h, -h)
        )
        slope = (behind - ahead) / 2e-6
        np.testing.assert_allclose(gradient[k], slope, rtol=1e-5, atol=1e-7)


def test_decrease_is_that_of_the_bound_and_nan_where_it_is_not_defined():
    problem = make_problem()
    point = problem.at(START)
    latent = problem.infer(point, problem.start(ALL_ROWS), 0.5)
    u = problem.confidence(point, 0.5)

    def bound(theta):
        return u @ np.square(problem.at(theta).residual[:, 0]) / 2

    other = START + np.array([0.1, -0.2, 0.05])
    found = problem.decrease(point, latent, problem.at(other))
    np.testing.assert_allclose(found, bound(START) - bound(other), rtol=1e-10)
    with np.errstate(over="ignore"):
        away = problem.at(np.array([1.0, -1e6, 0.0]))
    assert np.isnan(problem.decrease(point, latent, away))


def test_steps_do_not_depend_on_units():
    units = np.array([1e-6, 1e5, 1.0])
    fun = exponential()
    plain = make_problem(fun=fun)
    point = plain.at(START)
    latent = plain.infer(point, plain.start(ALL_ROWS), 0.5)
    one, _ = plain.normal_system(point, latent).damped_step(0.1)
    J = plain.linearized(point).jacobian
    scaled = CallableResidual(lambda x: fun(x * units), lambda x: J * units)
    weights = plain.confidence(point, 0.5)
    two, _ = scaled.normal_system(scaled.at(START / units), weights).damped_step(0.1)
    np.testing.assert_allclose(two * units, one, rtol=1e-6)


def test_a_rejected_step_changes_nothing_but_the_damping():
    """Theta, latents, the previous bound: all as before, and no new inference."""
    calls = []

    class Spy(LevenbergMarquardtStep):
        def take(self, problem, point, inferred):
            moved = super().take(problem, point, inferred)
            calls.append((point, inferred, moved, self.damping))
            return moved

    # A start and a damping from which the first steps overshoot.
    problem = make_problem(fun=lambda x: np.arctan(x - 0.3) * np.ones(3), tau=10.0)
    step = Spy(damping=1e-8)
    history = History()
    start = problem.at(np.array([6.0, -7.0, 5.0]))
    n_jac = problem.model.n_jac
    minimize(
        problem,
        start,
        inference=EffortBisection(RelaxedGeneralized(), effort=0.0),
        step=step,
        memory=Memory.start(upper_at(problem, start, 0.0)),
        history=history,
        max_iter=60,
        tol=1e-10,
        max_rejected=50,
    )
    rejections = [i for i, (*_, moved, _) in enumerate(calls) if not moved.accepted]
    assert rejections
    columns = history.to_bunch()
    for i in rejections:
        point, inferred, moved, damping = calls[i]
        # The same point, with the Jacobian that was computed for the step.
        assert moved.point.theta is point.theta
        assert moved.point.residual is point.residual
        assert moved.point is inferred.trial.proposal.point
        following = calls[i + 1]
        assert following[0] is moved.point
        old, new = inferred.trial, following[1].trial
        assert new.latent is old.latent and new.bounds is old.bounds
        assert new.proposal.system is old.proposal.system
        assert columns.previous_upper[i + 1] == columns.previous_upper[i]
        assert columns.work[i + 1] == 0.0
        assert damping > columns.damping[i]
    # One Jacobian where a step was made, none where it was refused.
    assert problem.model.n_jac - n_jac == len(calls) - len(rejections)


def test_damping_starts_again_at_each_level():
    history = robust_least_squares(
        exponential(),
        START,
        "3-point",
        tau=0.1,
        criterion=Graduated(3, 4),
        ftol=0,
        xtol=0,
        gtol=0,
        max_nfev=14,
    ).history
    initial = LevenbergMarquardtStep().damping
    levels = np.flatnonzero(np.diff(history.effort, prepend=-1.0))
    assert len(levels) == 4
    np.testing.assert_array_equal(history.damping[levels], initial)
    assert (history.damping[levels[1:] - 1] != initial).all()


def test_stationary_theta_is_accepted_and_the_bound_tightened():
    """At the minimiser of an upper bound no decrease is possible; the run goes on."""
    problem = make_problem(fun=lambda x: np.r_[x, x - 1.0], tau=0.5)
    start = problem.at(np.full(3, 0.5))  # minimises the bound for any equal weights
    result = minimize(
        problem,
        start,
        inference=EffortBisection(RelaxedGeneralized(), effort=0.0),
        step=LevenbergMarquardtStep(),
        memory=Memory.start(upper_at(problem, start, 0.0)),
        history=(history := History()),
        max_iter=100,
        tol=1e-6,
    )
    assert result.status.name == "CONVERGED"
    columns = history.to_bunch()
    assert columns.accepted.all()
    assert columns.gap[-1] <= 1e-5 * columns.lower_bound[-1]


def test_singular_systems_are_damped_not_fatal():
    result = robust_least_squares(
        lambda x: np.array([x[0] + x[1] - 1.0, 2 * (x[0] + x[1]) - 2.0]),
        [5.0, 5.0],
        kernel="quadratic",
        criterion=Fixed(),
    )
    assert result.cost < 1e-15


def test_a_system_without_solution_is_a_rejected_step():
    class Unsolvable(HalfQuadraticProblem):
        def normal_system(self, point, latent, columns):
            system = super().normal_system(point, latent, columns)
            system.damped_step = lambda damping: None
            return system

    inner = make_problem()
    problem = Unsolvable(**vars(inner))
    step = LevenbergMarquardtStep()
    damping = step.damping
    inference = EffortBisection(Fixed(1.0))
    point = problem.at(START)
    memory = Memory.start(upper_at(problem, point, 1.0))
    inferred = inference(problem, point, ALL_ROWS, memory, step)
    assert inferred.trial.decrease == 0.0
    moved = step.take(problem, point, inferred)
    assert not moved.accepted
    assert moved.point.theta is point.theta
    assert step.damping > damping


@dataclass
class Scripted:
    """A bound of 40 whose model promises one decrease and whose step makes another."""

    predicted: float = 1.0
    actual: float = 1.0
    upper: float = 40.0
    delta: float = 3.0
    gradient = np.array([1.0, -5.0, 2.0])

    def at(self, theta):
        return At(theta)

    def linearized(self, point):
        return point

    def normal_system(self, point, latent, columns):
        return self

    def damped_step(self, damping):
        return np.array([0.0, self.delta, 4.0]), self.predicted

    def retract(self, point, delta):
        return point.theta + delta

    def decrease(self, point, latent, new):
        return self.actual

    def step(self, step):
        def propose(trial):
            return step.propose(self, POINT, trial)

        trial = Trial(Bounds(self.upper, 0.0), 1.0, object(), propose)
        return step.take(self, POINT, Inferred(trial, True, 1.0))


@pytest.mark.parametrize("quality", [1e-3, 0.2, 0.5, 0.7, 0.95, 1.0, 3.0])
@pytest.mark.parametrize("predicted", [0.25, 4.0])
def test_damping_follows_nielsen_after_a_success(predicted, quality):
    step = LevenbergMarquardtStep()
    before = step.damping
    problem = Scripted(predicted, quality * predicted)
    moved = problem.step(step)
    assert moved.accepted
    # Eq. 3.16 of Madsen et al.; a decrease beyond the promise counts as kept.
    kept = min(quality, 1.0)
    factor = max(1 / 3, 1 - (2 * kept - 1) ** 3)
    np.testing.assert_allclose(step.damping, before * factor, rtol=1e-12)
    larger = predicted * max(quality, 1.0)
    assert moved.change == pytest.approx(larger / problem.upper)
    assert moved.info == {
        "damping": before,
        "optimality": 5.0,
        "decrease": problem.actual,
        "step_norm": 5.0,
    }
    np.testing.assert_array_equal(moved.point.theta - START, [0.0, 3.0, 4.0])


def test_damping_doubles_ever_faster_until_a_success():
    step = LevenbergMarquardtStep(damping=1.0)
    dampings = []
    for actual in (-1.0, np.nan, 0.0, 0.5, -1.0, -1.0):
        moved = Scripted(1.0, actual).step(step)
        assert moved.accepted == (actual > 0)
        dampings.append(step.damping)
    assert dampings == [2.0, 8.0, 64.0, 64.0, 128.0, 512.0]
    for _ in range(40):
        Scripted().step(step)
    assert step.damping == step.min_damping


@pytest.mark.parametrize(
    ("delta", "predicted"), [(np.inf, 1.0), (np.nan, 1.0), (3.0, np.inf), (3.0, np.nan)]
)
def test_steps_that_are_not_finite_are_rejected(delta, predicted):
    step = LevenbergMarquardtStep()
    problem = Scripted(predicted, delta=delta)
    moved = problem.step(step)
    assert not moved.accepted
    assert moved.point is POINT
    assert moved.info["step_norm"] == moved.info["decrease"] == 0.0


def test_at_the_minimum_to_rounding_the_model_is_trusted():
    step = LevenbergMarquardtStep()
    noise = 1e-15 * Scripted.upper
    for predicted, actual in [(noise, -noise), (0.0, 0.0)]:
        before = step.damping
        assert Scripted(predicted, actual).step(step).accepted
        assert step.damping == pytest.approx(before / 3)
    # But neither a rise that is more than noise, nor a promise that is.
    assert not Scripted(noise, -1e-3).step(step).accepted
    assert not Scripted(1e-3, -noise).step(LevenbergMarquardtStep()).accepted
    # Nor where failures have made the step so small.
    assert not Scripted(noise, -noise).step(step).accepted


def test_an_exact_fit_is_accepted():
    """Bound, promise and decrease are all zero: the run has arrived."""
    step = LevenbergMarquardtStep()
    moved = Scripted(0.0, 0.0, upper=0.0).step(step)
    assert moved.accepted
    assert moved.change == 0.0
