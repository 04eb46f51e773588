"""tau="auto": the core of residuals, and where the search for it begins."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import least_squares
from scipy.optimize._numdiff import approx_derivative
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import robust_least_squares
from sklearn_mm._robust.auto_width import (
    _REFINED,
    _RUNGS,
    Candidate,
    _likeliest,
    _log_likelihood,
    find_width,
)
from sklearn_mm._robust.core import Core, find_core, median_scale
from sklearn_mm.kernels import get_kernel

TRUTH = np.array([2.5, 1.3, 0.5])


def decay(x, t, y):
    return x[0] * np.exp(-x[1] * t) + x[2] - y


def contaminated(share, seed, how="one-sided", n=100, noise=0.05):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 4, n))
    y = decay(TRUTH, t, 0.0) + noise * rng.normal(size=n)
    wrong = rng.permutation(n)[: int(share * n)]
    if how == "one-sided":
        y[wrong] += rng.uniform(0.3, 4, len(wrong))
    elif how == "symmetric":
        y[wrong] += rng.uniform(-4, 4, len(wrong))
    else:
        y[wrong] = 9.9
    return t, y, ~np.isin(np.arange(n), wrong)


# The core.


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("share", [1.0, 0.7, 0.5])
def test_core_of_a_mixture(d, share):
    rng = np.random.default_rng(0)
    n = 20_000
    count = int(share * n)
    directions = rng.normal(size=(n - count, d))
    directions /= np.linalg.norm(directions, axis=1)[:, None]
    background = 20.0 * rng.uniform(size=(n - count, 1)) ** (1 / d) * directions
    vectors = np.concatenate([0.3 * rng.normal(size=(count, d)), background])
    norms = np.linalg.norm(vectors, axis=1)
    for begin in (0.15, 0.3, 0.6):
        core = find_core(norms, d, 0, begin)
        assert core.scale == pytest.approx(0.3, rel=0.05)
        assert core.share == pytest.approx(share, abs=0.03)


def test_core_counts_parameters():
    """Least squares with many parameters: the residuals are too small."""
    rng = np.random.default_rng(0)
    scales = []
    for _ in range(40):
        X, y = rng.normal(size=(60, 15)), rng.normal(size=60)
        r = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
        start = median_scale(np.abs(r), 1)
        scales.append(find_core(np.abs(r), 1, 15, start).scale)
    assert np.median(scales) == pytest.approx(1.0, abs=0.1)


# The width.


@pytest.mark.parametrize("how", ["one-sided", "symmetric", "value"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("x0", [[1.0, 1.0, 1.0], [2.4, 1.4, 0.4]])
def test_noise_and_parameters_are_found(how, share, x0):
    for seed in range(2):
        t, y, right = contaminated(share, seed, how)
        result = robust_least_squares(decay, x0, tau="auto", args=(t, y))
        oracle = least_squares(decay, TRUTH, args=(t[right], y[right])).x
        error = decay(result.x, t, decay(oracle, t, 0.0))
        assert np.sqrt(np.mean(error**2)) < 0.02
        assert 0.5 < result.scale / 0.05 < 1.6
        kernel = get_kernel("smooth_truncated_quadratic")
        assert result.tau == pytest.approx(kernel.tuning_constant() * result.scale)
        assert result.success


@pytest.mark.parametrize("share, most", [(0.3, 1), (0.4, 2)])
def test_a_tight_cluster_of_outliers(share, most):
    """Curves through the cluster fit it closer than the noise lets them fit others."""
    lost = 0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        t, y, right = contaminated(share, seed, n=30)
        wrong = ~right
        t[wrong] = rng.uniform(0.5, 3.5) + 0.05 * rng.normal(size=wrong.sum())
        y[wrong] = rng.uniform(2, 4) + 0.01 * rng.normal(size=wrong.sum())
        result = robust_least_squares(decay, np.ones(3), tau="auto", args=(t, y))
        oracle = least_squares(decay, TRUTH, args=(t[right], y[right])).x
        grid = np.linspace(0, 4, 50)
        error = decay(result.x, grid, decay(oracle, grid, 0.0))
        lost += np.sqrt(np.mean(error**2)) > 0.1
    assert lost <= most


def test_a_function_that_cannot_be_evaluated_everywhere():
    """Small subsets lead far away; errors there are not the user's business."""
    t, y, _ = contaminated(0.2, 0)

    def fun(x):
        if np.abs(x).max() > 20.0:
            raise ValueError("out of range")
        return decay(x, t, y)

    result = robust_least_squares(fun, [2.0, 1.0, 1.0], tau="auto")
    np.testing.assert_allclose(result.x, TRUTH, atol=0.3)


