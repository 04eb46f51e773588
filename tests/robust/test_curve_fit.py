"""robust_curve_fit: curve_fit's conventions and results, and outliers beyond it."""

import inspect

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import Bounds, curve_fit
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import robust_curve_fit, robust_least_squares
from sklearn_mm.kernels import get_kernel

TRUTH = np.array([2.5, 1.3, 0.5])


def model(x, a, b, c):
    return a * np.exp(-b * x) + c


def model_jac(x, a, b, c):
    e = np.exp(-b * x)
    return np.column_stack([e, -a * x * e, np.ones_like(x)])


def data(outliers=0, seed=0, n=60):
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 4, n)
    y = model(x, *TRUTH) + 0.05 * rng.normal(size=n)
    wrong = rng.permutation(n)[:outliers]
    y[wrong] += rng.uniform(1, 3, outliers)
    return x, y, np.isin(np.arange(n), wrong)


def covariance_of_noise(n):
    k = np.arange(n)
    return 0.01 * 0.5 ** np.abs(k[:, None] - k)


SIGMAS = {
    "none": None,
    "number": 0.05,
    "vector": np.linspace(0.03, 0.1, 60),
    "matrix": covariance_of_noise(60),
}


@pytest.mark.parametrize("jac", [None, model_jac, "3-point", "cs"])
@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", SIGMAS)
def test_quadratic_kernel_is_curve_fit(name, absolute, jac):
    x, y, _ = data()
    sigma = SIGMAS[name]
    tight = {"ftol": 1e-14, "xtol": 1e-14, "gtol": 1e-14, "max_nfev": 1000}
    theirs = curve_fit(
        model,
        x,
        y,
        # scipy's Jacobian does not know numbers.
        sigma=np.full(60, sigma) if name == "number" else sigma,
        absolute_sigma=absolute,
        method="trf",
        jac=model_jac,
        **tight,
    )
    ours = robust_curve_fit(
        model, x, y, None, sigma, absolute, jac=jac, kernel="quadratic", **tight
    )
    rtol = 1e-4 if jac is None else 1e-6
    np.testing.assert_allclose(ours[0], theirs[0], rtol=rtol)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=rtol)


def test_signature_begins_like_curve_fit():
    ours = list(inspect.signature(robust_curve_fit).parameters)
    theirs = list(inspect.signature(curve_fit).parameters)
    assert ours[:6] == theirs[:6]


@pytest.mark.parametrize("share", [0, 12, 21])
@pytest.mark.parametrize("seed", range(3))
def test_outliers_are_found(share, seed):
    x, y, wrong = data(share, seed)
    popt, pcov, info, message, status = robust_curve_fit(model, x, y, full_output=True)
    right = curve_fit(model, x[~wrong], y[~wrong])
    deviations = np.sqrt(np.diag(right[1]))
    assert np.all(np.abs(popt - right[0]) < 1.5 * deviations)
    np.testing.assert_allclose(np.sqrt(np.diag(pcov)), deviations, rtol=0.5)
    assert 0.03 < info["scale"] < 0.08
    assert info["outliers"][wrong].all() and info["outliers"].sum() <= share + 3
    assert set(info) >= {"nfev", "fvec", "weights", "outliers", "scale", "result"}
    np.testing.assert_allclose(info["fvec"], model(x, *popt) - y)
    assert status > 0 and isinstance(message, str)


def test_sigma_says_which_points_are_exact():
    """Points with large sigma are not outliers."""
    rng = np.random.default_rng(0)
    x, _, _ = data()
    sigma = np.where(np.arange(60) % 3 == 0, 0.5, 0.05)
    y = model(x, *TRUTH) + sigma * rng.normal(size=60)
    y[7] += 3.0
    _, _, info, *_ = robust_curve_fit(model, x, y, sigma=sigma, full_output=True)
    assert 0.7 < info["scale"] < 1.4
    assert info["outliers"][7] and info["outliers"].sum() <= 3
    # In relative terms, the size of sigma does not matter.
    one = robust_curve_fit(model, x, y, sigma=sigma)
    two = robust_curve_fit(model, x, y, sigma=10 * sigma)
    np.testing.assert_allclose(one[0], two[0], rtol=1e-4)
    np.testing.assert_allclose(one[1], two[1], rtol=1e-3)


def test_absolute_sigma_and_given_scales():
    x, y, wrong = data(12)
    options = {"sigma": np.full(60, 0.05), "full_output": True}
    _, pcov, info, *_ = robust_curve_fit(model, x, y, absolute_sigma=True, **options)
    assert info["scale"] == 1.0
    assert_allclose(pcov, info["result"].covariance(absolute=True))
    np.testing.assert_array_equal(info["outliers"] | wrong, info["outliers"])
    tau = info["result"].tau
    assert tau == pytest.approx(3.673, abs=1e-3)
    *_, info, _, _ = robust_curve_fit(model, x, y, scale=2.0, **options)
    assert info["result"].tau == pytest.approx(2 * tau)


