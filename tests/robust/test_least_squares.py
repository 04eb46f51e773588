"""robust_least_squares: agreement with scipy, laws at every iterate, bad input."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from scipy.optimize import OptimizeResult, least_squares, root
from scipy.spatial.transform import Rotation
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import BlockStructure, robust_least_squares
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.criteria import Criterion, Fixed, Graduated
from sklearn_mm.kernels import KERNELS, Cauchy, get_kernel

TIGHT = {"ftol": None, "xtol": 1e-12, "gtol": 1e-13}
METHODS = ["regemm", "sudemm", "fixed", "graduated", "joint"]


def rosenbrock(x):
    return np.array([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]])


def rosenbrock_jac(x):
    return np.array([[-20.0 * x[0], 10.0], [-1.0, 0.0]])


def exponential_data(outliers=0, seed=0):
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 4, 60)
    y = 2.5 * np.exp(-1.3 * t) + 0.5 + 0.05 * rng.normal(size=t.size)
    y[rng.permutation(t.size)[:outliers]] += rng.uniform(1, 3, outliers)
    return t, y


def exponential(x, t, y):
    return x[0] * np.exp(-x[1] * t) + x[2] - y


def exponential_jac(x, t, y):
    e = np.exp(-x[1] * t)
    return np.column_stack([e, -x[0] * t * e, np.ones_like(t)])


def circle_data(outliers=0, seed=0):
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, 50)
    points = np.column_stack([np.cos(angle), np.sin(angle)]) * 2.0 + [1.0, -1.0]
    points += 0.05 * rng.normal(size=points.shape)
    points[:outliers] += rng.uniform(1, 3, (outliers, 2))
    return points


def circle(x, points):
    return np.hypot(points[:, 0] - x[0], points[:, 1] - x[1]) - x[2]


def circle_jac(x, points):
    away = x[:2] - points
    away /= np.hypot(*away.T)[:, None]
    return np.column_stack([away, -np.ones(len(points))])


CLASSIC = {
    "rosenbrock": (rosenbrock, rosenbrock_jac, [-1.2, 1.0], ()),
    "exponential": (
        exponential,
        exponential_jac,
        [1.0, 1.0, 0.0],
        exponential_data(6),
    ),
    "circle": (circle, circle_jac, [0.0, 0.0, 1.0], (circle_data(5),)),
}


# Agreement.


@pytest.mark.parametrize("method", ["regemm", "sudemm", "fixed", "graduated"])
@pytest.mark.parametrize("name", CLASSIC)
def test_quadratic_kernel_is_least_squares(name, method):
    fun, jac, x0, args = CLASSIC[name]
    theirs = least_squares(fun, x0, jac, args=args, **_scipy_tight())
    ours = robust_least_squares(
        fun, x0, jac, args=args, kernel="quadratic", criterion=method, **TIGHT
    )
    assert ours.success
    stationary = _polished(CLASSIC[name], theirs.x, lambda r: 1.0)
    np.testing.assert_allclose(ours.x, stationary, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours.cost, theirs.cost, rtol=1e-8, atol=1e-20)


def brown_dennis(x):
    t = np.arange(1, 21) / 5
    one, two = x[0] + t * x[1] - np.exp(t), x[2] + x[3] * np.sin(t) - np.cos(t)
    return one**2 + two**2


def penalty(x):
    return np.append(np.sqrt(1e-5) * (x - 1), x @ x - 0.25)


@pytest.mark.parametrize(
    ("fun", "x0"), [(brown_dennis, [25.0, 5, -5, -1]), (penalty, np.arange(1.0, 11.0))]
)
@pytest.mark.parametrize("sparse", [False, True])
def test_columns_that_almost_vanish(fun, x0, sparse):
    """Where a column is tiny, its parameter must not be free to go anywhere.

    With the scale of the current columns, both problems (numbers 16 and 23 of Moré,
    Garbow and Hillstrom) take more than a thousand evaluations.
    """
    pattern = np.ones((len(fun(np.array(x0))), len(x0))) if sparse else None
    ours = robust_least_squares(
        fun, x0, "3-point", kernel="quadratic", max_nfev=150, jac_sparsity=pattern
    )
    theirs = least_squares(fun, x0, method="lm", x_scale="jac")
    assert ours.success
    np.testing.assert_allclose(ours.cost, theirs.cost, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("tau", [0.5, 1.5])
def test_cauchy_agrees_with_scipy(name, method, tau):
    fun, jac, x0, args = CLASSIC[name]
    theirs = least_squares(
        fun, x0, jac, args=args, loss="cauchy", f_scale=tau, **_scipy_tight()
    )
    ours = robust_least_squares(
        fun,
        x0,
        jac,
        args=args,
        kernel="cauchy",
        tau=tau,
        criterion=method,
        max_nfev=2000,
        **TIGHT,
    )
    assert ours.success, ours.message
    stationary = _polished(
        CLASSIC[name], theirs.x, lambda r: 1.0 / (1.0 + (r / tau) ** 2)
    )
    np.testing.assert_allclose(ours.x, stationary, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(ours.cost, theirs.cost, rtol=1e-8, atol=1e-14)


def _polished(problem, x, weight):
    """Zero of the gradient near scipy's solution, which is good to half the digits."""
    fun, jac, _, args = problem

    def gradient(x):
        r = fun(x, *args)
        return jac(x, *args).T @ (weight(r) * r)

    polished = root(gradient, x, tol=1e-15).x
    np.testing.assert_allclose(polished, x, rtol=1e-6, atol=1e-6)
    return polished