def test_units_do_not_matter():
    t, y, _ = contaminated(0.3, 0)
    one = robust_least_squares(decay, [1.0, 1.0, 1.0], tau="auto", args=(t, y))
    for unit in (1e-8, 1e8):
        two = robust_least_squares(
            lambda x, unit=unit: unit * decay(x, t, y), [1.0, 1.0, 1.0], tau="auto"
        )
        np.testing.assert_allclose(two.x, one.x, rtol=1e-3)
        np.testing.assert_allclose(two.scale, unit * one.scale, rtol=1e-3)


def test_least_squares_keeps_to_the_number_of_evaluations():
    t, y, _ = contaminated(0.3, 0)
    calls = []

    def counted(x):
        calls.append(x)
        return decay(x, t, y)

    def jac(x):
        return approx_derivative(decay, x, args=(t, y))

    options = {"kernel": "quadratic", "tau": "auto", "max_nfev": 4, "ftol": None}
    result = robust_least_squares(counted, [9.0, 9.0, 9.0], jac, **options)
    assert result.nfev == len(calls) == 4


def test_a_good_start_is_kept():
    """Where 60 % lie on one side, only x0 says which part is right."""
    kept = 0
    for seed in range(6):
        t, y, _ = contaminated(0.6, seed, noise=0.02)
        result = robust_least_squares(decay, TRUTH, tau="auto", args=(t, y))
        kept += np.abs(result.x - TRUTH).max() < 0.15
        start = robust_least_squares(
            decay, TRUTH, tau=result.tau, args=(t, y), max_nfev=1
        )
        assert result.cost <= start.cost * (1 + 1e-12)
    assert kept >= 5


@pytest.mark.parametrize("kernel", ["cauchy", "tukey", "huber", "quadratic"])
@pytest.mark.parametrize("criterion", ["regemm", "joint", "graduated"])
def test_kernels_and_criteria(kernel, criterion):
    if criterion == "joint" and kernel in ("huber", "quadratic"):
        pytest.skip("weights cannot be lifted")
    t, y, _ = contaminated(0.1, 0, "symmetric")
    result = robust_least_squares(
        decay,
        [2.0, 1.0, 0.3],
        args=(t, y),
        tau="auto",
        kernel=kernel,
        criterion=criterion,
    )
    assert result.success
    if kernel != "quadratic":
        np.testing.assert_allclose(result.x, TRUTH, atol=0.15)


def test_vectors():
    rng = np.random.default_rng(0)
    points = 0.2 * rng.normal(size=(150, 2)) + [1.0, 2.0]
    points[:50] += rng.uniform(1, 6, (50, 2))
    result = robust_least_squares(
        lambda x: (points - x).ravel(), [5.0, 5.0], residual_dim=2, tau="auto"
    )
    np.testing.assert_allclose(result.x, [1.0, 2.0], atol=0.06)
    assert result.scale == pytest.approx(0.2, rel=0.2)


def test_bounds_and_fixed_parameters():
    t, y, _ = contaminated(0.3, 0)
    result = robust_least_squares(
        decay,
        [1.0, 1.3, 0.2],
        bounds=([0, 0, 0], [2.2, 5, 5]),
        fixed=[1],
        args=(t, y),
        tau="auto",
    )
    assert result.x[0] == 2.2 and result.x[1] == 1.3
    np.testing.assert_array_equal(result.active_mask, [1, 0, 0])


