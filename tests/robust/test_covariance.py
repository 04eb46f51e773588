"""Covariance of robust fits: curve_fit's where it applies, and simulation."""

import numpy as np
import pytest
import scipy.sparse
from scipy.optimize import curve_fit
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import BlockStructure, robust_least_squares
from sklearn_mm._robust.covariance import (
    Influence,
    PsiMoments,
    inverse_gram,
    inverse_symmetric,
    nonrobust_covariance,
    psi_moments,
    sandwich_covariance,
    t_quantile,
    undetermined,
)
from sklearn_mm.kernels import KERNELS, get_kernel

T = np.linspace(0, 4, 60)
TRUTH = np.array([2.5, 1.3, 0.5])
TIGHT = {"ftol": 1e-14, "xtol": 1e-14, "gtol": 1e-13, "max_nfev": 1000}


def model(t, a, b, c):
    return a * np.exp(-b * t) + c


def jac(x, t=T):
    e = np.exp(-x[1] * t)
    return np.column_stack([e, -x[0] * t * e, np.ones_like(t)])


def noisy(rng, wrong=()):
    y = model(T, *TRUTH) + 0.05 * rng.normal(size=T.size)
    y[list(wrong)] += rng.uniform(1, 3, len(wrong))
    return y


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("seed", range(3))
def test_quadratic_kernel_is_curve_fit(kind, seed):
    y = noisy(np.random.default_rng(seed))
    theirs = curve_fit(
        model, T, y, TRUTH, method="trf", jac=lambda t, *x: jac(x), **TIGHT
    )[1]

    def derivative(x):
        return scipy.sparse.csr_array(jac(x)) if kind == "sparse" else jac(x)

    ours = robust_least_squares(
        lambda x: model(T, *x) - y, TRUTH, derivative, kernel="quadratic", **TIGHT
    )
    np.testing.assert_allclose(ours.covariance(), theirs, rtol=1e-6)


@pytest.mark.parametrize(
    ("kernel", "wrong"),
    [
        ("smooth_truncated_quadratic", ()),
        ("smooth_truncated_quadratic", range(3, 60, 5)),
        ("tukey", ()),
        ("tukey", range(3, 60, 5)),
        ("huber", ()),
    ],
)
def test_against_simulation(kernel, wrong):
    """The mean estimated variance is the variance of the estimates."""
    rng = np.random.default_rng(0)
    tau = 0.05 * get_kernel(kernel).tuning_constant()
    estimates, variances = [], []
    for _ in range(150):
        y = noisy(rng, wrong)
        result = robust_least_squares(
            lambda x, y=y: model(T, *x) - y,
            TRUTH,
            jac,
            kernel=kernel,
            tau=tau,
            criterion="fixed",
        )
        estimates.append(result.x)
        variances.append(np.diag(result.covariance()))
    ratio = np.mean(variances, axis=0) / np.var(estimates, axis=0)
    # 150 simulations tell a variance to 12 %.
    assert np.all((ratio > 0.7) & (ratio < 1.4)), ratio


def test_vectors_against_simulation():
    """Residual vectors of two entries with one weight: the mean of points."""
    rng = np.random.default_rng(0)
    kernel = get_kernel("smooth_truncated_quadratic")
    tau = kernel.tuning_constant(2)
    estimates, variances = [], []
    for _ in range(200):
        points = rng.normal(size=(40, 2))
        points[:8] += 15.0
        result = robust_least_squares(
            lambda x, points=points: (x - points).ravel(),
            [0.0, 0.0],
            lambda x: np.tile(np.eye(2), (40, 1)),
            residual_dim=2,
            tau=tau,
            criterion="fixed",
        )
        estimates.append(result.x)
        variances.append(np.diag(result.covariance()))
    ratio = np.mean(variances, axis=0) / np.var(estimates, axis=0)
    assert np.all((ratio > 0.75) & (ratio < 1.35)), ratio


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("d", [1, 3])
def test_slope_of_psi(name, d):
    """Derivative of each entry of psi in its own residual, by finite differences."""
    kernel = get_kernel(name)
    rng = np.random.default_rng(0)
    r = rng.normal(size=(40, d)) * np.geomspace(1e-9, 50.0, 40)[:, None] / np.sqrt(d)
    found = Influence.of(r, kernel, 1.0)
    h = 1e-6
    for k in range(d):
        ahead, behind = (
            Influence.of(r + e * np.eye(d)[k], kernel, 1.0).psi[:, k] for e in (h, -h)
        )
        slope = (ahead - behind) / (2 * h)
        near_kink = np.abs(np.square(r).sum(axis=1) - 1.0) < 1e-4
        np.testing.assert_allclose(
            found.slope[~near_kink, k], slope[~near_kink], atol=1e-5
        )
    # The loss has psi for its gradient.
    z = np.square(r).sum(axis=1)
    loss = kernel.loss(z * (1 + h)) - kernel.loss(z * (1 - h))
    np.testing.assert_allclose(
        loss / (2 * h), 0.5 * (found.psi * r).sum(axis=1), rtol=1e-4, atol=1e-9
    )


