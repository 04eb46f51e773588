"""Validation of data, including data larger than memory."""

from __future__ import annotations

import numpy as np
from sklearn.utils import assert_all_finite, check_array
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_y,
    check_consistent_length,
    validate_data,
)

from sklearn_mm._rows.sources import (
    DaskRows,
    arrays_of_frames,
    check_lengths,
    is_dask,
    is_lazy,
    lazy_rows,
    numbers_of,
)

# Common limit on sizes: for numbers within it, their squares, the squares of quotients,
# and sums of these over any number of rows are finite and not zero.
_LARGEST = 1e70


def check_size(name: str, value: float, smallest: float = 1.0 / _LARGEST) -> None:
    """Raise a ValueError if a number is too large or too small.

    Zero is accepted if `smallest` is zero.
    """
    value = float(value)  # the limit cannot be represented in single precision
    if not smallest <= value <= _LARGEST:
        raise ValueError(
            f"{name} is {value:g}, but must be between {1.0 / _LARGEST:g} and "
            f"{_LARGEST:g}. Rescale the data."
        )


def validate_rows(estimator, X, y="no_validation", *, reset=True, **kwargs):
    """Validate X and, optionally, y as arrays of finite numbers.

    Arrays that would have to be read or converted as a whole are wrapped in `LazyRows`,
    whose rows are checked when they are read. All others are passed to scikit-learn's
    `validate_data` with the same parameters.
    """
    numeric = kwargs.get("y_numeric", False)
    X, names = arrays_of_frames(X)
    y = arrays_of_frames(y, numeric)[0]
    if is_dask(X):
        one = np.zeros((1,) * X.ndim)
        check_array(one, estimator=estimator)  # that there are two dimensions
        X = numbers_of("X", X)
    if not is_lazy(X):
        y = np.asarray(y) if is_dask(y) else y
        checked = validate_data(
            estimator,
            X,
            y,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            reset=reset,
            **kwargs,
        )
        if not numeric:
            return checked
        return checked[0], _check_targets(checked[1])
    rows = lazy_rows(X)
    for size, what in zip(rows.shape, ("sample", "feature"), strict=True):
        if size < 1:
            raise ValueError(
                f"Found array with 0 {what}(s) (shape={tuple(rows.shape)}) while a "
                "minimum of 1 is required."
            )
    named = np.empty((1, rows.shape[1])) if names is None else names
    _check_feature_names(estimator, named, reset=reset)
    _check_n_features(estimator, rows, reset=reset)
    kwargs.pop("ensure_all_finite", None)
    if isinstance(rows, DaskRows) and not reset:  # there is no pass that would tell
        rows.in_blocks().check_finite(type(estimator).__name__)
    if isinstance(y, str):
        return rows
    if is_dask(y) and isinstance(rows, DaskRows):
        y = _check_blocks(y, rows, numeric)
        if numeric and not reset:
            blocks = rows.in_blocks()
            blocks.check_finite(type(estimator).__name__, blocks.place(y))
        return rows, y
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, but "
            "the target y is None."
        )
    # (`validate_data` would take away the names of features, since it does not see X.)
    y = _check_y(np.asarray(y), estimator=estimator, **kwargs)
    check_consistent_length(rows, y)
    return rows, _check_targets(y) if numeric else y


def _check_targets(y):
    """Targets in a suitable precision, none of them too large.

    scikit-learn checks for infinity before it converts objects and long doubles, and it
    accepts strings. Sums of two targets close to the largest float overflow.
    """
    if y.dtype.kind in "SU":
        y = y.astype(np.float64)
        assert_all_finite(y, input_name="y")
    if y.dtype.kind != "f":
        return y
    if y.dtype not in (np.float32, np.float64):
        with np.errstate(over="ignore"):
            y = y.astype(np.float64)
    if y.dtype == np.float64:
        check_size("The largest value of y", max(y.max(), -y.min(), 0.0), smallest=0.0)
    return y


def _check_blocks(y, rows, numeric):
    """Targets in the blocks of a Dask array, which are not read here."""
    if y.ndim == 2 and y.shape[1] == 1 and not numeric:  # labels
        y = y[:, 0]
    if y.ndim not in (1, 2):
        raise ValueError(
            f"y should be a 1d or 2d array, got an array of shape {y.shape} instead."
        )
    check_lengths("y", y, rows.shape[0])
    if numeric and y.dtype.kind not in "fiubO":
        raise ValueError(f"y must be numeric, got a Dask array of dtype {y.dtype}.")
    if numeric and y.dtype.kind in "Of" and y.dtype not in (np.float32, np.float64):
        y = y.astype(np.float64)
    if y.ndim == 2 and y.numblocks[1] > 1:
        y = y.rechunk({1: -1})
    return y