def test_interrupted_search():
    t, y, _ = contaminated(0.3, 0)
    for stop in (3, 30, 200):
        calls = []

        def fun(x, calls=calls, stop=stop):
            calls.append(x)
            if len(calls) == stop:
                raise KeyboardInterrupt
            return decay(x, t, y)

        with pytest.warns(ConvergenceWarning, match="Interrupted"):
            result = robust_least_squares(fun, [1.0, 1.0, 1.0], tau="auto")
        assert result.status == -4 and np.isfinite(result.cost)


def test_least_squares_has_no_width_to_search_for():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(100, 3))
    b = A @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=100)
    result = robust_least_squares(
        lambda x: A @ x - b, np.zeros(3), kernel="quadratic", tau="auto"
    )
    best, cost, *_ = np.linalg.lstsq(A, b, rcond=None)
    np.testing.assert_allclose(result.x, best, rtol=1e-6)
    assert result.nfev < 10
    assert result.tau == result.scale == pytest.approx(np.sqrt(cost[0] / 97), rel=0.15)


def test_start_at_an_exact_solution():
    t = np.linspace(0, 4, 30)
    result = robust_least_squares(
        decay, TRUTH, args=(t, decay(TRUTH, t, 0.0)), tau="auto"
    )
    np.testing.assert_allclose(result.x, TRUTH)
    assert result.success


def test_a_subset_that_leads_astray_is_left_out():
    """Fits to few points with the first one end where fun cannot be evaluated."""
    rng = np.random.default_rng(0)
    t = np.linspace(0.5, 2.0, 20)
    y = 2.0 * t + 0.01 * rng.normal(size=20)
    y[0] = 1e3
    astray = []

    def fun(x):
        if abs(x[0]) > 50.0:
            astray.append(x[0])
            raise ValueError("no such model")
        return x[0] * t - y

    result = robust_least_squares(fun, [1.0], tau="auto")
    assert astray  # otherwise the test tells nothing
    assert result.success
    np.testing.assert_allclose(result.x, 2.0, atol=0.05)


@pytest.mark.parametrize("unit", [1.0, 1e-12, 1e12])
def test_without_a_majority_units_do_not_matter(rng, unit):
    residual = np.concatenate([rng.normal(size=40), rng.uniform(-50, 50, 60)])[:, None]
    cores = [Core(unit * scale, 0.4) for scale in (1.0, 5.0)]
    point = SimpleNamespace(residual=unit * residual)
    candidates = [Candidate(point, core) for core in cores]
    assert _likeliest(candidates, 1, 1, 50.0 * unit).core == cores[0]


@pytest.mark.parametrize("d", [1, 2])
def test_likelihood_has_the_units_of_a_density(d):
    """Also where the others are near each other; the more so is then likelier."""
    found = []
    for spread, unit in ((3.0, 1.0), (1.0, 1.0), (1.0, 1e-3), (1.0, 1e3)):
        residual = np.random.default_rng(0).normal(size=(100, d))
        residual[60:] = 30.0 + spread * residual[60:]
        point = SimpleNamespace(residual=unit * residual)
        candidate = Candidate(point, Core(unit, 0.6))
        nats = _log_likelihood(candidate, d, 50.0 * unit)
        found.append(nats + 100 * d * np.log(unit))
    assert found[1] > found[0] + 10.0
    np.testing.assert_allclose(found[2:], found[1], rtol=1e-9)


def test_the_search_ends_once_the_scale_has_settled(rng):
    """As it has at once where all fits stay where they are."""
    point = SimpleNamespace(residual=rng.normal(size=(100, 1)))
    model = SimpleNamespace(residual_dim=1, linearized=lambda point: point)
    scales = []

    def solve(point, scale, exact):
        scales.append(scale)
        return point, False

    find_width(solve, lambda point, _: (point, False), model, point, 1)
    # At x0 and as wide as its residuals, on the ladder, from subsets, and one refit.
    assert len(scales) == 2 + len(_RUNGS) + _REFINED + 1