@pytest.mark.parametrize("name", sorted(KERNELS))
@pytest.mark.parametrize("d", [1, 3])
def test_rows_that_take_part(name, d):
    """m is about the number of inliers, whether the kernel rejects or not."""
    rng = np.random.default_rng(0)
    kernel = get_kernel(name)
    width = kernel.tuning_constant(d)
    t = rng.normal(size=(5000, d))
    for share in (0.0, 0.3):
        bad = rng.uniform(size=5000) < share
        t[bad] = 1e4
        influence = Influence.of(t, kernel, width if np.isfinite(width) else 1.0)
        sums = influence.sums(np.ones(5000))[:, 0]
        m = PsiMoments.of_sums(sums, 5000.0, kernel, width, d).count
        expected = 5000 if name == "quadratic" else np.sum(~bad)
        # Where d is large Huber's kernel is not wide, and outliers keep some weight.
        assert m == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_estimated_scales_of_redescending_kernels(name):
    """Huber's correction is larger, but only if psi redescends."""
    rng = np.random.default_rng(0)
    kernel, t = get_kernel(name), rng.normal(size=(60, 1))
    width = kernel.tuning_constant()
    influence = Influence.of(t, kernel, width if np.isfinite(width) else 1.0)
    sums = influence.sums(np.ones(60))[:, 0]
    known, estimated = (
        PsiMoments.of_sums(sums, 60.0, kernel, width, estimated=each)
        for each in (False, True)
    )
    a = 1.0 if name in ("quadratic", "huber") else 6.0
    spread = known.slope_variance / known.slope**2
    ratio = (1.0 + a * spread * 4 / known.count) / (1.0 + spread * 4 / known.count)
    assert estimated.noise(4.0) == pytest.approx(ratio**2 * known.noise(4.0))
    assert (ratio > 1.0) == (a > 1.0)


@pytest.mark.parametrize("part", [0.05, 0.2, -1.0])
def test_curvature_of_a_sandwich(part):
    """It is that of the rows, unless it is too flat in some direction of rho G."""
    rng = np.random.default_rng(0)
    X, r = rng.normal(size=(80, 3)), rng.normal(size=(80, 1))
    influence = Influence.of(r, get_kernel("tukey"), 4.685)
    moments = psi_moments(get_kernel("tukey"), r, 4.685)
    gram = X.T @ (influence.weight[:, None] * X)
    meat = X.T @ (np.square(influence.psi) * X)
    rho = moments.curvature
    # In one direction of the coordinates that whiten rho G, only a part is left.
    root = np.linalg.cholesky(rho * gram)
    curvature = root @ np.diag([1.3, part, 0.8]) @ root.T
    found = sandwich_covariance(gram, moments, meat, gram - curvature)
    bread = np.linalg.inv(curvature if part > 0.1 else rho * gram)
    np.testing.assert_allclose(found.matrix, bread @ meat @ bread, rtol=1e-8)


