"""Whatever comes in: a finite result, or an error in scikit-learn's words.

Every case is a fit of one estimator to data that hypothesis has made up out of shapes,
types, containers, sizes and faults. Allowed outcomes are a finite, sensible result and
a ValueError or TypeError after which the estimator is as it was. The default run tries
a few hundred cases; ``pytest -m long tests/package/test_adversarial.py`` tries 10,000.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
    robust_least_squares,
)
from sklearn_mm.kernels import KERNELS

DTYPES = [
    *("float64", "float32", "float16", "longdouble", "int64", "int8", "uint8", "bool"),
    *("object", "U", "datetime64[s]", "complex128"),
]
SPARSE = [
    getattr(scipy.sparse, f"{name}_{kind}")
    for name in ("csr", "csc", "coo", "lil", "dok", "bsr", "dia")
    for kind in ("array", "matrix")
]


def read_only(A):
    A = A.copy()
    A.flags.writeable = False
    return A


def non_contiguous(A):
    return np.repeat(A, 2, axis=0)[::2]


def reversed_view(A):
    return A[::-1].copy()[::-1]


def frame(A):
    return pd.DataFrame(A, columns=[f"c{i}" for i in range(A.shape[1])])


def unsorted_with_zeros(A):
    """CSR with columns in descending order and zeros stored."""
    n, p = A.shape
    indices = np.tile(np.arange(p)[::-1], n)
    return scipy.sparse.csr_array(
        (A[:, ::-1].ravel(), indices, np.arange(n + 1) * p), shape=(n, p)
    )


CONTAINERS = [
    np.asarray,
    np.asfortranarray,
    np.ndarray.tolist,
    read_only,
    non_contiguous,
    reversed_view,
    frame,
    unsorted_with_zeros,
    *SPARSE,
]

sizes = st.one_of(
    st.just(1.0),
    st.sampled_from([1e-300, 1e-160, 1e-69, 1e-20, 1e20, 1e69, 1e160, 1e300]),
    st.floats(-300, 300).map(lambda e: 10.0**e),
    st.floats(-75, 75).map(lambda e: 10.0**e),  # around the limit
)


@st.composite
def tables(draw):
    """Numbers with structure: copies, constants, collinear columns, any sizes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.sampled_from([0, 1, 2, 3, 5, 8, 12, 20]))
    p = draw(st.sampled_from([0, 1, 1, 2, 3, 5]))
    X = rng.normal(size=(n, p)) if draw(st.booleans()) else rng.integers(-2, 3, (n, p))
    X = X.astype(float)
    for j in range(p):
        how = draw(st.sampled_from(["as is", "as is", "constant", "collinear", "size"]))
        if how == "constant":
            X[:, j] = draw(st.sampled_from([0.0, 1.0, 7.5, 1e8]))
        elif how == "collinear":
            X[:, j] = 2.0 * X[:, 0]
        elif how == "size":
            X[:, j] *= draw(sizes)
    if n and draw(st.integers(0, 3)) == 0:  # copies of rows
        X = X[rng.integers(0, n, n)]
    return X


@st.composite
def faults(draw, A):
    """Now and then an entry that is no finite number."""
    if A.size and draw(st.integers(0, 7)) == 0:
        A = A.copy()
        place = draw(st.integers(0, A.size - 1))
        A.flat[place] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    return A