def _scipy_tight():
    return {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-14, "max_nfev": 2000}


def test_jacobians_of_every_kind_agree():
    args = exponential_data(6)
    kinds = {
        "2-point": "2-point",
        "3-point": "3-point",
        "dense": exponential_jac,
        "sparse": lambda *a: scipy.sparse.csr_matrix(exponential_jac(*a)),
    }
    results = [
        robust_least_squares(exponential, [1, 1, 0], jac, args=args, tau=0.3)
        for jac in kinds.values()
    ]
    for result in results:
        assert result.success
        np.testing.assert_allclose(result.x, results[2].x, rtol=1e-5)
    np.testing.assert_allclose(
        results[1].jac, exponential_jac(results[1].x, *args), rtol=1e-7, atol=1e-8
    )


@pytest.mark.parametrize("method", METHODS)
def test_result_is_consistent(method):
    t, y = exponential_data(6)
    calls = []

    def counted(x, t, y):
        calls.append(x)
        return exponential(x, t, y)

    result = robust_least_squares(
        counted,
        [2.0, 1.0, 0.3],
        exponential_jac,
        args=(t, y),
        tau=0.3,
        criterion=method,
    )
    assert result.nfev == len(calls)
    kernel = get_kernel("smooth_truncated_quadratic")
    r = exponential(result.x, t, y)
    np.testing.assert_array_equal(result.fun, r)
    np.testing.assert_allclose(result.cost, 0.09 * kernel.loss((r / 0.3) ** 2).sum())
    np.testing.assert_allclose(result.weights, kernel.weight((r / 0.3) ** 2))
    J = exponential_jac(result.x, t, y)
    np.testing.assert_allclose(result.grad, J.T @ (result.weights * r), atol=1e-14)
    assert result.optimality == np.abs(result.grad).max()
    assert result.nit == len(result.history.upper_bound)
    assert result.nfev <= result.nit + 1  # a step of zero needs no evaluation
    assert result.success and result.status > 0 and isinstance(result, OptimizeResult)


# Laws.


