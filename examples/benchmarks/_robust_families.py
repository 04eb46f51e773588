"""Families of regression data with a share of bad rows, for the accuracy benchmark.

`FAMILIES` maps a name to a function of (rng, n, p, share) that returns X, y, the true
coefficients (intercept last) and the weights of an oracle: zero for bad rows. X and the
coefficients are standard normal and the noise has unit variance unless a family says
otherwise. Where y is not linear in X (ratings, counts, 0/1), the true coefficients are
those of the best linear prediction in the population.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr, roots_hermitenorm

FAMILIES: dict[str, Family] = {}


@dataclass(frozen=True)
class Family:
    """A generator, and whether it was looked at when constants were chosen."""

    make: Callable
    held_out: bool
    shares: tuple[float, ...]

    def __call__(self, rng, n, p, share):
        return self.make(rng, n, p, share)


def family(*, held_out=False, shares=(0.1, 0.25, 0.4)):
    """Add a generator to the registry under its own name."""

    def register(make):
        FAMILIES[make.__name__] = Family(make, held_out, shares)
        return make

    return register


@dataclass
class Rows:
    """Clean rows, and which of them are to be made bad."""

    X: np.ndarray
    y: np.ndarray
    coef: np.ndarray
    bad: np.ndarray
    oracle: np.ndarray

    @classmethod
    def draw(cls, rng, n, p, share):
        X = rng.standard_normal((n, p))
        coef = rng.standard_normal(p + 1)
        y = X @ coef[:p] + coef[p] + rng.standard_normal(n)
        bad = rng.permutation(n)[: round(share * n)]
        oracle = np.ones(n)
        oracle[bad] = 0.0
        return cls(X, y, coef, bad, oracle)

    @property
    def data(self):
        return self.X, self.y, self.coef, self.oracle

    def on_the_plane(self):
        """Noiseless targets."""
        return self.X @ self.coef[:-1] + self.coef[-1]


@family(shares=(0.0, 0.1, 0.25, 0.4, 0.5, 0.6))
def symmetric(rng, n, p, share):
    """N(0, 20**2) added to y."""
    rows = Rows.draw(rng, n, p, share)
    rows.y[rows.bad] += 20.0 * rng.standard_normal(len(rows.bad))
    return rows.data


@family(shares=(0.1, 0.25, 0.4, 0.5, 0.6))
def one_sided(rng, n, p, share):
    """U(5, 50) added to y."""
    rows = Rows.draw(rng, n, p, share)
    rows.y[rows.bad] += rng.uniform(5.0, 50.0, len(rows.bad))
    return rows.data


@family()
def near(rng, n, p, share):
    """U(4, 8) added to y."""
    rows = Rows.draw(rng, n, p, share)
    rows.y[rows.bad] += rng.uniform(4.0, 8.0, len(rows.bad))
    return rows.data


@family()
def plane(rng, n, p, share):
    """y follows a second plane, with coefficients 3 N(0, 1)."""
    rows = Rows.draw(rng, n, p, share)
    other = 3.0 * rng.standard_normal(p)
    far = 10.0 * rng.standard_normal()
    noise = rng.standard_normal(len(rows.bad))
    rows.y[rows.bad] = rows.X[rows.bad] @ other + far + noise
    return rows.data


def clustered(rng, n, p, share, distance, spread, offset):
    """x in a cluster away from the origin, y at an offset from the true plane."""
    rows = Rows.draw(rng, n, p, share)
    m = len(rows.bad)
    direction = rng.standard_normal(p)
    direction /= np.linalg.norm(direction)
    rows.X[rows.bad] = distance * direction + spread * rng.standard_normal((m, p))
    noise = rng.standard_normal(m)
    rows.y[rows.bad] = rows.on_the_plane()[rows.bad] + offset + noise
    return rows.data


@family()
def leverage(rng, n, p, share):
    """A loose cluster (0.5) of x at 10, y 30 above the true plane."""
    return clustered(rng, n, p, share, 10.0, 0.5, 30.0)


@family()
def tight(rng, n, p, share):
    """A tight cluster (0.05) of x at 10, y 30 above the true plane."""
    return clustered(rng, n, p, share, 10.0, 0.05, 30.0)


@family(held_out=True)
def cluster_4(rng, n, p, share):
    """A cluster (0.2) of x at 4, y 15 above the true plane."""
    return clustered(rng, n, p, share, 4.0, 0.2, 15.0)


@family(held_out=True)
def cluster_100(rng, n, p, share):
    """A cluster (1) of x at 100, y 300 below the true plane."""
    return clustered(rng, n, p, share, 100.0, 1.0, -300.0)


@family()
def scattered(rng, n, p, share):
    """x five times as wide, y independent of it."""
    rows = Rows.draw(rng, n, p, share)
    rows.X[rows.bad] *= 5.0
    rows.y[rows.bad] = rows.coef[p] + 10.0 * rng.standard_normal(len(rows.bad))
    return rows.data


@family(held_out=True)
def correlated(rng, n, p, share):
    """Correlated columns (0.9 between neighbours); y 5 to 20 above where x_1 is large.

    The bad rows are a quarter of all by chance, and the others have the largest x_1.
    """
    rows = Rows.draw(rng, n, p, share)
    for j in range(1, p):
        rows.X[:, j] = 0.9 * rows.X[:, j - 1] + np.sqrt(0.19) * rows.X[:, j]
    rows.y = rows.on_the_plane() + rng.standard_normal(n)
    m = len(rows.bad)
    largest = np.argsort(-rows.X[:, 0])
    rows.bad = np.concatenate([largest[: m - m // 4], rng.permutation(n)[: m // 4]])
    rows.y[rows.bad] += rng.uniform(5.0, 20.0, m)
    rows.oracle = np.ones(n)
    rows.oracle[rows.bad] = 0.0
    return rows.data


def coded(rng, n, p, share, code):
    """Missing values of y written as a number."""
    rows = Rows.draw(rng, n, p, share)
    rows.y[rows.bad] = code
    return rows.data


@family(shares=(0.1, 0.25, 0.4, 0.45))
def code_0(rng, n, p, share):
    """y = 0, which is a usual value of y."""
    return coded(rng, n, p, share, 0.0)


@family(shares=(0.1, 0.25, 0.4, 0.45))
def code_999(rng, n, p, share):
    """y = 999."""
    return coded(rng, n, p, share, 999.0)


@family(held_out=True, shares=(0.1, 0.25, 0.4, 0.45))
def code_99(rng, n, p, share):
    """y = 99 where y is about 50 with unit noise."""
    rows = Rows.draw(rng, n, p, share)
    rows.y += 50.0
    rows.coef[p] += 50.0
    rows.y[rows.bad] = 99.0
    return rows.data


@family(held_out=True, shares=(0.1, 0.25, 0.4, 0.45))
def code_minus_1(rng, n, p, share):
    """y = -1."""
    return coded(rng, n, p, share, -1.0)


@family(shares=(0.0, 0.1, 0.25, 0.4))
def rounded(rng, n, p, share):
    """y rounded to integers, and U(5, 50) added."""
    rows = Rows.draw(rng, n, p, share)
    rows.y[rows.bad] += rng.uniform(5.0, 50.0, len(rows.bad))
    rows.y = np.round(rows.y)
    return rows.data


def best_linear(coef, mean):
    """Coefficients of the best linear prediction of y with E[y | t] = mean(t).

    The index t = x' b + a of standard normal x is normal, and E[x y] is parallel to b.
    """
    nodes, weights = roots_hermitenorm(60)
    weights = weights / weights.sum()
    size = np.linalg.norm(coef[:-1])
    value = mean(coef[-1] + size * nodes)
    return np.append(coef[:-1] / size * (weights @ (value * nodes)), weights @ value)


def with_index(rng, n, p, size, centre):
    """X and the index t = x' b + a with a standard deviation `size`."""
    X = rng.standard_normal((n, p))
    b = rng.standard_normal(p)
    coef = np.append(size * b / np.linalg.norm(b), centre)
    return X, X @ coef[:-1] + coef[-1], coef


