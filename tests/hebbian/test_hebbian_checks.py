"""scikit-learn's estimator checks for every valid criterion and batch mode."""

import pytest
from sklearn.utils.estimator_checks import (
    check_dataframe_column_names_consistency,
    check_param_validation,
    parametrize_with_checks,
)

from sklearn_mm import ContrastiveHebbianClassifier, ContrastiveHebbianRegressor

# Five epochs, which is what most checks allow, are not meant to converge.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MODES = [
    {"criterion": "sudemm", "batch_size": 16},
    {"criterion": "sudemm", "batch_size": None},
    {"criterion": "regemm"},
    {"criterion": "fixed", "batch_size": 16},
    {"criterion": "fixed", "batch_size": None},
    {"criterion": "alternating", "n_passes": 20},
    {"criterion": "sudemm", "solver": "gd"},
    {"criterion": "regemm", "solver": "gd"},
]


def estimators():
    for mode in MODES:
        for cls in (ContrastiveHebbianRegressor, ContrastiveHebbianClassifier):
            yield cls((16, 8), learning_rate_init=0.02, max_iter=30, **mode)


def expected_failed_checks(estimator):
    full = estimator.batch_size is None or estimator.solver == "gd"
    if full or estimator.criterion in ("regemm", "alternating"):
        return {}
    reason = "mini-batches are drawn from rows, whatever their weights"
    return {
        "check_sample_weight_equivalence_on_dense_data": reason,
        "check_sample_weight_equivalence_on_sparse_data": reason,
    }


@parametrize_with_checks(
    list(estimators()), expected_failed_checks=expected_failed_checks
)
def test_estimator(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "cls", [ContrastiveHebbianRegressor, ContrastiveHebbianClassifier]
)
@pytest.mark.parametrize(
    "check", [check_param_validation, check_dataframe_column_names_consistency]
)
def test_further_checks(cls, check):
    check(cls.__name__, cls(hidden_layer_sizes=(8,), max_iter=3))
