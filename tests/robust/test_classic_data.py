"""The classic sets of robust regression, with default settings."""

import numpy as np
import pytest
from datasets import load_classic

from sklearn_mm import HalfQuadraticRobustRegressor

# Rows (counted from one) that the literature takes for outliers.
EXPECTED = {
    "hbk": set(range(1, 11)),
    "starsCYG": {11, 20, 30, 34},
    "stackloss": {1, 3, 4, 21},
    "telef": {15, 16, 17, 18, 19, 20},  # 1964 to 1969
    "coleman": {3, 18},
    "education": {50},
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", EXPECTED)
def test_known_outliers_are_flagged(name, seed):
    data = load_classic(name)
    if data is None:
        pytest.skip("the classic data are not at hand")
    model = HalfQuadraticRobustRegressor(random_state=seed).fit(*data)
    flagged = set((np.flatnonzero(~model.inlier_mask_) + 1).tolist())
    assert EXPECTED[name] <= flagged
    assert len(flagged - EXPECTED[name]) <= 2
    if name == "hbk":
        # Good leverage points are kept, with full confidence.
        assert not flagged & {11, 12, 13, 14}
        assert model.weights_[10:14].min() > 0.85
