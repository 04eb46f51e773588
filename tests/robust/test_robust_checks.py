"""scikit-learn's own checks, for every criterion and mode."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_param_validation,
    parametrize_with_checks,
)

from sklearn_mm import HalfQuadraticRobustRegressor
from sklearn_mm.kernels import KERNELS

CRITERIA = ("regemm", "sudemm", "fixed")
MODES = [{}, {"alpha": 1.0}, *({"kernel": name} for name in sorted(KERNELS))]
ROBUST = [
    HalfQuadraticRobustRegressor(criterion=criterion, **mode)
    for criterion in CRITERIA
    for mode in MODES
]


# The checks fit samples smaller than the number of features, where the estimator says
# that outliers cannot be told.
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(ROBUST)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", [HalfQuadraticRobustRegressor()])
def test_checks_that_check_estimator_omits(estimator):
    name = type(estimator).__name__
    check_param_validation(name, estimator)
    check_dataframe_column_names_consistency(name, estimator)


def test_html_representation_lists_parameters():
    html = HalfQuadraticRobustRegressor(tuning=3.0)._repr_html_()
    assert "HalfQuadraticRobustRegressor" in html
    assert "tuning" in html


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble, bool, int])
def test_dtypes_become_double(dtype):
    rng = np.random.default_rng(0)
    X = (4 * rng.normal(size=(40, 2))).astype(dtype)
    y = rng.normal(size=40)
    model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    assert model.coef_.dtype == np.float64