@pytest.mark.parametrize("kernel", sorted(KERNELS))
@pytest.mark.parametrize("seed", range(3))
def test_regemm_laws(kernel, seed):
    t, y = exponential_data(15, seed)
    eta = 0.5
    history = robust_least_squares(
        exponential, [1.0, 0.2, 0.0], args=(t, y), kernel=kernel, tau=0.2, eta=eta
    ).history
    # The criterion's own run ends where exact weights take over.
    run = slice(0, np.flatnonzero(history.previous_upper == history.upper_bound)[0])
    upper, lower = history.upper_bound[run], history.lower_bound[run]
    before, accepted = history.previous_upper[run], history.accepted[run].astype(bool)
    slack = 1e-12 * history.upper_bound[0]
    assert (history.lower_bound <= history.upper_bound).all()
    assert (lower <= before + slack).all()
    # Exact weights may be all that is left where the theory's inequality is strict.
    assert (upper <= eta * lower + (1 - eta) * before + slack).all()
    assert (np.diff(upper[accepted]) <= slack).all()
    c = (before - lower)[accepted]
    if len(c):
        assert c.sum() <= (before[0] - upper[-1]) / eta + slack


@pytest.mark.parametrize("seed", range(3))
def test_sudemm_laws(seed):
    t, y = exponential_data(15, seed)
    rho = 0.5
    history = robust_least_squares(
        exponential, [1.0, 0.2, 0.0], args=(t, y), criterion="sudemm", rho=rho, tau=0.2
    ).history
    assert (history.lower_bound <= history.upper_bound).all()
    # The objective itself never increases: the gap is paid for by the decrease.
    inexact = history.effort < 1
    assert inexact.any()
    accepted = np.flatnonzero(history.accepted)
    cost = history.lower_bound[accepted]
    full = history.decrease[accepted] >= rho * history.gap[accepted]
    assert (np.diff(cost)[full[:-1]] <= 1e-12 * cost[0]).all()


@pytest.mark.parametrize("method", METHODS)
def test_deterministic(method):
    args = exponential_data(10)

    def solve():
        return robust_least_squares(
            exponential, [1.0, 0.2, 0.0], args=args, criterion=method, tau=0.2
        )

    one, two = solve(), solve()
    np.testing.assert_array_equal(one.x, two.x)
    np.testing.assert_array_equal(one.history.upper_bound, two.history.upper_bound)


def test_regemm_finds_a_better_minimum_than_irls():
    """From a start among the outliers, a minority, exact weights stay there."""
    rng = np.random.default_rng(0)
    points = 0.1 * rng.normal(size=(50, 2))
    points[:15] += [3.0, 0.0]

    def solve(criterion):
        return robust_least_squares(
            lambda x: (points - x).ravel(),
            [3.0, 0.0],
            residual_dim=2,
            criterion=criterion,
            tau=0.5,
        )

    assert solve("regemm").cost < 0.75 * solve("fixed").cost


# Grouped residuals, manifolds, structure.


def test_residual_dim_groups_residuals():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(30, 2)) * 0.1
    points[:8] += [3.0, 0.0]

    def fun(x):
        return (points - x).ravel()

    result = robust_least_squares(fun, [1.0, 0.0], residual_dim=2, tau=0.5)
    assert result.weights.shape == (30,)
    assert (result.weights[:8] == 0).all()
    np.testing.assert_allclose(result.x, points[8:].mean(axis=0), atol=0.02)


def test_retract_on_rotations():
    """Robust alignment of two point sets by a rotation vector near pi."""
    rng = np.random.default_rng(0)
    source = rng.normal(size=(40, 3))
    truth = Rotation.from_rotvec([0.0, 3.1, 0.2])
    target = truth.apply(source) + 0.01 * rng.normal(size=source.shape)
    target[:10] += rng.normal(size=(10, 3))

    def fun(x):
        return (Rotation.from_rotvec(x).apply(source) - target).ravel()

    def jac(x):
        q = Rotation.from_rotvec(x).apply(source)
        zero = np.zeros(len(q))
        rows = [
            [zero, q[:, 2], -q[:, 1]],
            [-q[:, 2], zero, q[:, 0]],
            [q[:, 1], -q[:, 0], zero],
        ]
        return np.array(rows).transpose(2, 0, 1).reshape(-1, 3)

    def retract(x, delta):
        return (Rotation.from_rotvec(delta) * Rotation.from_rotvec(x)).as_rotvec()

    kwargs = {"residual_dim": 3, "retract": retract, "tau": 0.1}
    for derivative in (jac, "2-point"):
        result = robust_least_squares(fun, [0.1, 2.0, 0.0], derivative, **kwargs)
        assert result.success
        error = (Rotation.from_rotvec(result.x) * truth.inv()).magnitude()
        assert error < 0.01