def test_nothing_left():
    kernel = get_kernel("tukey")
    few = psi_moments(kernel, np.ones((3, 1)), 4.685)
    found = nonrobust_covariance(np.eye(3), few)
    assert found.freedom == 0.0
    assert np.isinf(found.matrix).all()
    far = psi_moments(kernel, np.full((5, 1), 1e9), 4.685)
    found = nonrobust_covariance(np.zeros((2, 2)), far)
    assert found.freedom == 0.0
    assert np.isinf(found.matrix).all()
    assert t_quantile(0.95, 0.0) == np.inf
    assert t_quantile(0.95, 10.0) == pytest.approx(2.2281388)


@pytest.mark.parametrize("kernel", ["cauchy", "welsch", "geman_mcclure", "huber"])
def test_outliers_do_not_count_where_weights_are_never_zero(kernel):
    """Far outliers do not make the covariance of a fit smaller."""
    rng = np.random.default_rng(0)
    y = noisy(rng)
    tau = 0.05 * get_kernel(kernel).tuning_constant()
    options = {"kernel": kernel, "tau": tau, "criterion": "fixed"}

    def freedom(t, y):
        fit = robust_least_squares(
            lambda x: model(t, *x) - y, TRUTH, lambda x: jac(x, t), **options
        )
        residual = fit.fun.reshape(-1, 1)
        return psi_moments(get_kernel(kernel), residual, tau).count

    clean = freedom(T, y)
    more = freedom(np.append(T, T[::10]), np.append(y, y[::10] + 1e4))
    assert clean == pytest.approx(T.size, rel=0.06)
    assert more == pytest.approx(T.size, rel=0.06)


def test_sample_weights_are_repetitions():
    rng = np.random.default_rng(0)
    r, counts = rng.normal(size=(20, 1)), rng.integers(1, 4, 20)
    kernel = get_kernel("tukey")
    one = psi_moments(kernel, np.repeat(r, counts, axis=0), 2.0)
    two = psi_moments(kernel, r, 2.0, counts.astype(float))
    np.testing.assert_allclose(
        [one.factor(3), one.count], [two.factor(3), two.count], rtol=1e-12
    )


def products(seed=0, shape=(4, 30)):
    rng = np.random.default_rng(seed)
    m, n = shape
    first, second = (index.ravel() for index in np.indices(shape))
    y = rng.uniform(1, 2, m)[first] * rng.uniform(1, 2, n)[second]
    y += 0.02 * rng.normal(size=m * n)
    y[::9] += 1.0
    structure = BlockStructure(first, second, first_dim=1, second_dim=1)

    def fun(x):
        return x[:m][first] * x[m:][second] - y

    def blocks(x):
        return x[m:][second].reshape(-1, 1, 1), x[:m][first].reshape(-1, 1, 1)

    return fun, blocks, structure, np.full(m + n, 1.5)


def test_structure_is_the_dense_matrix():
    fun, blocks, structure, x0 = products()
    kwargs = {"tau": 0.2, "fixed": [0]}
    dense = robust_least_squares(
        fun, x0, lambda x: structure.to_sparse(*blocks(x)).toarray(), **kwargs
    ).covariance()
    result = robust_least_squares(fun, x0, blocks, structure=structure, **kwargs)
    first, second = result.covariance()
    np.testing.assert_allclose(first, dense[:4, :4], rtol=1e-4, atol=1e-12)
    np.testing.assert_allclose(second[:, 0, 0], np.diag(dense)[4:], rtol=1e-4)


def test_blocks_of_several_parameters():
    """Random block Jacobians, against the inverse of the whole matrix."""
    from sklearn_mm._robust.schur import SchurPlan, SchurSystem

    rng = np.random.default_rng(0)
    n = 120
    structure = BlockStructure(
        rng.integers(0, 4, n),
        np.concatenate([np.arange(15), rng.integers(0, 15, n - 15)]),
        first_dim=3,
        second_dim=2,
        n_first=4,
        n_second=15,
    )
    A, B, r = (rng.normal(size=(n, 2, k)) for k in (3, 2, 1))
    root = rng.uniform(0.2, 1, n)
    system = SchurSystem(SchurPlan(structure), A, B, r[..., 0], root)
    first, second, open_ = system.inverse_blocks()
    J = structure.to_sparse(A, B).toarray() * np.repeat(root, 2)[:, None]
    expected = np.linalg.inv(J.T @ J)
    np.testing.assert_allclose(first, expected[:12, :12], rtol=1e-8, atol=1e-10)
    for k in range(15):
        block = slice(12 + 2 * k, 14 + 2 * k)
        np.testing.assert_allclose(second[k], expected[block, block], rtol=1e-7)
    assert not open_.any()


