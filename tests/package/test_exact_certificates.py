"""Certificates in exact arithmetic: what rounding does to the reported bounds.

Activations and slacks are floating-point numbers, i.e. rational ones. Their energies
and dual energies are recomputed here with fractions, so that ``dual <= J <= energy``
holds without any tolerance, and the reported bounds are compared with these. Rounding
is measured in units of the last place of the squares that energies are made of,
``scale = sum_k w_k (||z_{k+1}||^2 + ||W_k z_k + b_k||^2)``, over both phases.
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from linear_problem import make_model, make_problem

from sklearn_mm import ContrastiveHebbianRegressor
from sklearn_mm._hebbian.energy import Energy, dual_point_of
from sklearn_mm._hebbian.problem import ContrastiveProblem
from sklearn_mm._solver.roles import ALL_ROWS
from sklearn_mm.kernels import KERNELS

SIZES = (3, 4, 3, 2)
GAMMAS = (1.0, 0.5, 0.3, 0.1)


def exact(array):
    """Nested lists of the same numbers as fractions."""
    if np.ndim(array) == 0:
        return Fraction(float(array))
    return [exact(part) for part in array]


def dot(a, b):
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def columns(W):
    return list(zip(*W, strict=True))


class ExactNetwork:
    """Energies and dual energies of one row, from their definitions."""

    def __init__(self, network, x, y, drive=None):
        self.W = [exact(W) for W in network.coefs]
        self.b = [exact(b) for b in network.intercepts]
        self.gamma = Fraction(network.energy.gamma)
        self.x, self.y = exact(x), exact(y)
        # A drive held in single precision is one of a network with other biases.
        self.drive = self.affine(self.x, 0) if drive is None else exact(drive)
        self.n_hidden = len(self.W) - 1

    def affine(self, z, k):
        return [
            dot(z, w) + b for w, b in zip(columns(self.W[k]), self.b[k], strict=True)
        ]

    def weight(self, k):
        return self.gamma ** (k - self.n_hidden)

    def inputs(self, z, clamped):
        """z_1.. and what the layers below make of them."""
        layers = [exact(layer) for layer in z]
        assert all(value >= 0 for layer in layers for value in layer)
        below = [self.drive]
        below += [self.affine(layer, k) for k, layer in enumerate(layers, start=1)]
        return [*layers, self.y] if clamped else layers, below

    def energy(self, z, clamped):
        layers, below = self.inputs(z, clamped)
        value = Fraction(0)
        for k, (layer, made) in enumerate(zip(layers, below, strict=False)):
            r = [a - b for a, b in zip(layer, made, strict=True)]
            value += self.weight(k) * dot(r, r) / 2
        return value

    def scale(self, z, clamped):
        layers, below = self.inputs(z, clamped)
        return sum(
            self.weight(k) * (dot(layer, layer) + dot(made, made))
            for k, (layer, made) in enumerate(zip(layers, below, strict=False))
        )

    def dual(self, slacks, top=None):
        """D(mu); `top` is mu_{H+1} of the clamped phase, any vector."""
        slacks = [exact(layer) for layer in slacks]
        assert all(value >= 0 for layer in slacks for value in layer)
        above = None if top is None else exact(top)
        value = Fraction(0)
        if above is not None:
            value -= dot(above, above) / 2 + dot(above, self.b[-1]) - dot(above, self.y)
        for k in reversed(range(self.n_hidden)):
            mu = list(slacks[k])
            if above is not None:
                for j, row in enumerate(self.W[k + 1]):
                    mu[j] += self.gamma * dot(above, row)
            offset = self.drive if k == 0 else self.b[k]
            value -= self.weight(k) * (dot(mu, mu) / 2 + dot(mu, offset))
            above = mu
        return value


def make(seed, feedback, dtype, scale):
    rng = np.random.default_rng(seed)
    n_matrices = sum(a * b for a, b in pairwise(SIZES))
    theta = scale * rng.normal(size=n_matrices + sum(SIZES[1:]))
    X, Y = rng.normal(size=(2, SIZES[0])), rng.normal(size=(2, SIZES[-1]))
    weight = np.array([1.0, 0.5])
    energy = Energy(SIZES, feedback)
    problem = ContrastiveProblem(X.astype(dtype), Y.astype(dtype), weight, energy)
    return problem, problem.at(theta.astype(problem.dtype))


def looks(problem, point, efforts):
    """Reported and exact bounds of every row after each effort."""
    latent = problem.start(ALL_ROWS)
    network, hidden = point.network, problem.energy.hidden
    for effort in efforts:
        latent = problem.infer(point, latent, effort)
        reported = problem.row_bounds(point, latent)
        drive = problem.drive(network, problem.X)
        phases = reported.phases or latent.phases.snapshot()
        z_hat = [None, *(phases.z[k] + phases.d[k] for k in hidden)]
        # A dual point of the clamped phase, by one backward pass.
        clamped_slacks, error = dual_point_of(network, drive, problem.Y, z_hat)
        for i in range(problem.n_samples):

            def row(layers, i=i):
                return [layer[i] for layer in layers[1:]]

            single = problem.dtype == np.float32
            net = ExactNetwork(
                network, problem.X[i], problem.Y[i], drive[i] if single else None
            )
            upper = net.energy(row(z_hat), True) - net.dual(row(phases.s))
            lower = net.dual(row(clamped_slacks), error[i])
            lower = max(lower - net.energy(row(phases.z), False), Fraction(0))
            scale = net.scale(row(z_hat), True) + net.scale(row(phases.z), False)
            bounds = reported.lower[i], reported.upper[i]
            yield tuple(Fraction(float(b)) for b in bounds), (lower, upper), scale


# Rounding of the reported bounds in units of the last place of the scale.
ULPS = 2


@pytest.mark.parametrize("size", [0.7, 2.0])
@pytest.mark.parametrize("feedback", GAMMAS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_reported_bounds_are_the_exact_ones_to_rounding(dtype, feedback, size):
    ulp = Fraction(float(np.finfo(dtype).eps))
    for seed in range(3):
        problem, point = make(seed, feedback, dtype, size)
        assert problem.dtype == dtype
        for reported, (lower, upper), scale in looks(problem, point, [1, 1, 3, 30]):
            assert lower <= upper  # weak duality, without tolerance
            rounding = ULPS * ulp * scale
            assert abs(reported[1] - upper) <= rounding
            # Of the gap of the clamped phase, the difference form reports a bound.
            assert reported[0] <= max(lower, upper) + rounding


@pytest.mark.parametrize("feedback", GAMMAS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_loss_lies_between(dtype, feedback):
    ulp = Fraction(float(np.finfo(dtype).eps))
    for seed in range(3):
        problem, point = make(seed, feedback, dtype, 1.0)
        # The loss itself, to as many digits as activations have: exact bounds again.
        *_, (_, narrow_0, _), (_, narrow_1, _) = looks(problem, point, [3000])
        narrow = [narrow_0, narrow_1]
        for i, (reported, wide, scale) in enumerate(looks(problem, point, [1, 2, 5])):
            lower, upper = narrow[i % 2]
            assert wide[0] <= upper and lower <= wide[1]
            assert upper - lower <= 1e-9 * scale if dtype == np.float64 else True
            assert reported[0] <= upper + ULPS * ulp * scale
            assert lower <= reported[1] + ULPS * ulp * scale


@given(
    seed=st.integers(0, 10_000),
    feedback=st.sampled_from([*GAMMAS, 0.01, 1e-4]),
    dtype=st.sampled_from([np.float64, np.float32]),
    effort=st.sampled_from([1, 4, 50, 600]),
)
def test_reported_bounds_never_cross(seed, feedback, dtype, effort):
    problem, point = make(seed, feedback, dtype, 1.5)
    latent = problem.infer(point, problem.start(ALL_ROWS), effort)
    bounds = problem.evaluate(point, latent)
    assert 0.0 <= bounds.lower <= bounds.upper


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_bounds_of_a_fitted_estimator(dtype, rng):
    X = rng.normal(size=(6, 3)).astype(dtype)
    y = (X @ rng.normal(size=(3, 2))).astype(dtype)
    model = ContrastiveHebbianRegressor(
        (4, 3), random_state=0, solver="sgd", learning_rate_init=0.01
    )
    for _ in range(20):
        model.partial_fit(X, y)
    lower, upper = model.bounds(X, y)
    assert 0.0 <= lower <= upper <= lower * (1 + 2e-10)
    # Data and weights as they are, in double precision whatever their own.
    _, targets, weight = model._validate_targets(X, y, None, reset=False)
    problem = model._problem(X.astype(np.float64), targets[:].astype(float), weight)
    exact_bounds = list(looks(problem, problem.at(model._theta()), [1000]))
    rounding = max(ULPS * Fraction(2.0**-52) * scale for *_, scale in exact_bounds)
    mean_lower, mean_upper = (
        sum(bounds[side] for _, bounds, _ in exact_bounds) / len(X) for side in (0, 1)
    )
    assert lower <= mean_upper + rounding
    assert mean_lower <= upper + rounding


PRECISE = 120  # digits; numbers down to 1e-30 are squared and subtracted from one


def precise_loss(name, z):
    z = Decimal(float(z))
    rest = max(1 - z, Decimal(0))
    if name == "quadratic":
        return z / 2
    if name == "smooth_truncated_quadratic":
        return (1 - rest**2) / 4
    if name == "geman_mcclure":
        return z / (2 * (1 + z))
    if name == "welsch":
        return (1 - (-z).exp()) / 2
    if name == "cauchy":
        return (1 + z).ln() / 2
    if name == "tukey":
        return (1 - rest**3) / 6
    return z / 2 if z <= 1 else z.sqrt() - Decimal("0.5")


def precise_penalty(name, u):
    u = Decimal(float(u))
    if name == "smooth_truncated_quadratic":
        return (u - 1) ** 2 / 4
    if name == "geman_mcclure":
        return (u.sqrt() - 1) ** 2 / 2
    if name == "welsch":
        return (1 - u + (u * u.ln() if u else 0)) / 2
    if name == "cauchy":
        return (u - 1 - u.ln()) / 2
    if name == "tukey":
        return 1 / Decimal(6) - u / 2 + u * u.sqrt() / 3
    return (1 / u - 1) / 2


SQUARES = st.floats(1e-30, 1e30) | st.floats(0.0, 3.0).map(lambda z: max(z, 1e-30))
# The smallest weights have infinite penalties under some kernels.
CONFIDENCES = st.floats(1e-30, 1.0) | st.floats(0.0, 0.1).map(lambda d: 1.0 - d)


@pytest.mark.parametrize("name", sorted(KERNELS))
@given(z=SQUARES, u=CONFIDENCES)
@example(z=1e-8, u=1.0 - 1e-8)
@example(z=1.0, u=0.0 + 1e-30)
def test_half_quadratic_bound(name, z, u):
    kernel = KERNELS[name]
    if name == "quadratic":
        u = 1.0
    with localcontext(prec=PRECISE):
        loss = precise_loss(name, z)
        penalty = 0 if name == "quadratic" else precise_penalty(name, u)
        linear = Decimal(u) * Decimal(z) / 2
        upper = linear + penalty
        assert loss <= upper * (1 + Decimal(10) ** -60)  # the inequality itself
        ulp = Decimal(2) ** -52
        assert abs(Decimal(float(kernel.loss(z))) - loss) <= 4 * ulp * loss
        # Penalties are differences of numbers of the order of one.
        rounding = 4 * ulp * (1 + upper)
        reported = Decimal(float(kernel.upper_bound(z, u)))
        assert abs(reported - upper) <= rounding
        assert reported >= loss - rounding
        # The exact weight attains the loss.
        best = float(kernel.weight(z))
        if best > 1e-30:
            attained = Decimal(float(kernel.upper_bound(z, best)))
            assert abs(attained - loss) <= 4 * ulp * (1 + loss)


RATIONAL = ["quadratic", "smooth_truncated_quadratic", "geman_mcclure", "tukey"]


def rational_loss(name, z):
    rest = max(1 - z, Fraction(0))
    return {
        "quadratic": z / 2,
        "smooth_truncated_quadratic": (1 - rest**2) / 4,
        "geman_mcclure": z / (2 * (1 + z)),
        "tukey": (1 - rest**3) / 6,
    }[name]


@pytest.mark.parametrize("effort", [0.0, 0.3, 0.9, 1.0 - 1e-9, 1.0])
@pytest.mark.parametrize("name", RATIONAL)
def test_robust_objective_in_exact_arithmetic(name, effort, rng):
    X, Y = rng.normal(size=(15, 2)), rng.normal(size=(15, 2))
    Y[:5] += 8.0
    weight = rng.uniform(0.5, 2.0, size=15)
    model = make_model(X, Y, weight)
    problem = make_problem(model, weight, KERNELS[name], 0.7)
    point = problem.at(rng.normal(size=model.shape).ravel())
    latent = problem.infer(point, problem.start(ALL_ROWS), effort)
    bounds = problem.evaluate(point, latent)
    # From the residuals that the point holds.
    tau = Fraction(0.7)
    J = Fraction(0)
    for w, r in zip(exact(weight), exact(point.residual), strict=True):
        J += w * tau**2 * rational_loss(name, dot(r, r) / tau**2)
    rounding = 15 * Fraction(2.0**-52)  # terms are positive, and there are 15 of them
    assert bounds.lower <= bounds.upper
    assert abs(Fraction(bounds.lower) - J) <= rounding * J
    assert Fraction(bounds.upper) >= J * (1 - rounding)
