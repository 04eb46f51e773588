"""Fixtures and settings for all tests."""

import os
import sys
from pathlib import Path

# Tests run side by side, one process for each core: libraries need no threads besides.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]
# Examples are scripts, not a package; tests run and reuse them.
sys.path.insert(0, str(ROOT / "examples"))
# Read by type checkers; two lines of it are wrong on purpose.
collect_ignore = ["package/typed_use.py"]

settings.register_profile(
    "default",
    deadline=None,  # the machine may be busy
    derandomize=True,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def pyplot():
    """Matplotlib without a screen; figures are closed afterwards."""
    pytest.importorskip("matplotlib").use("Agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


@pytest.fixture
def contaminated(rng):
    """100 rows on a plane, 40 of them moved away from it."""
    X = rng.normal(size=(100, 3))
    y = X @ [1.0, -2.0, 0.5] + 3.0 + 0.1 * rng.normal(size=100)
    y[:40] += 20.0
    return X, y


@pytest.fixture
def data(rng):
    """A plane through 300 rows, 90 of them outliers."""
    X = rng.normal(size=(300, 4))
    y = X @ [1.0, -2.0, 0.5, 3.0] + 0.1 * rng.normal(size=300)
    y[:90] += 20.0
    return X, y