@pytest.mark.parametrize("seed", range(6))
def test_known_errors_do_not_need_a_better_start(seed):
    # A kernel as narrow as the noise sees only a few points from afar: outliers.
    x = np.linspace(0, 4, 50)
    y = model(x, *TRUTH) + 0.2 * np.random.default_rng(seed).normal(size=50)
    y[::6] += 5.0
    options = {"sigma": 0.2, "absolute_sigma": True, "full_output": True}
    found, _, info, *_ = robust_curve_fit(model, x, y, **options)
    best, *_ = robust_curve_fit(model, x, y, TRUTH, **options)
    np.testing.assert_allclose(found, best, rtol=1e-3)
    np.testing.assert_array_equal(info["outliers"][::6], True)


def test_absolute_covariance_is_that_of_the_noise():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 4, 60)
    tau = get_kernel("smooth_truncated_quadratic").tuning_constant()
    fits = []
    for noise in rng.normal(size=(120, 60)):
        y = model(x, *TRUTH) + 0.05 * noise
        fits.append(
            # Without the second start of robust_curve_fit, which takes long.
            robust_least_squares(
                lambda p, y=y: (model(x, *p) - y) / 0.05,
                TRUTH,
                tau=tau,
                criterion="fixed",
            )
        )
    ratio = np.mean([np.diag(fit.covariance(absolute=True)) for fit in fits], axis=0)
    ratio /= np.var([fit.x for fit in fits], axis=0)
    assert np.all((ratio > 0.7) & (ratio < 1.45)), ratio


@pytest.mark.parametrize(
    "bounds", [([0, 0, 0], [2.0, 2.0, 0.4]), Bounds(0, [2.0, 2.0, 0.4]), (0, np.inf)]
)
def test_bounds(bounds):
    x, y, _ = data()
    theirs = curve_fit(model, x, y, bounds=bounds)[0]
    ours = robust_curve_fit(model, x, y, bounds=bounds, kernel="quadratic")[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@pytest.mark.parametrize("bounds", [(0.0,), ([0.0] * 4, 1.0), ("low", 1.0), None])
def test_errors_of_bounds_are_told_with_a_default_start(bounds):
    x, y, _ = data()
    told = []
    for p0 in (None, np.ones(3)):
        with pytest.raises(ValueError, match=r"bound|convert") as error:
            robust_curve_fit(model, x, y, p0, bounds=bounds)
        told.append(str(error.value))
    assert told[0] == told[1]


def test_start_is_scipys():
    seen = []

    def f(x, a, b, c, d):
        seen.append([a, b, c, d])
        return a + b * x + c * x**2 + d * x**3

    x, y, _ = data()
    bounds = ([-np.inf, 2.0, -np.inf, 1.0], [np.inf, np.inf, 5.0, 2.0])
    for fit in (curve_fit, robust_curve_fit):
        seen.clear()
        fit(f, x, y, bounds=bounds)
        np.testing.assert_allclose(seen[0], [1.0, 3.0, 4.0, 1.5], rtol=1e-6)
    seen.clear()
    robust_curve_fit(f, x, y, kernel="quadratic")
    np.testing.assert_array_equal(seen[0], np.ones(4))


def test_several_predictors_and_methods():
    class Plane:
        def height(self, xy, a, b):
            return a * xy[0] + b * xy[1]

    rng = np.random.default_rng(0)
    xy = rng.normal(size=(2, 50))
    z = Plane().height(xy, 2.0, -1.0) + 0.01 * rng.normal(size=50)
    z[:10] = 20.0
    popt, _ = robust_curve_fit(Plane().height, xy, z)
    np.testing.assert_allclose(popt, [2.0, -1.0], atol=0.02)


def test_nan_policy():
    x, y, _ = data(5)
    y[3], x[10] = np.nan, np.nan
    sigma = np.linspace(0.04, 0.06, 60)
    kept = np.isfinite(x) & np.isfinite(y)
    for spread in (sigma, np.diag(sigma**2)):
        popt, _ = robust_curve_fit(model, x, y, sigma=spread, nan_policy="omit")
        same, _ = robust_curve_fit(model, x[kept], y[kept], sigma=sigma[kept])
        np.testing.assert_allclose(popt, same, rtol=1e-6)
    with pytest.raises(ValueError, match="NaN at 2 points"):
        robust_curve_fit(model, x, y, nan_policy="raise")
    with pytest.raises(ValueError, match=r"xdata contains NaN.*nan_policy='omit'"):
        robust_curve_fit(model, x, y)
    with pytest.raises(ValueError, match="last axis has the length of ydata, 60"):
        robust_curve_fit(
            lambda x, a, b: x @ [a, b], np.ones((60, 2)), y, nan_policy="omit"
        )


def test_points_with_one_of_several_coordinates_missing(rng):
    def plane(xy, a, b):
        return a * xy[0] + b * xy[1]

    xy = rng.normal(size=(2, 50))
    z = plane(xy, 2.0, -1.0) + 0.01 * rng.normal(size=50)
    xy[0, 3], xy[1, 7] = np.nan, np.nan
    kept = np.isfinite(xy).all(axis=0)
    popt, _ = robust_curve_fit(plane, xy, z, nan_policy="omit")
    same, _ = robust_curve_fit(plane, xy[:, kept], z[kept])
    np.testing.assert_allclose(popt, same, rtol=1e-12)


def test_models_in_single_precision():
    x, y, _ = data(12)

    def single(x, a, b, c):
        return model(np.float32(x), *np.float32([a, b, c]))

    popt, pcov = robust_curve_fit(single, x, y)
    expected = robust_curve_fit(model, x, y)
    np.testing.assert_allclose(popt, expected[0], atol=0.01)
    np.testing.assert_allclose(pcov, expected[1], rtol=0.2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"ydata": []}, ValueError, "must not be empty"),
        ({"ydata": np.ones((2, 2))}, ValueError, "one dimension"),
        ({"ydata": 1j * np.ones(60)}, ValueError, "must be real"),
        ({"f": lambda x, *p: x}, ValueError, "Pass p0"),
        ({"f": lambda x, a: None}, ValueError, "got None"),
        ({"f": lambda x, a: np.ones(3)}, ValueError, r"array of shape \(60,\)"),
        ({"sigma": np.zeros(60)}, ValueError, "sigma must be positive"),
        ({"sigma": np.ones(3)}, ValueError, "sigma must be a number or have shape"),
        ({"sigma": -np.eye(60)}, ValueError, "positive definite"),
        ({"scale": -1.0}, ValueError, "'scale' parameter"),
        ({"nan_policy": "propagate"}, ValueError, "'nan_policy' parameter"),
        ({"jac": lambda x, a, b, c: np.ones((60, 2))}, ValueError, "jac must return"),
        ({"method": "lm"}, TypeError, "only method"),
        ({"loss": "cauchy"}, TypeError, "kernel='cauchy'"),
        ({"tau": 1.0}, TypeError, "'tau'. Pass scale"),
        ({"args": (1,)}, TypeError, "'args'. f is called with xdata"),
        ({"structure": None}, TypeError, "'structure'. Use robust_least_squares"),
        ({"epsfcn": 1e-8}, TypeError, "robust_curve_fit.*'epsfcn': use diff_step"),
        ({"maxfev": 2, "scale": 0.05}, RuntimeError, "not found: The maximum number"),
    ],
)
def test_bad_input(change, error, message):
    x, y, _ = data()
    with pytest.raises(error, match=message):
        robust_curve_fit(**{"f": model, "xdata": x, "ydata": y, **change})