def two_groups(seed=0):
    """Measurements a_i * b_j of products, some of them wrong."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(1, 2, 4), rng.uniform(1, 2, 9)
    first, second = (index.ravel() for index in np.indices((4, 9)))
    y = a[first] * b[second] + 0.01 * rng.normal(size=36)
    y[::7] += 1.0
    structure = BlockStructure(first, second, first_dim=1, second_dim=1)

    def fun(x):
        return x[:4][first] * x[4:][second] - y

    def jac(x):
        return x[4:][second].reshape(-1, 1, 1), x[:4][first].reshape(-1, 1, 1)

    return fun, jac, structure, np.full(13, 1.5)


@pytest.mark.parametrize("method", METHODS)
def test_structure_agrees_with_dense(method):
    fun, jac, structure, x0 = two_groups()
    kwargs = {"tau": 0.3, "criterion": method, "max_nfev": 12, "eta": 0.5}
    kwargs["x_scale"] = 1.0  # by default, only dense systems know previous columns

    def dense_jac(x):
        return structure.to_sparse(*jac(x)).toarray()

    dense = robust_least_squares(fun, x0, dense_jac, **kwargs)
    for derivative in (jac, "2-point", "3-point"):
        result = robust_least_squares(
            fun, x0, derivative, structure=structure, **kwargs
        )
        np.testing.assert_allclose(
            result.history.lower_bound[:10],
            dense.history.lower_bound[:10],
            rtol=1e-4,
            atol=1e-6,
        )
        np.testing.assert_allclose(fun(result.x), fun(dense.x), atol=1e-4)


# Stopping, callbacks, output.


def test_max_nfev():
    args = exponential_data(6)
    for max_nfev in (1, 2, 5):
        result = robust_least_squares(
            exponential, [1.0, 1.0, 0.0], args=args, max_nfev=max_nfev
        )
        assert result.nfev == max_nfev and result.nit == max_nfev - 1
        assert result.status == 0 and not result.success
        assert "max_nfev" in result.message


@pytest.mark.parametrize(
    ("tolerances", "status"),
    [
        ({"ftol": None, "xtol": None, "gtol": 1e-6}, 1),
        ({"ftol": 1e-6, "xtol": None, "gtol": None}, 2),
        ({"ftol": None, "xtol": 1e-4, "gtol": None}, 3),
    ],
)
def test_status_says_which_tolerance(tolerances, status):
    args = exponential_data(6)
    result = robust_least_squares(
        exponential, [1.0, 1.0, 0.0], "3-point", args=args, tau=0.3, **tolerances
    )
    assert result.status == status and result.success


def test_exact_fit_stops():
    result = robust_least_squares(lambda x: x - [1.0, 2.0], [0.0, 0.0])
    assert result.success
    np.testing.assert_allclose(result.x, [1.0, 2.0], atol=1e-7)


def test_start_at_the_solution():
    result = robust_least_squares(lambda x: x - [1.0, 2.0], [1.0, 2.0])
    assert result.success and result.cost == 0.0
    np.testing.assert_array_equal(result.x, [1.0, 2.0])


@pytest.mark.parametrize("method", METHODS)
def test_callback(method):
    args = exponential_data(6)
    seen = []

    def callback(intermediate_result):
        seen.append(intermediate_result)
        if len(seen) == 4:
            raise StopIteration

    result = robust_least_squares(
        exponential, [1.0, 1.0, 0.0], args=args, callback=callback, criterion=method
    )
    assert result.status == -2 and result.nit == 4 and not result.success
    assert [r.nit for r in seen] == [1, 2, 3, 4]
    # The best of the points is returned, the start among them.
    costs = [result.history.lower_bound[0], *(r.cost for r in seen)]
    assert result.cost == min(costs)
    if result.cost == costs[-1]:
        np.testing.assert_array_equal(seen[-1].x, result.x)
        assert "higher robust cost" not in result.message
    else:
        assert "higher robust cost" in result.message
    assert all(r.cost <= r.upper_bound for r in seen)

    iterates = []
    robust_least_squares(
        exponential,
        [1.0, 1.0, 0.0],
        args=args,
        criterion=method,
        callback=lambda x: iterates.append(x),
        max_nfev=4,
    )
    assert len(iterates) == 3 and iterates[0].shape == (3,)


def test_verbose(capsys):
    kwargs = {"args": exponential_data(6), "max_nfev": 4}
    robust_least_squares(exponential, [1.0, 1.0, 0.0], **kwargs)
    assert capsys.readouterr().out == ""
    robust_least_squares(exponential, [1.0, 1.0, 0.0], verbose=1, **kwargs)
    assert len(capsys.readouterr().out.splitlines()) == 1
    robust_least_squares(exponential, [1.0, 1.0, 0.0], verbose=2, **kwargs)
    assert len(capsys.readouterr().out.splitlines()) == 5


@pytest.mark.parametrize("criterion", [Fixed(0.5), Graduated(2, 3), Joint()])
def test_criterion_objects(criterion):
    args = exponential_data(6)
    result = robust_least_squares(
        exponential, [1.0, 1.0, 0.0], args=args, criterion=criterion, tau=0.3
    )
    assert result.success


def test_baselines_by_name_and_as_objects():
    args = exponential_data(6)

    def solve(criterion):
        return robust_least_squares(
            exponential, [1.0, 1.0, 0.0], args=args, criterion=criterion, tau=0.3
        )

    np.testing.assert_array_equal(solve("joint").x, solve(Joint()).x)
    graduated = Graduated(n_iter_per_level=8)
    np.testing.assert_array_equal(solve("graduated").x, solve(graduated).x)
    with pytest.raises(ValueError, match=r"Alternating\(\) is only supported by the"):
        solve(Alternating())
    with pytest.raises(ValueError, match=r"pass Joint\(\) instead"):
        solve(Joint)


def test_own_criterion_and_kernel():
    class RelativeGap(Criterion):
        def satisfied(self, trial, memory):
            return trial.gap <= 0.1 * trial.lower

        def excessive(self, trial, memory):
            return trial.gap < 0.05 * trial.lower

    result = robust_least_squares(
        exponential,
        [1.0, 1.0, 0.0],
        args=exponential_data(6),
        criterion=RelativeGap(),
        kernel=Cauchy(),
    )
    assert result.success


# Bad input.


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"x0": [np.nan]}, "x0 contains NaN"),
        ({"x0": [[1.0]]}, "x0 must have one dimension"),
        ({"x0": []}, "x0 is empty"),
        ({"x0": None}, "x0 must contain numbers, got None"),
        ({"x0": ["a"]}, "x0 must contain numbers"),
        ({"fun": lambda x: ["a"]}, "fun must return an array of numbers"),
        ({"jac": lambda x: [["a"]] * 3}, "jac must return an array of numbers"),
        ({"workers": 0}, "workers must be a number of processes"),
        ({"x0": [1j]}, "x0 must be real"),
        ({"fun": lambda x: np.ones((2, 2))}, "fun must return a one-dimensional"),
        ({"fun": lambda x: np.array([])}, "not a positive multiple of residual_dim"),
        ({"residual_dim": 2}, "3 residuals, which is not a positive multiple"),
        ({"fun": lambda x: np.array([np.nan, 1.0])}, "1 residuals at x0 .* not finite"),
        ({"jac": lambda x: np.ones((2, 1))}, "jac must return a matrix with 3 rows"),
        ({"jac": lambda x: np.full((3, 1), np.nan)}, "Jacobian contains NaN"),
        ({"jac": "4-point"}, "'jac' parameter of robust_least_squares must be"),
        ({"kernel": "nope"}, "'kernel' parameter"),
        ({"criterion": "nope"}, "'criterion' parameter"),
        ({"tau": 0.0}, "'tau' parameter"),
        ({"eta": 0.8, "eta_prime": 0.6}, r"eta_prime must be a number in \(eta, 1\]"),
        ({"criterion": "joint", "kernel": "huber"}, "smooth at u = 1"),
        ({"criterion": "joint", "kernel": "quadratic"}, "smooth at u = 1"),
        ({"max_nfev": 0}, "'max_nfev' parameter"),
        ({"retract": lambda x, d: np.ones(5)}, "retract must return an array of shape"),
        (
            {"structure": BlockStructure([0], [0], first_dim=1, second_dim=1)},
            "structure describes 2 parameters",
        ),
    ],
)
def test_bad_input(kwargs, message):
    kwargs = {"fun": lambda x: np.ones(3) * x[0] - 1, "x0": [3.0], **kwargs}
    with pytest.raises(ValueError, match=message):
        robust_least_squares(**kwargs)


def test_bad_structured_jacobian():
    fun, _, structure, x0 = two_groups()
    part = np.ones((36, 1, 1))
    for wrong, message in (
        ((part,) * 3, "jac must return two arrays of shapes"),
        (np.ones((36, 10)), r"two arrays of shapes .*, got \(36, 10\)\."),
        (3.0, r"two arrays of shapes .*, got \(\)\."),
        ((1j * part, part), "jac must return real numbers"),
    ):
        with pytest.raises(ValueError, match=message):
            robust_least_squares(fun, x0, lambda x, J=wrong: J, structure=structure)
    with pytest.raises(ValueError, match="structure describes 36 residual vectors"):
        robust_least_squares(lambda x: fun(x)[:-1], x0, structure=structure)


def test_residuals_that_change_their_number():
    calls = []

    def fun(x):
        calls.append(x)
        return np.ones(3 if len(calls) < 4 else 2) * x[0]

    with pytest.raises(ValueError, match="fun returned 2 residuals, but 3"):
        robust_least_squares(fun, [3.0], lambda x: np.ones((3, 1)))


def test_nan_half_way_is_a_rejected_step():
    """The residual is undefined for x <= 0, where the first full step leads."""

    def fun(x):
        with np.errstate(invalid="ignore"):
            return np.array([np.log(x[0]) + 2.0])

    result = robust_least_squares(
        fun, [3.0], lambda x: np.array([[1 / x[0]]]), kernel="quadratic", gtol=1e-12
    )
    assert not result.history.accepted.all()
    np.testing.assert_allclose(result.x, np.exp(-2.0), rtol=1e-6)


def test_nan_everywhere_but_the_start_warns():
    def fun(x):
        return np.array([x[0] if x[0] == 3.0 else np.nan])

    with pytest.warns(ConvergenceWarning, match="No further step .* jac is the Jac"):
        result = robust_least_squares(fun, [3.0], lambda x: np.eye(1), kernel="cauchy")
    assert not result.success and result.status == -3
    np.testing.assert_array_equal(result.x, [3.0])


def test_wrong_jacobian_does_not_loop():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = robust_least_squares(
            lambda x: x - 1.0,
            [3.0],
            lambda x: -np.eye(1),
            kernel="cauchy",
            max_nfev=1000,
        )
    assert not result.success and result.status == -3 and result.nfev < 100


def test_arguments_are_not_changed():
    x0 = np.array([1.0, 1.0, 0.0])
    t, y = exponential_data(6)
    copy = x0.copy()
    robust_least_squares(exponential, x0, kwargs={"t": t, "y": y}, tau=0.3)
    np.testing.assert_array_equal(x0, copy)


def test_joint_is_not_for_linear_regression():
    from sklearn_mm import HalfQuadraticRobustRegressor

    model = HalfQuadraticRobustRegressor(criterion=Joint())
    with pytest.raises(ValueError, match="only supported by robust_least_squares"):
        model.fit(np.eye(5), np.arange(5.0))


def test_function_may_reuse_its_buffer():
    t, y = exponential_data(6)
    buffer = np.empty_like(t)

    def fun(x):
        buffer[:] = exponential(x, t, y)
        return buffer

    for jac in ("2-point", "3-point"):
        one = robust_least_squares(fun, [1.0, 1.0, 0.0], jac, tau=0.3)
        two = robust_least_squares(
            exponential, [1.0, 1.0, 0.0], jac, args=(t, y), tau=0.3
        )
        np.testing.assert_array_equal(one.x, two.x)


def test_all_weights_zero_warns():
    with pytest.warns(ConvergenceWarning, match="weights are zero.*Increase tau"):
        robust_least_squares(
            lambda x: x[0] - np.arange(3.0), [100.0], criterion="fixed"
        )


@pytest.mark.parametrize(
    "criterion", ["regemm", "sudemm", "fixed", "graduated", "joint"]
)
def test_steps_into_infinite_residuals_are_rejected(criterion):
    # The last residual has no weight, and blows up beyond 0.9.
    def fun(x):
        return np.append(np.full(4, x[0] - 0.5), np.inf if x[0] > 0.9 else 100.0)

    result = robust_least_squares(fun, [0.0], criterion=criterion, tau=2.0)
    assert np.isfinite(result.fun).all()
    assert np.isfinite(result.cost)
    assert result.x[0] == pytest.approx(0.5, abs=1e-3)


def test_residuals_and_widths_that_overflow():
    units = "Rescale the data"
    with pytest.raises(ValueError, match=f"largest residual at x0 is 1e.160.*{units}"):
        robust_least_squares(lambda x: 1e160 * x, [1.0], kernel="quadratic")
    for tau in (1e-200, 1e200):
        with pytest.raises(ValueError, match=f"^tau is .*{units}"):
            robust_least_squares(lambda x: x - 1, [0.0], tau=tau)
    with pytest.raises(ValueError, match=units):
        robust_least_squares(
            lambda x: x - 1e153 * np.ones(1000),
            np.zeros(1000),
            kernel="quadratic",
            tau=1e100,
        )


@pytest.mark.parametrize("criterion", METHODS)
@pytest.mark.parametrize("unit", [1e-66, 1e66])
def test_units_within_the_limit_do_not_matter(criterion, unit):
    t, y = exponential_data(10)
    expected, found = (
        robust_least_squares(
            lambda x, size=size: size * exponential(x, t, y),
            [2.0, 1.0, 0.3],
            lambda x, size=size: size * exponential_jac(x, t, y),
            tau=0.3 * size,
            criterion=criterion,
            gtol=None,
        )
        for size in (1.0, unit)
    )
    assert found.status == expected.status
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-6)
    np.testing.assert_allclose(found.cost / unit**2, expected.cost, rtol=1e-9)


@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("unit", [1e-5, 1e5])
def test_units_of_parameters_do_not_matter(unit, kind):
    """Damping is relative to the columns of the Jacobian, whatever their size."""

    def fun(x):  # Rosenbrock's
        return np.array([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]])

    def jac(x):
        return np.array([[-20.0 * x[0], 10.0], [-1.0, 0.0]])

    usual, other = (
        robust_least_squares(
            lambda x, size=size: fun(x / size),
            size * np.array([-1.2, 1.0]),
            lambda x, size=size: kind(jac(x / size) / size),
            kernel="quadratic",
            gtol=None,  # is absolute
        )
        for size in (1.0, unit)
    )
    np.testing.assert_allclose(usual.x, [1.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(other.x, usual.x * unit, rtol=1e-6)
    assert other.nfev == usual.nfev


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_parameters_whose_squares_overflow():
    """They are compared with the length of a step, which must not overflow."""
    x0 = np.array([6.4e159])
    result = robust_least_squares(lambda x: 1e-60 * np.sqrt(np.abs(x)), x0, max_nfev=12)
    assert np.isfinite(result.x).all()
    assert abs(result.fun[0]) <= 1e-60 * np.sqrt(x0[0])