def spoil(rng, y, share, value):
    """Replace a share of y; weights of the oracle."""
    bad = rng.permutation(len(y))[: round(share * len(y))]
    oracle = np.ones(len(y))
    oracle[bad] = 0.0
    y[bad] = value
    return oracle


@family(held_out=True, shares=(0.0, 0.1, 0.25))
def ratings(rng, n, p, share):
    """One to five stars (index 3 + N(0, 1), noise 0.7); careless answers of one."""
    X, t, coef = with_index(rng, n, p, 1.0, 3.0)
    y = np.clip(np.round(t + 0.7 * rng.standard_normal(n)), 1.0, 5.0)
    cuts = np.array([1.5, 2.5, 3.5, 4.5])
    truth = best_linear(
        coef, lambda t: 1.0 + ndtr((t[:, None] - cuts) / 0.7).sum(axis=1)
    )
    oracle = spoil(rng, y, share, 1.0)
    return X, y, truth, oracle


@family(shares=(0.0, 0.1, 0.25, 0.4))
def counts(rng, n, p, share):
    """Poisson counts with means exp(2 + N(0, 0.3**2)); zeros by mistake."""
    X, t, coef = with_index(rng, n, p, 0.3, 2.0)
    y = rng.poisson(np.exp(t)).astype(float)
    oracle = spoil(rng, y, share, 0.0)
    return X, y, best_linear(coef, np.exp), oracle