def test_as_many_points_as_parameters():
    """The covariance is infinite, as scipy's is."""
    x, y, _ = data()
    with pytest.warns(ConvergenceWarning, match="cannot be estimated"):
        _, pcov = robust_curve_fit(model, x[::20], y[::20], TRUTH)
    assert len(x[::20]) == 3 and np.isposinf(pcov).all()


def test_exact_data():
    x = np.linspace(0, 4, 30)
    y = model(x, *TRUTH)
    y[::5] += 1.0
    popt, _, info, *_ = robust_curve_fit(model, x, y, full_output=True)
    np.testing.assert_allclose(popt, TRUTH, rtol=1e-5)
    np.testing.assert_array_equal(np.flatnonzero(info["outliers"]), np.arange(0, 30, 5))
    assert info["scale"] < 1e-6


def test_undetermined_parameters_have_infinite_variances(rng):
    x = np.linspace(0.0, 1.0, 40)
    y = x + 0.01 * rng.normal(size=40)
    with pytest.warns(ConvergenceWarning, match="parameters 0, 1.*infinite"):
        _, pcov = robust_curve_fit(lambda x, a, b, c: (a + b) * x + c, x, y)
    assert np.isinf(pcov[:2]).all()
    assert np.isinf(pcov[:, :2]).all()
    _, alone = robust_curve_fit(lambda x, a, c: a * x + c, x, y)
    assert_allclose(pcov[2, 2], alone[1, 1], rtol=0.02)


@pytest.mark.filterwarnings("error:overflow")
def test_columns_that_vanish(rng):
    x = np.linspace(0, 4, 50)
    popt, _ = robust_curve_fit(model, x, np.zeros(50))
    np.testing.assert_allclose(popt[[0, 2]], 0.0, atol=1e-12)

    def faint(x, a, b, c):
        return model(x, 1e-160 * a, b, c)

    with pytest.warns(ConvergenceWarning, match="parameters 0, 1.*infinite"):
        _, pcov = robust_curve_fit(faint, x, 1.0 + 0.1 * rng.normal(size=50))
    assert np.isinf(pcov[:2]).all() and 0.01 < np.sqrt(pcov[2, 2]) < 0.02


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("scale", ["auto", 0.05])
@pytest.mark.parametrize("call", [5, 150])
def test_interrupts_are_passed_on(scale, call):
    """Callers that catch the RuntimeError of a failed fit still stop at Ctrl-C."""
    x, y, _ = data()
    calls = 0

    def interrupted(x, a, b, c):
        nonlocal calls
        calls += 1
        if calls == call:
            raise KeyboardInterrupt
        return model(x, a, b, c)

    with pytest.raises(KeyboardInterrupt):
        robust_curve_fit(interrupted, x, y, scale=scale)
