"""float32 against float64, on the same numbers."""

import numpy as np
import pytest
from estimator_modes import MODES, data_for
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone, is_classifier

# A few epochs are not meant to converge.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

SINGLE = np.finfo(np.float32).eps
ROBUST = [name for name in MODES if name.startswith("robust")]
HEBBIAN = [name for name in MODES if name.startswith("Contrastive")]


def both(name):
    """Fits in either precision, and the data."""
    model = clone(MODES[name]).set_params(random_state=0)
    X, y = data_for(model, dtype=np.float32)
    single = clone(model).fit(X, y)
    X, y = X.astype(np.float64), y if is_classifier(model) else y.astype(np.float64)
    return single, model.fit(X, y), X, y


@pytest.mark.parametrize("name", ROBUST)
def test_robust_regression_is_rounded_once(name):
    single, double, X, _ = both(name)
    assert single.coef_.dtype == np.float32
    # Sums are in double precision: all but the coefficients is the same.
    for attribute in ("scale_", "weights_", "inlier_mask_", "n_iter_"):
        assert_array_equal(getattr(single, attribute), getattr(double, attribute))
    assert_array_equal(single.coef_, double.coef_.astype(np.float32))
    found, expected = single.predict(X.astype(np.float32)), double.predict(X)
    assert_allclose(found, expected, atol=8 * SINGLE * np.abs(expected).max())


@pytest.mark.parametrize("name", HEBBIAN)
def test_hebbian_learning_agrees(name):
    single, double, X, y = both(name)
    assert single.coefs_[0].dtype == np.float32
    # After four epochs; rounding is amplified by training, as by any network's.
    for found, expected in zip(single.coefs_, double.coefs_, strict=True):
        assert_allclose(found, expected, atol=3e-4)
    assert_allclose(single.loss_curve_, double.loss_curve_, rtol=1e-5)
    # The same weights: outputs in units of the training targets.
    low, high = (single._outputs_of(data) for data in (X.astype(np.float32), X))
    assert low.dtype == np.float32
    assert_allclose(low, high, atol=16 * SINGLE * max(np.abs(high).max(), 1.0))
    found, expected = single.bounds(X.astype(np.float32), y), single.bounds(X, y)
    assert_allclose(found, expected, rtol=8 * SINGLE)