def cast(A, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dtype == "datetime64[s]":
            return np.nan_to_num(A, posinf=0, neginf=0).clip(-1e9, 1e9).astype(dtype)
        return A.astype(dtype)


@st.composite
def inputs(draw, classes):
    """X, y and sample weights."""
    A = draw(tables())
    n = len(A)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if classes:
        y = rng.integers(0, draw(st.integers(1, 4)), n)
        y = draw(st.sampled_from([y, y.astype(str), y.astype(float), y - 1]))
    else:
        y = A @ np.ones(A.shape[1]) if draw(st.booleans()) else rng.normal(size=n)
        y = y + draw(st.sampled_from([0.0, 1e-3, 1.0])) * rng.normal(size=n)
        with np.errstate(over="ignore"):
            y = draw(faults(y * draw(sizes)))
        how = draw(st.sampled_from(["1d", "1d", "1d", "column", "two", "type"]))
        if how == "column":
            y = y[:, None]
        elif how == "two":
            y = np.column_stack([y, rng.normal(size=n)])
        elif how == "type":
            y = cast(y, draw(st.sampled_from(DTYPES)))
    if draw(st.integers(0, 15)) == 0:
        y = y[:-1]
    weight = None
    if draw(st.integers(0, 2)) == 0:
        weight = rng.random(n) * draw(st.sampled_from([1.0, 1e-300, 1e300]))
        zero = rng.random(n) < draw(st.sampled_from([0.0, 0.5, 1.0]))
        weight[zero] = 0.0
        weight = draw(faults(weight))
        if draw(st.integers(0, 7)) == 0:
            weight = -weight
    A = draw(faults(A))
    if draw(st.integers(0, 2)) == 0:
        A = cast(A, draw(st.sampled_from(DTYPES)))
    container = draw(st.sampled_from(CONTAINERS))
    try:
        X = container(A)
    except (TypeError, ValueError):  # scipy has no such matrix
        X = A
    return X, y, weight


robust_params = st.fixed_dictionaries(
    {},
    optional={
        "kernel": st.sampled_from(sorted(KERNELS)),
        "criterion": st.sampled_from(["regemm", "sudemm", "fixed", "graduated"]),
        "scale": st.one_of(st.just("auto"), sizes),
        "tuning": st.one_of(st.none(), sizes),
        "alpha": st.sampled_from([0.0, 1e-300, 1e-3, 1.0, 1e300]),
        "fit_intercept": st.booleans(),
        "init": st.sampled_from(["auto", "ols", [0.0], [1.0, 2.0]]),
        "chunk_size": st.sampled_from([None, 1, 3]),
        "max_iter": st.sampled_from([1, 5, 100]),
        "tol": st.sampled_from([0.0, 1e-6, 1.0]),
    },
)
hebbian_params = st.fixed_dictionaries(
    {
        "hidden_layer_sizes": st.sampled_from([(3,), (3, 2)]),
        "max_iter": st.sampled_from([1, 3]),
    },
    optional={
        "criterion": st.sampled_from(["regemm", "sudemm", "fixed", "alternating"]),
        "solver": st.sampled_from(["adam", "sgd", "gd"]),
        "batch_size": st.sampled_from(["auto", None, 2]),
        "feedback": st.sampled_from([1e-160, 1e-8, 0.1, 1.0]),
        "loss": st.sampled_from(["squared_error", "huber", "log_loss"]),
        "activation": st.sampled_from(["relu", "hard_sigmoid", "hard_tanh"]),
        "average": st.booleans(),
        "alpha": st.sampled_from([0.0, 1e-3, 1e6]),
        "learning_rate_init": st.sampled_from([1e-10, 1e-3, 1e3, 1e200]),
        "max_passes": st.sampled_from([1, 20]),
        "early_stopping": st.booleans(),
        "chunk_size": st.sampled_from([None, 1, 3]),
        "inference": st.sampled_from(["block", "coordinate"]),
    },
)
ESTIMATORS = {
    HalfQuadraticRobustRegressor: robust_params,
    ContrastiveHebbianRegressor: hebbian_params,
    ContrastiveHebbianClassifier: hebbian_params,
}


def finite_numbers(model):
    """Fitted attributes that have to be finite."""
    for name in ("coef_", "intercept_", "weights_", "scale_"):
        if hasattr(model, name):
            yield name, getattr(model, name)
    for name in ("coefs_", "intercepts_"):
        for array in getattr(model, name, []):
            yield name, array


def check(model, X, y, weight):
    before = dict(vars(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", DataConversionWarning)
        # scikit-learn's own: few members of a class, few rows for a score, float16.
        warnings.filterwarnings("ignore", module=r"sklearn\.")
        warnings.filterwarnings("ignore", "The number of unique classes")
        warnings.filterwarnings("ignore", "invalid value encountered in reduce")
        warnings.filterwarnings("ignore", "R.2 score is not well-defined")
        try:
            model.fit(X, y, sample_weight=weight)
        except (ValueError, TypeError) as error:
            assert not isinstance(error, UnicodeError)
            assert str(error)
            after = vars(model)
            assert after.keys() == before.keys()
            assert all(after[name] is before[name] for name in before)
            return False
        try:
            predicted = model.predict(X)
        except ValueError as error:
            assert "too large for float" in str(error)
            return True
    assert len(predicted) == (X.shape[0] if hasattr(X, "shape") else len(X))
    if not is_classifier(model):
        assert np.isfinite(predicted).all()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            probability = model.predict_proba(X)
        assert ((probability >= 0) & (probability <= 1 + 1e-6)).all()  # no nan either
        assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-5)
    for name, values in finite_numbers(model):
        assert np.isfinite(values).all(), name
    if hasattr(model, "weights_"):
        assert ((model.weights_ >= 0) & (model.weights_ <= 1)).all()
    history = model.history_
    if history is not None and len(history.upper_bound):
        assert (history.lower_bound <= history.upper_bound).all()
    return True


def fuzz(data, cls):
    params = data.draw(ESTIMATORS[cls], label="params")
    model = cls(random_state=0, **params)
    classes = cls is ContrastiveHebbianClassifier
    X, y, weight = data.draw(inputs(classes), label="data")
    check(model, X, y, weight)


common = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "print_blob": True,
}


@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=80, **common)
def test_estimators(cls, data):
    fuzz(data, cls)


