"""Warnings at the end of a fit that is worse than no model."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import ContrastiveHebbianClassifier
from sklearn_mm._hebbian.outcome import compared_rows, warn_below_majority

MODEL = SimpleNamespace(tol=1e-4, early_stopping=False, learning_rate_init="auto")


def warned(predicted, labels, weight=None, complete=True, model=MODEL):
    predicted, labels = np.asarray(predicted), np.asarray(labels)
    weight = np.ones(len(labels)) if weight is None else np.asarray(weight, float)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_below_majority(model, predicted, labels, weight, 0.5, 0.01, complete)
    return [str(warning.message) for warning in caught]


def test_the_most_frequent_class_is_no_reason_to_warn():
    labels = [0] * 70 + [1] * 30
    assert not warned([0] * 100, labels)
    assert not warned([0] * 60 + [1] * 10 + [1] * 30, labels)
    (message,) = warned([0] * 69 + [1] + [0] * 30, labels)
    assert "69.0% of the training rows" in message
    assert "class alone 70.0%" in message


def test_weights_decide_which_class_is_frequent():
    labels, weight = [0] * 3 + [1], [1, 1, 1, 4]
    assert not warned([1] * 4, labels, weight)
    assert warned([0] * 4, labels, weight)


def test_a_sample_has_to_be_clear():
    labels, predicted = [0] * 70 + [1] * 30, [1] * 6 + [0] * 62 + [1] * 2 + [1] * 3
    predicted = predicted + [0] * 27  # eight rows lost, three gained
    assert warned(predicted, labels)
    assert not warned(predicted, labels, complete=False)
    assert warned([1] * 100, labels, complete=False)


def test_remedies_depend_on_the_settings():
    odd = SimpleNamespace(tol=1e-4, early_stopping=True, learning_rate_init=0.5)
    (message,) = warned([1, 1, 1], [0, 0, 1], model=odd)
    for text in ("learning_rate_init (currently 0.5)", "early_stopping=False", "alpha"):
        assert text in message
    (message,) = warned([1, 1, 1], [0, 0, 1])
    assert "learning_rate_init" not in message
    assert "early_stopping" not in message


def test_compared_rows_are_few_and_everywhere():
    assert np.array_equal(compared_rows(300), np.arange(300))
    rows = compared_rows(10**6)
    assert len(np.unique(rows)) == len(rows) <= 1000
    assert rows[0] == 0
    assert rows[-1] == 10**6 - 1


@pytest.mark.parametrize("n_rows", [40, 2000])
def test_a_useless_classifier_is_announced(n_rows):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n_rows, 3)), np.array([0, 1, 1, 1])[np.arange(n_rows) % 4]
    model = ContrastiveHebbianClassifier(
        (5,), learning_rate_init=1e-6, tol=1.0, n_iter_no_change=1, random_state=2
    )
    with pytest.warns(ConvergenceWarning, match="most frequent class"):
        model.fit(X, y)
    assert model.score(X, y) < 0.75


def test_streams_are_not_judged():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 3)), np.arange(40) % 4 > 0
    model = ContrastiveHebbianClassifier((5,), learning_rate_init=1e-6, random_state=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.partial_fit(X, y, classes=[False, True])