def test_rank_deficiency_is_told():
    fun, blocks, structure, x0 = products()
    # a and b can be traded for each other.
    for kwargs in ({"structure": structure}, {}):
        derivative = blocks
        if not kwargs:
            derivative = lambda x: structure.to_sparse(*blocks(x))  # noqa: E731
        result = robust_least_squares(fun, x0, derivative, tau=0.2, **kwargs)
        with pytest.warns(ConvergenceWarning, match="not have full rank.*parameters 0"):
            result.covariance()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("jac", ["2-point", "3-point", "cs"])
def test_rank_deficiency_in_spite_of_errors_of_differences(jac, sparse):
    t = np.linspace(0, 4, 50)
    y = 1.6 * np.exp(-1.3 * t) + 0.5 + 0.1 * np.sin(40 * t)

    def fun(x):  # only the product of x[0] and x[3] is determined
        return x[0] * x[3] * np.exp(-x[1] * t) + x[2] - y

    result = robust_least_squares(
        fun,
        [2.0, 1.0, 0.0, 0.7],
        jac,
        jac_sparsity=np.ones((50, 4)) if sparse else None,
    )
    with pytest.warns(ConvergenceWarning, match="all of the parameters 0, 3.*infinite"):
        covariance = result.covariance()
    np.testing.assert_array_equal(np.isinf(np.diag(covariance)), [1, 0, 0, 1])
    fixed = robust_least_squares(fun, result.x, jac, fixed=[3]).covariance()
    np.testing.assert_allclose(covariance[1:3, 1:3], fixed[1:3, 1:3], rtol=1e-3)


def test_too_few_residuals():
    result = robust_least_squares(lambda x: x - [1.0, 2.0], [0.0, 0.0])
    with pytest.warns(ConvergenceWarning, match="cannot be estimated"):
        covariance = result.covariance()
    assert np.isinf(np.diag(covariance)).all()


def test_no_covariance_where_x_is_not_a_minimum():
    # Most residuals are where psi decreases.
    residual = np.append(np.full(30, 0.8), 0.1)
    result = robust_least_squares(lambda x: x[0] + residual, [0.0], max_nfev=1)
    with pytest.warns(ConvergenceWarning, match="x is not a minimum of the robust"):
        covariance = result.covariance()
    assert np.isinf(covariance).all()


@pytest.mark.parametrize("seed", range(3))
def test_inverses(seed):
    rng = np.random.default_rng(seed)
    J = rng.normal(size=(12, 4)) * [1.0, 1e6, 1e-6, 1.0]
    expected = np.linalg.inv(J.T @ J)
    for inverse, null_space in (inverse_gram(J), inverse_symmetric(J.T @ J)):
        np.testing.assert_allclose(inverse, expected, rtol=1e-7)
        assert not undetermined(null_space).any()
    J[:, 3] = 2 * J[:, 0]  # and a column of zeros
    J = np.column_stack([J, np.zeros(12)])
    for inverse, null_space in (inverse_gram(J), inverse_symmetric(J.T @ J)):
        np.testing.assert_array_equal(undetermined(null_space), [1, 0, 0, 1, 1])
        assert not inverse[4].any()
        H = J.T @ J
        np.testing.assert_allclose(H @ inverse @ H, H, rtol=1e-6, atol=1e-16)


def test_efficiency_inverts_the_tuning_constant():
    for name in sorted(KERNELS):
        kernel = get_kernel(name)
        if name == "quadratic":
            assert kernel.efficiency(0.1) == 1.0
            continue
        for efficiency in (0.8, 0.95):
            c = kernel.tuning_constant(2, efficiency)
            if c > np.sqrt(2) / 2 * 1.001:  # not at its floor
                assert kernel.efficiency(c, 2) == pytest.approx(efficiency)
