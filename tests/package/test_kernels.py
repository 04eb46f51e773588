"""Every kernel is what its docstring says: psi(z) = min_u u z / 2 + kappa(u)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import trapezoid
from scipy.optimize import minimize_scalar
from scipy.stats import chi

from sklearn_mm.kernels import (
    KERNELS,
    Kernel,
    corrected_r2,
    gaussian_moments,
    get_kernel,
)

ROBUST = [name for name in KERNELS if name != "quadratic"]
BOUNDED = ["smooth_truncated_quadratic", "geman_mcclure", "welsch", "tukey"]
SQUARES = np.concatenate(
    [
        [0.0, 5e-324, 1e-310, np.finfo(float).tiny, 1e-30, 1e-12],
        np.linspace(0.01, 4.0, 60),
        [1.0, np.nextafter(1.0, 0), np.nextafter(1.0, 2), 1e3, 1e8, 1e100, 1e300],
    ]
)


@pytest.mark.parametrize("name", KERNELS)
def test_bound_touches_loss_at_weight(name):
    kernel = KERNELS[name]
    z = SQUARES[SQUARES <= 1e8]
    bound = kernel.upper_bound(z, kernel.weight(z))
    assert_allclose(bound, kernel.loss(z), rtol=1e-7, atol=1e-15)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("z", [0.0, 5e-324, 1e-12, 0.04, 0.3, 0.999, 1.0, 1.7, 25.0])
def test_loss_is_the_minimum_over_weights(name, z):
    kernel = KERNELS[name]
    found = minimize_scalar(
        lambda u: float(kernel.upper_bound(z, u)),
        bounds=(1e-12, 1.0),
        method="bounded",
        options={"xatol": 1e-12},
    )
    # The search stays inside its bounds, and the minimum may be at the end.
    least = min(found.fun, float(kernel.upper_bound(z, 1.0)))
    assert_allclose(kernel.loss(z), least, atol=1e-9)
    if 0.01 < z < 1.0 or (z >= 1.0 and name in ("cauchy", "huber", "welsch")):
        assert_allclose(kernel.weight(z), found.x, atol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
@given(
    z=st.floats(0.0, 1e6),
    u=st.floats(1e-6, 1.0),
)
def test_bound_is_above_loss(name, z, u):
    kernel = KERNELS[name]
    loss = float(kernel.loss(z))
    assert float(kernel.upper_bound(z, u)) >= loss * (1 - 1e-12) - 1e-15


@pytest.mark.parametrize("name", KERNELS)
def test_weight_is_derivative_of_loss(name):
    # omega = psi'(r) / r = 2 dpsi/dz, by central differences away from the kink.
    kernel = KERNELS[name]
    z = np.concatenate([np.linspace(0.05, 0.95, 19), np.linspace(1.05, 9.0, 20)])
    h = 1e-6
    slope = (kernel.loss(z + h) - kernel.loss(z - h)) / (2 * h)
    assert_allclose(kernel.weight(z), 2 * slope, atol=1e-8)


@pytest.mark.parametrize("name", ROBUST)
def test_penalty_slope(name):
    kernel = KERNELS[name]
    u = np.linspace(0.05, 0.95, 10)
    slope = (kernel.penalty(u + 1e-6) - kernel.penalty(u - 1e-6)) / 2e-6
    assert_allclose(kernel.penalty_slope(u), slope, rtol=1e-6)
    # The weight minimises u z / 2 + penalty(u), so that slope(weight(z)) = -z / 2.
    z = np.array([1.5, 4.0]) if name == "huber" else np.array([0.1, 0.4, 0.8])
    assert_allclose(kernel.penalty_slope(kernel.weight(z)), -z / 2)


@pytest.mark.parametrize("name", ROBUST)
@given(u=st.floats(1e-9, 1.0), v=st.floats(1e-9, 1.0), t=st.floats(0.0, 1.0))
def test_penalty_is_convex_and_nonnegative(name, u, v, t):
    kappa = KERNELS[name].penalty
    middle = float(kappa(t * u + (1 - t) * v))
    chord = t * float(kappa(u)) + (1 - t) * float(kappa(v))
    assert middle <= chord * (1 + 1e-12) + 1e-14
    assert float(kappa(u)) >= 0.0
    assert float(kappa(1.0)) == 0.0


@pytest.mark.parametrize("name", KERNELS)
@given(z=st.floats(0.0, 1e12), step=st.floats(0.0, 1e12))
def test_weight_is_a_confidence_and_never_increases(name, z, step):
    weight = KERNELS[name].weight
    assert 0.0 <= float(weight(z + step)) <= float(weight(z)) <= 1.0
    assert float(weight(0.0)) == 1.0


@pytest.mark.parametrize("name", KERNELS)
def test_extreme_residuals_are_silent(name):
    # Overflow, division by zero and invalid operations raise; a density that
    # underflows to zero is right.
    kernel = KERNELS[name]
    z = np.append(SQUARES, np.inf)
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        loss, weight = kernel.loss(z), kernel.weight(z)
        penalty = kernel.penalty(weight)
        bound = kernel.upper_bound(z, weight)
    for values in (loss, weight, penalty, bound):
        assert not np.isnan(values).any()
    if name in BOUNDED:
        assert loss[-1] == loss.max() < 1.0
        assert weight[-1] == 0.0
        assert_allclose(bound[-1], loss[-1])


def test_subnormal_squares_keep_their_value():
    # Half of a tiny square, not zero: no kernel may compute 1 - (1 - z)**k.
    z = 1e-250
    for kernel in KERNELS.values():
        assert_allclose(kernel.loss(z), z / 2, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("smooth_truncated_quadratic", 3.673),
        ("geman_mcclure", 3.787),
        ("welsch", 2.985),
        ("cauchy", 2.385),
        ("tukey", 4.685),
        ("huber", 1.345),
    ],
)
def test_tuning_constants_of_the_literature(name, constant):
    """For 95% efficiency with one output."""
    kernel = KERNELS[name]
    assert_allclose(kernel.tuning_constant(), constant, atol=6e-4)
    assert_allclose(kernel.efficiency(constant), 0.95, atol=1e-4)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("d", [1, 2, 5])
def test_tuning_constant_gives_its_efficiency(name, d):
    # Independent reference: the asymptotic variance with the derivative of the
    # estimating function taken numerically, on a plain grid.
    kernel = KERNELS[name]
    if (name, d) == ("huber", 5):
        pytest.skip("more than 90 % efficient at any width")
    c = kernel.tuning_constant(d, 0.9)
    t = np.linspace(1e-6, 12.0, 400_001)
    density = chi.pdf(t, d)
    omega = kernel.weight(np.square(t / c))
    slope = np.gradient(omega, t)
    mean_derivative = trapezoid((omega + t * slope / d) * density, t)
    variance = trapezoid(np.square(t * omega) * density, t) / d
    assert_allclose(mean_derivative**2 / variance, 0.9, atol=1e-4)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("width", [0.7, 3.0, 40.0])
def test_gaussian_moments(name, d, width):
    kernel = KERNELS[name]
    t = np.linspace(1e-6, 12.0, 100_001)
    density, omega = chi.pdf(t, d), kernel.weight(np.square(t / width))
    expected = [trapezoid(m * density, t) for m in (omega, omega * t**2 / d)]
    assert_allclose(gaussian_moments(kernel, width, d), expected, atol=1e-5)


@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
def test_r2_does_not_depend_on_units(unit):
    left, total = unit * np.array([1.0, 0.0, 1.0, 0.0]), unit * np.repeat([4.0, 0.0], 2)
    # Constant targets come last.
    found = corrected_r2(left, total, KERNELS["quadratic"], np.inf)
    assert_allclose(found, [0.75, 1.0, 0.0, 1.0])
    # Weights make residuals look smaller.
    corrected = corrected_r2(left, total, KERNELS["tukey"], 4.685)
    assert corrected[0] < 0.75
    assert_array_equal(corrected[1:], found[1:])


def test_constant_grows_with_dimension():
    kernel = KERNELS["smooth_truncated_quadratic"]
    assert_allclose(kernel.tuning_constant(10), 5.77, atol=5e-3)


def test_huber_keeps_a_floor_where_any_width_is_efficient():
    assert KERNELS["huber"].tuning_constant(30) == pytest.approx(np.sqrt(30) / 2)


def test_quadratic_has_no_width():
    assert KERNELS["quadratic"].tuning_constant() == np.inf


def test_get_kernel():
    for name, kernel in KERNELS.items():
        assert get_kernel(name) is kernel
        assert get_kernel(kernel) is kernel
    with pytest.raises(ValueError, match="Unknown kernel 'nope'"):
        get_kernel("nope")


def test_base_class_asks_for_the_three_functions():
    kernel = Kernel()
    for method in (kernel.loss, kernel.weight, kernel.penalty):
        with pytest.raises(NotImplementedError):
            method(1.0)


def test_kernels_are_frozen_and_comparable():
    kernel = KERNELS["tukey"]
    assert kernel == type(kernel)()
    with pytest.raises(AttributeError):
        kernel.width = 2.0


def test_kernels_with_attributes_are_told_apart():
    class Wide(type(KERNELS["cauchy"])):
        def __init__(self, width):
            self.width = width

        def weight(self, z):
            return super().weight(np.asarray(z) / self.width**2)

    assert Wide(1.0) != Wide(2.0)
    assert Wide(1.0) == Wide(1.0)
    one, two = Wide(1.0).tuning_constant(), Wide(2.0).tuning_constant()
    assert_allclose(one, 2 * two, rtol=1e-6)


@pytest.mark.parametrize("d", [500, 3_000, 10_000])
def test_tuning_constant_of_many_dimensions(d):
    kernel = KERNELS["tukey"]
    c = kernel.tuning_constant(d)
    assert np.sqrt(d) / 2 < c < 50 * np.sqrt(d)
    # Residual norms are all but constant: efficiency is kept by ever less slack.
    assert c / np.sqrt(d) <= kernel.tuning_constant(50) / np.sqrt(50)


class TestTuningConstant:
    @pytest.mark.parametrize("efficiency", [-1.0, 0.0, 1.0, 1.5, np.nan])
    def test_of_impossible_efficiencies(self, efficiency):
        with pytest.raises(ValueError, match="efficiency must be in"):
            get_kernel("tukey").tuning_constant(efficiency=efficiency)

    def test_of_an_inefficient_kernel(self):
        class Spiky(Kernel):
            def weight(self, z):
                return 1.0 / (1e-6 + np.sqrt(z))

        with pytest.raises(ValueError, match="Spiky is less than 95% efficient"):
            Spiky().tuning_constant()
