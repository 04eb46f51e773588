"""Arguments of scipy's least_squares with scipy's meaning, results against scipy's."""

import inspect
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse
from joblib import parallel_config
from scipy.optimize import Bounds, least_squares
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import BlockStructure, robust_least_squares
from sklearn_mm._robust.box import Box, BoxSystem
from sklearn_mm._robust.differences import Differences, independent_columns
from sklearn_mm._robust.systems import DenseSystem

TIGHT = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-12, "max_nfev": 3000}
SCIPY_TIGHT = {"ftol": 1e-15, "xtol": 1e-15, "gtol": 1e-14, "max_nfev": 3000}


def rosenbrock(x):
    return np.array([10.0 * (x[1] - x[0] ** 2), 1.0 - x[0]])


def rosenbrock_jac(x):
    return np.array([[-20.0 * x[0], 10.0], [-1.0, 0.0]])


def decay(x, t, y):
    return x[0] * np.exp(-x[1] * t) + x[2] - y


def decay_jac(x, t, y):
    e = np.exp(-x[1] * t)
    return np.column_stack([e, -x[0] * t * e, np.ones_like(t)])


def decay_data(outliers=0, seed=0):
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 4, 50)
    y = 2.5 * np.exp(-1.3 * t) + 0.5 + 0.05 * rng.normal(size=t.size)
    y[rng.permutation(t.size)[:outliers]] += rng.uniform(1, 3, outliers)
    return t, y


def trigonometric(x):
    n = len(x)
    k = np.arange(1, n + 1)
    return n - np.sum(np.cos(x)) + k * (1 - np.cos(x)) - np.sin(x)


inf = np.inf
BOUNDED = {
    "rosenbrock corner": (rosenbrock, [-1.2, 0.0], ([-inf, -1.5], [0.8, inf])),
    "rosenbrock low": (rosenbrock, [0.1, 0.1], (-inf, [0.5, 0.3])),
    "rosenbrock box": (rosenbrock, [-2.0, 1.0], ([-2.0, -0.5], [-0.5, 2.0])),
    "rosenbrock inactive": (rosenbrock, [0.0, 0.0], ([-1.0, -1.0], [3.0, 3.0])),
    "decay": (decay, [1.0, 0.5, 0.0], ([0.0, 0.0, 0.0], [2.0, 1.0, 0.4])),
    "decay one-sided": (decay, [1.0, 0.5, 0.7], ([0.0, 0.0, 0.6], inf)),
    "trigonometric": (trigonometric, np.full(6, 1 / 6), (0.05, 0.5)),
}


# Bounds.


