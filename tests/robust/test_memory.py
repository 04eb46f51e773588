"""What nonlinear least squares holds in memory, in multiples of the Jacobian."""

import gc
import sys
import tracemalloc
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest

from sklearn_mm import robust_least_squares

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import bal  # noqa: E402


@pytest.fixture(scope="module")
def model():
    """A hundred thousand observations: constant buffers hardly count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        scene = bal.drop_behind(bal.large_scene(n_cameras=60, n_points=20_000))
    return bal.Reprojection(scene)


def peak_of(run):
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("criterion", "limit"), [("fixed", 5), ("regemm", 5), ("joint", 6), ("sudemm", 6)]
)
def test_peak_of_bundle_adjustment(model, criterion, limit):
    """One Jacobian, the same with weights, the couplings, and the example's arrays.

    Joint minimisation holds a further Jacobian that its latents have changed, SuDeMM
    the system of a second effort.
    """
    size = sum(part.nbytes for part in model.jac(model.x0))
    peak = peak_of(
        lambda: model.solve(
            kernel="cauchy", criterion=criterion, max_nfev=5, ftol=0, xtol=0, gtol=None
        )
    )
    # The Jacobian and its weighted copy are there at the same time: the measurement
    # does see the arrays.
    assert 2 * size < peak < limit * size


@pytest.mark.parametrize("criterion", ["fixed", "regemm", "joint", "sudemm"])
@pytest.mark.parametrize("blocks", [True, False])
def test_no_earlier_jacobian_is_held_while_the_next_is_computed(criterion, blocks):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        scene = bal.drop_behind(bal.synthetic_scene(5, 40))
    model = bal.Reprojection(scene)
    references, held = [], []

    def jac(x):
        held.append(sum(reference() is not None for reference in references))
        J = model.jac(x)
        if blocks:
            J = tuple(part.copy() for part in J)
        else:
            J = model.structure.to_sparse(*J).toarray()
        references.append(weakref.ref(J[0] if blocks else J))
        return J

    result = robust_least_squares(
        model.fun,
        model.x0,
        jac,
        residual_dim=2,
        structure=model.structure if blocks else None,
        retract=model.retract,
        tau=2.0,
        criterion=criterion,
        max_nfev=12,
        ftol=0,
    )
    assert result.njev == len(held) >= 5
    # A run that ends by a return to its best point holds the last one as well.
    assert held[:-1] == [0] * (len(held) - 1)
    # The result's own is not let go of.
    assert references[-1]() is (result.jac[0] if blocks else result.jac)


def test_a_start_that_is_used_again_keeps_its_jacobian():
    """The search for a width begins several fits at x0, with one Jacobian there."""
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 4.0, 60)
    y = 2.0 * np.exp(-t) + 0.05 * rng.normal(size=60)
    y[::5] += 3.0
    calls = []

    def jac(x):
        calls.append(x.tobytes())
        return np.stack([np.exp(-x[1] * t), -x[0] * t * np.exp(-x[1] * t)], axis=1)

    x0 = np.array([1.0, 0.5])
    robust_least_squares(lambda x: x[0] * np.exp(-x[1] * t) - y, x0, jac, tau="auto")
    assert calls.count(x0.tobytes()) == 1