@family(shares=(0.0,))
def binary(rng, n, p, share):
    """0/1 with logistic probabilities (index N(0, 1.5**2)); linear probabilities."""
    X, t, coef = with_index(rng, n, p, 1.5, 0.0)
    y = (rng.random(n) < expit(t)).astype(float)
    return X, y, best_linear(coef, expit), np.ones(n)


@family(held_out=True, shares=(0.1, 0.25, 0.4, 0.45))
def zero_inflated(rng, n, p, share):
    """y = 0 where it would have been five index deviations and more above zero."""
    X, t, coef = with_index(rng, n, p, 2.0, 10.0)
    y = t + rng.standard_normal(n)
    oracle = spoil(rng, y, share, 0.0)
    return X, y, coef, oracle


@family(held_out=True)
def censored(rng, n, p, share):
    """The largest y cut to a limit; the oracle knows the uncensored rows."""
    rows = Rows.draw(rng, n, p, 0.0)
    limit = np.quantile(rows.y, 1.0 - share)
    rows.oracle[rows.y > limit] = 0.0
    rows.y = np.minimum(rows.y, limit)
    return rows.data


@family(held_out=True)
def heaped(rng, n, p, share):
    """A share of y rounded to tens, five times the noise; the others as measured."""
    rows = Rows.draw(rng, n, p, share)
    rows.y[rows.bad] = 10.0 * np.round(rows.y[rows.bad] / 10.0)
    return rows.data


@family(held_out=True)
def thousands(rng, n, p, share):
    """y a thousand times too large, about 10 with unit noise."""
    X, t, coef = with_index(rng, n, p, 2.0, 10.0)
    y = t + rng.standard_normal(n)
    oracle = spoil(rng, y, share, 0.0)
    bad = oracle == 0
    y[bad] = 1000.0 * (t[bad] + rng.standard_normal(bad.sum()))
    return X, y, coef, oracle


@family(held_out=True)
def bad_cells(rng, n, p, share):
    """One cell of a row replaced: 0, 99 or N(0, 20**2)."""
    rows = Rows.draw(rng, n, p, share)
    m = len(rows.bad)
    value = np.choose(
        rng.integers(3, size=m), [np.zeros(m), np.full(m, 99.0), rng.normal(0, 20, m)]
    )
    rows.X[rows.bad, rng.integers(p, size=m)] = value
    return rows.data


@family(held_out=True)
def factor(rng, n, p, share):
    """Half of the columns are dummies of a factor with rare levels; U(5, 50) added."""
    rows = Rows.draw(rng, n, p, share)
    k = p // 2
    if k:
        # Levels of falling frequency, each with at least four rows.
        odds = 0.8 ** np.arange(k + 1)
        level = rng.choice(k + 1, size=n, p=odds / odds.sum())
        level[: 4 * (k + 1)] = np.repeat(np.arange(k + 1), 4)[:n]
        rows.X[:, :k] = level[:, None] == np.arange(1, k + 1)
        rows.y = rows.on_the_plane() + rng.standard_normal(n)
    rows.y[rows.bad] += rng.uniform(5.0, 50.0, len(rows.bad))
    return rows.data


def weighted_fit(X, y, weight):
    """Weighted least squares, intercept last."""
    root = np.sqrt(weight)[:, None]
    design = np.hstack([X, np.ones((len(X), 1))])
    return np.linalg.lstsq(design * root, y * root[:, 0], rcond=None)[0]


def student_weights(X, y, dof):
    """Weights of the maximum-likelihood fit of unit scale."""
    weight = np.ones(len(y))
    for _ in range(100):
        coef = weighted_fit(X, y, weight)
        weight = (dof + 1.0) / (dof + np.square(y - X @ coef[:-1] - coef[-1]))
    return weight


@family(held_out=True, shares=(1.0,))
def student(rng, n, p, share):
    """All noise is Student's t with 1.5 degrees of freedom; maximum likelihood."""
    rows = Rows.draw(rng, n, p, share)
    rows.y = rows.on_the_plane() + rng.standard_t(1.5, n)
    rows.oracle = student_weights(rows.X, rows.y, 1.5)
    return rows.data


@family(held_out=True, shares=(0.25, 0.4, 0.6))
def hetero(rng, n, p, share):
    """Noise of standard deviation 3 exp(1.5 |x_1|) added; the oracle knows it."""
    rows = Rows.draw(rng, n, p, share)
    spread = 3.0 * np.exp(1.5 * np.abs(rows.X[rows.bad, 0]))
    rows.y[rows.bad] += spread * rng.standard_normal(len(rows.bad))
    rows.oracle[rows.bad] = 1.0 / (1.0 + spread**2)
    return rows.data