@pytest.mark.long
@pytest.mark.parametrize("cls", ESTIMATORS, ids=lambda cls: cls.__name__)
@given(data=st.data())
@settings(max_examples=3_400, **common)
def test_estimators_at_length(cls, data):
    fuzz(data, cls)


@pytest.mark.parametrize(
    "cls", [ContrastiveHebbianRegressor, HalfQuadraticRobustRegressor]
)
def test_targets_in_strings_are_numbers_or_errors(cls):
    X = np.arange(40.0).reshape(20, 2)
    y = np.arange(20.0)
    model = cls(random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = model.fit(X, y).predict(X)
        assert_array_equal(model.fit(X, y.astype(str)).predict(X), expected)
    before = dict(vars(model))
    for value, message in [("inf", "infinity"), ("nan", "NaN"), ("a", "convert")]:
        bad = y.astype(str)
        bad[3] = value
        with pytest.raises(ValueError, match=message):
            model.fit(X, bad)
    assert vars(model) == before


@st.composite
def residual_functions(draw):
    """Residuals of a model with few parameters, and where to start."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, p = draw(st.sampled_from([(1, 1), (2, 3), (6, 2), (12, 3)]))
    A = rng.normal(size=(n, p)) * draw(sizes)
    b = rng.normal(size=n) * draw(sizes)
    power = draw(st.sampled_from([1, 2]))
    fault = draw(st.sampled_from([None, None, None, np.nan, np.inf]))

    def fun(x):
        with np.errstate(all="ignore"):
            r = A @ x**power - b
        return r if fault is None else np.append(r, fault)

    x0 = rng.normal(size=p) * draw(sizes)
    return fun, draw(faults(x0))


def fuzz_least_squares(data):
    fun, x0 = data.draw(residual_functions())
    criterion = data.draw(
        st.sampled_from(["regemm", "sudemm", "fixed", "graduated", "joint"])
    )
    tau = data.draw(sizes)
    max_nfev = data.draw(st.integers(1, 30))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            result = robust_least_squares(
                fun, x0, tau=tau, criterion=criterion, max_nfev=max_nfev
            )
        except ValueError as error:
            assert str(error)
            return
    assert np.isfinite(result.x).all()
    assert ((result.weights >= 0) & (result.weights <= 1)).all()


@given(data=st.data())
@settings(max_examples=80, **common)
def test_least_squares(data):
    fuzz_least_squares(data)


@pytest.mark.long
@given(data=st.data())
@settings(max_examples=2_000, **common)
def test_least_squares_at_length(data):
    fuzz_least_squares(data)