@pytest.mark.parametrize("jac", ["2-point", "3-point"])
@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_agree_with_scipy(name, jac):
    fun, x0, bounds = BOUNDED[name]
    args = decay_data() if fun is decay else ()
    theirs = least_squares(fun, x0, jac, bounds, args=args, **SCIPY_TIGHT)
    ours = robust_least_squares(
        fun, x0, jac, bounds, args=args, kernel="quadratic", **TIGHT
    )
    assert ours.success, ours.message
    np.testing.assert_allclose(ours.cost, theirs.cost, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(ours.x, theirs.x, rtol=1e-4, atol=1e-4)
    lower, upper = (np.broadcast_to(b, ours.x.shape) for b in bounds)
    assert np.all((lower <= ours.x) & (ours.x <= upper))
    expected = (ours.x == upper).astype(int) - (ours.x == lower)
    np.testing.assert_array_equal(ours.active_mask, expected)
    # scipy's interior method comes close to the bounds only.
    near = np.abs(theirs.x - ours.x) + np.abs(theirs.grad) > 1e-6
    np.testing.assert_array_equal(ours.active_mask[near], theirs.active_mask[near])


@pytest.mark.parametrize("loss", ["cauchy", "huber"])
@pytest.mark.parametrize("criterion", ["regemm", "sudemm", "fixed", "graduated"])
def test_robust_bounds_agree_with_scipy(criterion, loss):
    fun, x0, bounds = BOUNDED["decay"]
    t, y = decay_data(8)
    theirs = least_squares(
        fun, x0, decay_jac, bounds, loss=loss, f_scale=0.2, args=(t, y), **SCIPY_TIGHT
    )
    ours = robust_least_squares(
        fun,
        x0,
        decay_jac,
        bounds,
        kernel=loss,
        tau=0.2,
        criterion=criterion,
        args=[t, y],
        **TIGHT,
    )
    np.testing.assert_allclose(ours.cost, theirs.cost, rtol=1e-7)
    np.testing.assert_allclose(ours.x, theirs.x, atol=1e-5)


def test_joint_and_sparse_and_structured_bounds():
    """A product model a_i b_j with bounds: every kind of system agrees."""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 2, 4), rng.uniform(1, 2, 9)
    first, second = (index.ravel() for index in np.indices((4, 9)))
    y = a[first] * b[second] + 0.01 * rng.normal(size=36)
    y[::7] += 1.0
    structure = BlockStructure(first, second, first_dim=1, second_dim=1)
    x0 = np.full(13, 1.5)
    upper = np.full(13, inf)
    upper[[0, 5]] = 1.6
    fixed = [1]  # the scale that a and b share

    def fun(x):
        return x[:4][first] * x[4:][second] - y

    def blocks(x):
        return x[4:][second].reshape(-1, 1, 1), x[:4][first].reshape(-1, 1, 1)

    def sparse(x):
        return structure.to_sparse(*blocks(x))

    def solve(jac, structure=None, **kwargs):
        return robust_least_squares(
            fun,
            x0,
            jac,
            (1.2, upper),
            fixed=fixed,
            structure=structure,
            tau=0.3,
            **{"gtol": 1e-10, "ftol": None, "xtol": None, "max_nfev": 500, **kwargs},
        )

    expected = solve(lambda x: sparse(x).toarray())
    assert expected.success and np.any(expected.active_mask != 0)
    assert expected.x[1] == 1.5
    for result in (
        solve(sparse),
        solve(blocks, structure),
        solve("3-point", structure),
        solve("cs", structure),
        solve("cs"),
        solve("2-point", jac_sparsity=sparse(x0)),
        solve(lambda x: aslinearoperator(sparse(x))),
    ):
        np.testing.assert_allclose(result.x, expected.x, atol=1e-5)
        np.testing.assert_array_equal(result.active_mask, expected.active_mask)
        np.testing.assert_allclose(result.cost, expected.cost, rtol=1e-6)
    joint = solve(blocks, structure, criterion="joint")
    np.testing.assert_allclose(joint.x, expected.x, atol=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_box_system_minimises_the_damped_model(seed):
    """Against projected coordinate descent, which needs no active sets."""
    rng = np.random.default_rng(seed)
    J, r = rng.normal(size=(12, 5)), rng.normal(size=12)
    theta = rng.uniform(-1, 1, 5)
    box = Box(theta - rng.uniform(0, 0.4, 5), theta + rng.uniform(0, 0.4, 5))

    def build(held, r):
        return DenseSystem(J if held is None else J * ~held, r)

    system = BoxSystem(build, lambda d: J @ d, r, box, theta)
    for damping in (1e-6, 1e-2, 10.0, 1e4):
        solved = system.damped_step(damping)
        if solved is None:
            assert damping < 1.0
            continue
        delta, decrease = solved
        assert np.all(delta >= box.lower - theta) and np.all(delta <= box.upper - theta)
        expected = (r @ r - (r + J @ delta) @ (r + J @ delta)) / 2
        np.testing.assert_allclose(decrease, expected, rtol=1e-9)
        assert decrease > 0
    # With all but infinite damping, a projected gradient step, scaled.
    scaled = -(J.T @ r) / np.sum(J * J, axis=0) / 1e4
    low, high = box.reach(theta)
    np.testing.assert_allclose(delta, np.clip(scaled, low, high), rtol=1e-2, atol=1e-8)


def test_a_step_ends_exactly_on_the_bound():
    box = Box(np.array([0.1]), np.array([0.3]))
    theta = np.array([0.2])
    for edge in (box.lower, box.upper):
        np.testing.assert_array_equal(box.move(theta, edge - theta), edge)


def test_bounds_object_and_start_on_a_bound():
    bounds = Bounds([-2.0, -0.5], [-0.5, 2.0])
    ours = robust_least_squares(
        rosenbrock, [-0.5, 2.0], rosenbrock_jac, bounds, kernel="quadratic", **TIGHT
    )
    theirs = least_squares(rosenbrock, [-1.0, 1.0], rosenbrock_jac, bounds)
    np.testing.assert_allclose(ours.x, theirs.x, atol=1e-5)
    np.testing.assert_array_equal(ours.active_mask, [1, 0])
    assert ours.optimality < 1e-6 < np.abs(ours.grad).max()


def test_function_is_only_evaluated_inside():
    seen = []

    def fun(x):
        seen.append(x.copy())
        return rosenbrock(x)

    lower, upper = np.array([-2.0, -0.5]), np.array([-0.5, 2.0])
    for jac in ("2-point", "3-point"):
        robust_least_squares(fun, [-0.5, 2.0], jac, (lower, upper), kernel="cauchy")
    seen = np.array(seen)
    assert np.all((lower <= seen) & (seen <= upper))


# Differences.


@pytest.mark.parametrize("scheme", ["2-point", "3-point", "cs"])
@pytest.mark.parametrize("width", [inf, 1.0, 1e-9])
def test_differences_near_bounds(scheme, width):
    """The schemes are of their order wherever the point lies in the box."""
    for position in (0.0, 0.3, 1.0):
        x = np.array([0.7, -1.3])
        box = None
        if np.isfinite(width):
            box = Box(x - position * width, x + (1 - position) * width)
        jac = robust_least_squares(
            rosenbrock,
            x,
            scheme,
            (-inf, inf) if box is None else (box.lower, box.upper),
            max_nfev=1,
        ).jac
        tolerance = {"2-point": 1e-6, "3-point": 1e-8, "cs": 1e-14}[scheme]
        if width < 1e-6 and scheme != "cs":
            tolerance = 1e-5  # rounding
        np.testing.assert_allclose(jac, rosenbrock_jac(x), atol=20 * tolerance)


def test_steps_that_end_on_a_bound_are_kept():
    """Each parameter is one step away from a bound."""
    theta, step = np.array([2.0, 2.0, -2.0, -2.0]), 0.25
    below, above = np.array([[step, 4.0, step, 4.0], [4.0, step, 4.0, step]])
    box = Box(theta - below, theta + above)
    for sign in (-1.0, 1.0):
        differences = Differences("2-point", sign * step / theta, box)
        found, _ = differences.steps(theta, np.finfo(float).eps)
        np.testing.assert_array_equal(found, np.full(4, sign * step))


def test_diff_step_is_relative():
    steps, _ = Differences("2-point", np.array([1e-3, 1e-3])).steps(
        np.array([-5.0, 0.0]), np.finfo(float).eps
    )
    np.testing.assert_allclose(steps, [-5e-3, 1.49e-8], rtol=1e-3)
    coarse = robust_least_squares(
        rosenbrock, [2.0, 1.0], diff_step=0.5, max_nfev=1, kernel="quadratic"
    )
    # 10 (x1 - x0**2) from 2 to 3.
    np.testing.assert_allclose(coarse.jac[0], [-50.0, 10.0])


@pytest.mark.parametrize("scheme", ["2-point", "3-point"])
def test_functions_in_single_precision(scheme):
    t, y = decay_data(outliers=12)
    single = t.astype(np.float32), y.astype(np.float32)

    def fun(x):
        return decay(x.astype(np.float32), *single)

    x0, options = [1.0, 0.5, 0.0], {"tau": 0.2, "jac": scheme}
    exact = robust_least_squares(decay, x0, args=(t, y), **options)
    for tau in (0.2, np.full(50, 0.2)):
        result = robust_least_squares(fun, x0, **{**options, "tau": tau})
        assert result.success
        np.testing.assert_allclose(result.x, exact.x, atol=1e-4)
    np.testing.assert_allclose(result.jac, exact.jac, atol=5e-3)


@pytest.mark.parametrize("which", ["fun", "jac", "retract"])
def test_functions_that_modify_their_argument(which):
    t, y = decay_data(outliers=12)
    functions = {
        "fun": lambda x: decay(x, t, y),
        "jac": lambda x: decay_jac(x, t, y),
        "retract": lambda x, delta: x + delta,
    }
    expected = robust_least_squares(x0=[1.0, 0.5, 0.0], tau=0.2, **functions)
    plain = functions[which]

    def modifying(*args):
        value = plain(*args)
        for arg in args:
            arg *= 1.5
        return value

    functions[which] = modifying
    result = robust_least_squares(x0=[1.0, 0.5, 0.0], tau=0.2, **functions)
    np.testing.assert_array_equal(result.x, expected.x)


@pytest.mark.parametrize("tolerances", [{}, {"ftol": 0.0, "xtol": 1e-15, "gtol": 0.0}])
@pytest.mark.parametrize("kernel", ["quadratic", "smooth_truncated_quadratic"])
def test_a_start_at_the_minimum_is_a_success(kernel, tolerances):
    """Rounding errors of the residuals may exceed the decrease that is left."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        A = rng.normal(size=(50, 2)) * [1.0, 10.0]
        b = A @ [2.0, 1.0] + 10 ** rng.uniform(-6, 0) * rng.normal(size=50)
        best = np.linalg.lstsq(A, b, rcond=None)[0]
        result = robust_least_squares(
            lambda x, A, b: A @ x - b,
            best * (1 + 1e-9 * rng.normal(size=2)),
            args=(A, b),
            kernel=kernel,
            tau=10.0,
            **tolerances,
        )
        assert result.success or (tolerances and result.status == 0)
        np.testing.assert_allclose(result.x, best, rtol=0.1)


def chain(x):
    return np.concatenate([x[1:] ** 2 - x[:-1], x - 0.5])


def chain_pattern(n):
    eye = np.eye(n)
    return np.vstack([eye[1:] + eye[:-1], eye])


def test_jac_sparsity_saves_evaluations():
    n, calls = 30, []

    def fun(x):
        calls.append(1)
        return chain(x)

    x0 = np.linspace(0, 1, n)
    kwargs = {"kernel": "cauchy", "tau": 0.3}
    dense = robust_least_squares(chain, x0, "3-point", **kwargs)
    for pattern in (chain_pattern(n), scipy.sparse.csr_array(chain_pattern(n))):
        calls.clear()
        result = robust_least_squares(
            fun, x0, "3-point", jac_sparsity=pattern, **kwargs
        )
        assert scipy.sparse.issparse(result.jac)
        np.testing.assert_allclose(result.x, dense.x, atol=1e-6)
        np.testing.assert_allclose(result.jac.toarray(), dense.jac, atol=1e-6)
        assert len(calls) == result.nfev + 4 * result.njev


@pytest.mark.parametrize("seed", range(5))
def test_groups_of_columns_share_no_row(seed):
    rng = np.random.default_rng(seed)
    pattern = rng.random((40, 25)) < 0.08
    groups = independent_columns(pattern)
    assert groups.min() >= 0
    for g in range(groups.max() + 1):
        assert pattern[:, groups == g].sum(axis=1).max() <= 1


def test_workers():
    with ThreadPoolExecutor(2) as pool, parallel_config("threading"):
        for workers in (pool.map, 2, map):
            ours = robust_least_squares(
                rosenbrock, [-1.2, 1.0], workers=workers, kernel="quadratic"
            )
            np.testing.assert_allclose(ours.x, [1.0, 1.0], atol=1e-6)


# Scales of parameters, linear operators.


@pytest.mark.parametrize("x_scale", [None, "jac", 1.0, [1.0, 100.0]])
def test_x_scale(x_scale):
    result = robust_least_squares(
        rosenbrock, [-1.2, 1.0], rosenbrock_jac, x_scale=x_scale, kernel="quadratic"
    )
    assert result.success
    np.testing.assert_allclose(result.x, [1.0, 1.0], atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "sparse", "operator"])
def test_x_scale_is_a_change_of_variables(kind):
    """With x_scale=s, the run is that of x / s with x_scale=1."""
    t, y = decay_data(8)
    s = np.array([0.1, 10.0, 3.0])
    wrap = {
        "dense": lambda J: J,
        "sparse": scipy.sparse.csr_array,
        "operator": aslinearoperator,
    }[kind]
    x0 = np.array([1.0, 1.0, 0.0])
    one = robust_least_squares(
        lambda x: decay(x, t, y),
        x0,
        lambda x: wrap(decay_jac(x, t, y)),
        x_scale=s,
        max_nfev=12,
    )
    two = robust_least_squares(
        lambda x: decay(x * s, t, y),
        x0 / s,
        lambda x: wrap(decay_jac(x * s, t, y) * s),
        x_scale=1.0,
        max_nfev=12,
    )
    np.testing.assert_allclose(
        one.history.upper_bound, two.history.upper_bound, rtol=1e-6
    )


def test_x_scale_with_a_structure():
    first, second = (index.ravel() for index in np.indices((3, 5)))
    structure = BlockStructure(first, second, first_dim=1, second_dim=1)
    rng = np.random.default_rng(0)
    y = rng.uniform(1, 4, 15)
    s = rng.uniform(0.5, 2, 8)

    def fun(x):
        return x[:3][first] * x[3:][second] - y

    def blocks(x):
        return x[3:][second].reshape(-1, 1, 1), x[:3][first].reshape(-1, 1, 1)

    runs = [
        robust_least_squares(fun, np.ones(8), jac, x_scale=s, max_nfev=8, **kwargs)
        for jac, kwargs in (
            (blocks, {"structure": structure}),
            (lambda x: structure.to_sparse(*blocks(x)), {}),
        )
    ]
    one, two = (run.history.upper_bound for run in runs)
    np.testing.assert_allclose(one, two, rtol=1e-7)


@pytest.mark.parametrize("method", ["regemm", "fixed", "graduated", "joint"])
def test_linear_operators(method):
    t, y = decay_data(8)

    def operator(x, t, y):
        J = decay_jac(x, t, y)
        return LinearOperator(J.shape, matvec=J.dot, rmatvec=J.T.dot, dtype=float)

    kwargs = {"args": (t, y), "tau": 0.3, "criterion": method}
    ours = robust_least_squares(decay, [2.0, 1.0, 0.3], operator, **kwargs)
    dense = robust_least_squares(decay, [2.0, 1.0, 0.3], decay_jac, **kwargs)
    assert isinstance(ours.jac, LinearOperator)
    np.testing.assert_allclose(ours.x, dense.x, atol=1e-4)
    np.testing.assert_allclose(ours.covariance(), dense.covariance(), rtol=1e-2)
    with pytest.raises(ValueError, match="x_scale='jac' needs the columns"):
        robust_least_squares(decay, [1, 1, 0], operator, x_scale="jac", **kwargs)


# Words of scipy's, and bad input.


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ({"loss": "cauchy"}, "use kernel='cauchy'"),
        ({"loss": "linear"}, "use kernel='quadratic'"),
        ({"loss": "soft_l1"}, "kernel='huber' is the closest"),
        ({"loss": "arctan"}, "kernel='geman_mcclure' is bounded"),
        ({"loss": lambda z: z}, "derive from sklearn_mm.kernels.Kernel"),
        ({"loss": np.ones(2)}, "robust losses are called kernels"),
        ({"f_scale": 0.1}, "use tau instead"),
        ({"method": "trf"}, "only method"),
        ({"tr_solver": "lsmr"}, "type of the Jacobian"),
        ({"nope": 1}, "unexpected keyword argument 'nope'"),
    ],
)
def test_words_of_scipy(option, hint):
    with pytest.raises(TypeError, match=hint):
        robust_least_squares(rosenbrock, [1.0, 1.0], **option)


def test_every_argument_of_scipy_is_taken_or_answered():
    ours = inspect.signature(robust_least_squares).parameters
    theirs = inspect.signature(least_squares).parameters
    before = {"x_scale": 1.0, "kwargs": {}}  # in earlier versions, None now
    assert list(ours)[:4] == list(theirs)[:4] == ["fun", "x0", "jac", "bounds"]
    for name, parameter in theirs.items():
        if name in ours:
            assert parameter.default in (ours[name].default, before.get(name))
        else:  # loss, f_scale, method, tr_solver, tr_options
            with pytest.raises(TypeError, match=f"argument {name!r}: ..."):
                robust_least_squares(rosenbrock, [1.0, 1.0], **{name: None})


def test_positional_arguments():
    """As in scipy: fun, x0, jac, bounds."""
    ours = robust_least_squares(
        rosenbrock, [0.0, 0.0], rosenbrock_jac, ([-1.0, -1.0], [0.5, 2.0])
    )
    np.testing.assert_allclose(ours.x, [0.5, 0.25], atol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"fun": lambda x: None}, "it returned None"),
        ({"fun": lambda x: 1j * x}, "must return real residuals"),
        ({"jac": lambda x: None}, "jac must return the Jacobian, but it returned None"),
        ({"jac": lambda x: np.ones((2, 3))}, r"one column per parameter, shape \(2, 2"),
        ({"jac": lambda x: np.ones((2, 0))}, "one column per parameter"),
        (
            {"jac": lambda x: np.ones((2, 0)), "retract": lambda x, d: x},
            "without columns",
        ),
        ({"fun": chain, "jac": lambda x: np.ones((2, 3))}, "It looks transposed"),
        ({"jac": lambda x: 1j * rosenbrock_jac(x)}, "jac must return real numbers"),
        (
            {"jac": lambda x: scipy.sparse.csr_array(1j * rosenbrock_jac(x))},
            "jac must return real numbers",
        ),
        ({"jac": "cs", "fun": lambda x: rosenbrock(x.real)}, "fun returned real"),
        ({"jac": "cs", "retract": np.add}, "cannot be combined with retract"),
        ({"bounds": (0.0, 0.5)}, "x0 is infeasible: entry 0 is 1"),
        ({"bounds": ([1.0, 1.0], [1.0, 2.0])}, "strictly less.*Use `fixed`"),
        ({"bounds": (np.nan, 1.0)}, "strictly less"),
        ({"bounds": 3.0}, "bounds must be a pair"),
        ({"bounds": ([0.0] * 3, [1.0] * 3)}, "the lower bounds have shape"),
        ({"bounds": (0, 1), "retract": np.add}, "cannot be combined with retract"),
        ({"x_scale": -1.0}, "x_scale must be 'jac', a positive"),
        ({"x_scale": "nope"}, "x_scale must be 'jac', a positive"),
        ({"diff_step": 0.0}, "diff_step must be a finite non-zero number"),
        ({"jac_sparsity": np.ones((3, 3))}, "jac_sparsity must have the shape"),
        ({"fixed": [True, True]}, "All parameters are fixed"),
        ({"fixed": [2]}, "fixed must be a mask of 2 booleans"),
        ({"fixed": [0.5, 0.2]}, "fixed must be a mask of 2 booleans"),
        ({"fixed": [0, 0]}, "more than once. For a mask, use booleans"),
        (
            {"fun": lambda x: np.where(x > 1.0, np.nan, x)},
            "Jacobian contains NaN or infinity.*set bounds",
        ),
        ({"fun": lambda x: 1e-80 * rosenbrock(x + 1), "tau": "auto"}, "largest resid"),
        ({"known_inliers": [True]}, "known_inliers must be a mask of 2 booleans"),
        ({"known_inliers": [0], "criterion": "joint"}, "cannot be combined with known"),
        ({"tau": [1.0, 2.0, 3.0]}, "one number for each of the 2"),
        ({"tau": [1.0, 0.0]}, "tau must be positive"),
    ],
)
def test_bad_input(kwargs, message):
    kwargs = {"fun": rosenbrock, "x0": [1.0, 1.0], **kwargs}
    if kwargs["fun"] is chain:
        kwargs["x0"] = [1.0, 1.0]
    with pytest.raises(ValueError, match=message):
        robust_least_squares(**kwargs)


# Beyond scipy.


def test_tau_of_each_residual():
    t, y = decay_data(8)
    tau = np.linspace(0.1, 0.6, len(t))
    kwargs = {"args": (t, y), "gtol": 1e-11, "ftol": None, "xtol": None}
    for criterion in ("regemm", "fixed", "joint"):
        result = robust_least_squares(
            decay, [2.0, 1.0, 0.3], tau=tau, criterion=criterion, **kwargs
        )
        # Residuals in units of their widths, weighted by the widths' squares.
        z = np.square(result.fun / tau)
        np.testing.assert_allclose(
            result.cost, np.sum(tau**2 * (1 - np.maximum(1 - z, 0) ** 2) / 4)
        )
        np.testing.assert_allclose(result.weights, np.maximum(1 - z, 0))
        grad = decay_jac(result.x, t, y).T @ (result.weights * result.fun)
        np.testing.assert_allclose(result.grad, grad, atol=1e-6)
        assert np.abs(grad).max() < 1e-6
    same = [
        robust_least_squares(decay, [2.0, 1.0, 0.3], tau=tau, **kwargs).x
        for tau in (0.3, np.full(len(t), 0.3))
    ]
    np.testing.assert_allclose(*same, rtol=1e-9)


def test_known_inliers_keep_their_weight():
    """Two groups of equal size: the known ones decide."""
    values = np.repeat([0.0, 5.0], 10)
    known = np.zeros(20, dtype=bool)
    for k, expected in ((3, 0.0), (13, 5.0)):
        known[:] = False
        known[k] = True
        for mask in (known, np.array([k])):
            result = robust_least_squares(
                lambda x: x - values, [2.4], tau=1.0, known_inliers=mask, eta=0.5
            )
            np.testing.assert_allclose(result.x, expected, atol=1e-6)
            assert result.weights[k] == 1.0
    all_known = robust_least_squares(
        lambda x: x - values, [1.0], known_inliers=np.ones(20, dtype=bool)
    )
    np.testing.assert_allclose(all_known.x, 2.5, atol=1e-6)


@pytest.mark.parametrize("jac", [decay_jac, "2-point", "3-point", "cs"])
def test_fixed_parameters(jac):
    t, y = decay_data(8)
    for fixed in ([False, True, False], [1]):
        result = robust_least_squares(
            decay, [1.0, 1.2, 0.0], jac, fixed=fixed, args=(t, y), tau=0.3
        )
        assert result.x[1] == 1.2 and result.grad[1] == 0.0
        rest = robust_least_squares(
            lambda x: decay([x[0], 1.2, x[1]], t, y), [1.0, 0.0], "3-point", tau=0.3
        )
        np.testing.assert_allclose(result.x[[0, 2]], rest.x, rtol=1e-5)
        covariance = result.covariance()
        assert not covariance[1].any() and not covariance[:, 1].any()
        np.testing.assert_allclose(
            covariance[np.ix_([0, 2], [0, 2])], rest.covariance(), rtol=1e-3
        )


# The best point is kept.


@pytest.mark.parametrize("share", [0.5, 0.7])
def test_never_worse_than_the_start(share):
    """From the truth, with many outliers on one side."""
    left = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        t = rng.uniform(0, 3, 60)
        truth = np.array([2.5, 1.3, 0.5])
        y = decay(truth, t, 0.0) + 0.02 * rng.normal(size=60)
        wrong = rng.permutation(60)[: int(60 * share)]
        y[wrong] += rng.uniform(0.2, 2.0, len(wrong))
        result = robust_least_squares(decay, truth, args=(t, y), tau=0.08)
        start = robust_least_squares(decay, truth, args=(t, y), tau=0.08, max_nfev=1)
        assert result.cost <= start.cost
        assert result.success and result.optimality < 1e-3
        if "than that of x0" in result.message:
            left += 1
            np.testing.assert_allclose(result.x, truth, atol=0.3)
    if share == 0.7:
        assert left > 0


@pytest.mark.parametrize("kernel", ["smooth_truncated_quadratic", "welsch", "cauchy"])
@pytest.mark.parametrize(
    "criterion", ["regemm", "sudemm", "fixed", "graduated", "joint"]
)
def test_never_worse_than_any_start(criterion, kernel):
    """With 70 % outliers, whatever the start, the bounds and the number of steps."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        t, truth = rng.uniform(0, 3, 60), np.array([2.5, 1.3, 0.5])
        y = decay(truth, t, 0.0) + 0.02 * rng.normal(size=60)
        y[:42] += rng.uniform(0.2, 2.0, 42)
        options = {"args": (t, y), "kernel": kernel, "criterion": criterion}
        options |= {"tau": float(rng.choice([0.04, 0.08, 0.3]))}
        if seed % 2:
            options["bounds"] = (0.0, 4.0)
        x0 = truth * rng.uniform(0.7, 1.4, 3) if seed % 3 else truth
        # One evaluation is x0 itself.
        start = robust_least_squares(decay, x0, max_nfev=1, **options).cost
        for max_nfev in (4, 15, None):
            result = robust_least_squares(decay, x0, max_nfev=max_nfev, **options)
            assert result.cost <= start


def test_interrupt_keeps_what_was_reached():
    t, y = decay_data(8)
    for stop in (5, 12):
        calls = []

        def fun(x, stop=stop, calls=calls):
            calls.append(x)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return decay(x, t, y)

        with pytest.warns(ConvergenceWarning, match="Interrupted by the user"):
            result = robust_least_squares(fun, [1.0, 1.0, 0.0], decay_jac2(t, y))
        assert result.status == -4 and not result.success
        assert "Interrupted" in result.message
        assert any(np.array_equal(result.x, x) for x in calls[: stop - 1])
        costs = result.history.lower_bound
        assert result.cost <= costs.min() + 1e-12
    with pytest.raises(KeyboardInterrupt):  # nothing to keep yet

        def at_once(x):
            raise KeyboardInterrupt

        robust_least_squares(at_once, [1.0])


def decay_jac2(t, y):
    return lambda x: decay_jac(x, t, y)


def test_result_can_be_pickled():
    t, y = decay_data(8)
    result = robust_least_squares(lambda x: decay(x, t, y), [1.0, 1.0, 0.0], tau=0.3)
    again = pickle.loads(pickle.dumps(result))
    np.testing.assert_array_equal(again.x, result.x)
    np.testing.assert_array_equal(again.covariance(), result.covariance())
    assert "_fit" not in repr(result)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        repr(result), dir(result)
