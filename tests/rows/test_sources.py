"""Data larger than memory: arrays that slice, read chunk by chunk."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
)
from sklearn_mm._rows import sources
from sklearn_mm._rows.sources import is_lazy, lazy_rows

CHUNK = 64


class File:
    """Stands for a dataset on disk: it slices, and must never be read whole."""

    def __init__(self, values, most=CHUNK):
        self._values, self._most = values, most
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim
        self.n_read = 0

    def __len__(self):
        return self.shape[0]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("read whole")

    def __getitem__(self, rows):
        assert isinstance(rows, slice), "datasets on disk take slices"
        part = self._values[rows]
        assert len(part) <= self._most
        self.n_read += len(part)
        return part.copy()


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of few rows, as if rows were long."""
    monkeypatch.setattr(sources, "_GATHERED_ENTRIES", 4 * CHUNK)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("criterion", ["regemm", "sudemm", "fixed"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16])
def test_robust_regressor_streams(data, small_blocks, dtype, criterion, n_jobs):
    X, y = data
    X = (10 * X).astype(dtype)
    params = {"criterion": criterion, "chunk_size": CHUNK, "random_state": 0}
    whole = HalfQuadraticRobustRegressor(**params).fit(X, y)
    lazy = HalfQuadraticRobustRegressor(n_jobs=n_jobs, **params).fit(File(X), y)
    assert_array_equal(lazy.coef_, whole.coef_)
    assert_array_equal(lazy.weights_, whole.weights_)
    assert_array_equal(lazy.inlier_mask_, whole.inlier_mask_)
    assert lazy.n_features_in_ == 4
    assert lazy.coef_.dtype == whole.coef_.dtype
    assert_allclose(lazy.predict(File(X)), whole.predict(X))
    assert lazy.score(File(X), y) == pytest.approx(whole.score(X, y))


@pytest.mark.parametrize(
    "params",
    [
        {"alpha": 1.0},
        {"init": [1.0, -2.0, 0.5, 3.0]},
        {"init": "ols"},
        {"scale": 0.1},
        {"fit_intercept": False},
        {"kernel": "tukey"},
    ],
)
def test_robust_options_stream(data, small_blocks, params):
    X, y = data
    params = {"chunk_size": CHUNK, "random_state": 0, **params}
    whole = HalfQuadraticRobustRegressor(**params).fit(X, y)
    lazy = HalfQuadraticRobustRegressor(**params).fit(File(X), y)
    assert_array_equal(lazy.coef_, whole.coef_)


def test_columns_of_extreme_size_stream(data, small_blocks):
    X, y = data
    params = {"chunk_size": CHUNK, "random_state": 0}
    within = X * [1e-65, 1.0, 1e65, 1.0]
    whole = HalfQuadraticRobustRegressor(**params).fit(within, y)
    lazy = HalfQuadraticRobustRegressor(**params).fit(File(within), y)
    assert_array_equal(lazy.coef_, whole.coef_)
    for beyond in (1e-200, 1e-75, 1e75, 1e180):
        model = HalfQuadraticRobustRegressor(**params)
        with pytest.raises(ValueError, match=r"^Column 2 of X is.*Rescale the data"):
            model.fit(File(X * [1.0, 1.0, beyond, 1.0]), y)
        assert not hasattr(model, "n_features_in_")


@pytest.mark.parametrize("criterion", ["sudemm", "regemm", "fixed"])
def test_full_batches_stream(data, small_blocks, criterion):
    X, y = data
    params = {"hidden_layer_sizes": (8, 5), "criterion": criterion, "batch_size": None}
    params |= {"chunk_size": CHUNK, "max_iter": 5, "tol": 0.0, "random_state": 0}
    with pytest.warns(match="did not converge"):
        whole = ContrastiveHebbianRegressor(**params).fit(X, y)
    with pytest.warns(match="did not converge"):
        lazy = ContrastiveHebbianRegressor(**params).fit(File(X), y)
    for first, second in zip(lazy.coefs_, whole.coefs_, strict=True):
        assert_array_equal(first, second)
    assert_array_equal(lazy.predict(File(X)), whole.predict(X))
    assert lazy.bounds(File(X), y) == whole.bounds(X, y)


def test_mini_batches_come_from_one_block_after_another(data, small_blocks):
    X, _ = data
    y = np.where(X[:, 0] > X[:, 1], "a", "b")
    file = File(X)
    model = ContrastiveHebbianClassifier(
        (8,), batch_size=16, max_iter=3, chunk_size=CHUNK, random_state=0
    )
    with pytest.warns(match="did not converge"):
        model.fit(file, y)
    # Each row once an epoch, and a first block for the start.
    assert 3 * len(X) <= file.n_read <= 4 * len(X) + 2 * CHUNK
    assert model.score(File(X), y) > 0.5
    again = ContrastiveHebbianClassifier(**model.get_params())
    with pytest.warns(match="did not converge"):
        again.fit(File(X), y)
    assert_array_equal(model.coefs_[0], again.coefs_[0])


@pytest.mark.parametrize(
    "model", [HalfQuadraticRobustRegressor(), ContrastiveHebbianRegressor()]
)
class TestBadInput:
    def test_nan_is_found_in_any_chunk(self, data, model):
        X, y = data
        X[250, 1] = np.nan
        with pytest.raises(ValueError, match="Input X contains NaN"):
            model.set_params(chunk_size=CHUNK).fit(File(X, 1000), y)
        assert not hasattr(model, "n_features_in_")

    def test_lengths(self, data, model):
        X, y = data
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            model.fit(File(X), y[:-1])

    def test_no_rows_or_columns(self, data, model):
        X, y = data
        with pytest.raises(ValueError, match=r"0 sample\(s\)"):
            model.fit(File(X[:0]), y[:0])
        with pytest.raises(ValueError, match=r"0 feature\(s\)"):
            model.fit(File(X[:, :0]), y)

    def test_no_targets(self, data, model):
        with pytest.raises(ValueError, match="requires y to be passed"):
            model.fit(File(data[0]), None)


def test_features_are_counted_at_prediction(data):
    X, y = data
    model = HalfQuadraticRobustRegressor().fit(X, y)
    with pytest.raises(ValueError, match="X has 3 features"):
        model.predict(File(X[:, :3]))


def test_early_stopping_needs_memory(data):
    X, y = data
    model = ContrastiveHebbianRegressor(early_stopping=True)
    with pytest.raises(ValueError, match="requires X in memory"):
        model.fit(File(X, 1000), y)


@given(st.lists(st.integers(0, 299), max_size=40))
@settings(deadline=None, max_examples=50)
def test_any_rows_can_be_gathered(rows):
    values = np.arange(1200.0).reshape(300, 4)
    gathered = lazy_rows(File(values, 300))[np.array(rows, dtype=int)]
    assert_array_equal(gathered, values[rows])


def test_memory_maps(data, tmp_path):
    X, y = data
    expected = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    for dtype in (np.float32, np.float64, np.int32):
        path = tmp_path / f"{np.dtype(dtype)}.bin"
        mapped = np.memmap(path, dtype=dtype, mode="w+", shape=X.shape)
        mapped[:] = 1000 * X
        assert is_lazy(mapped) == (dtype == np.int32)
        model = HalfQuadraticRobustRegressor(random_state=0).fit(mapped, y)
        assert_allclose(1000 * model.coef_, expected.coef_, atol=0.01)
        assert_array_equal(model.inlier_mask_, expected.inlier_mask_)


def test_what_is_lazy(rng):
    import pandas as pd
    import scipy.sparse

    X = rng.normal(size=(5, 2))
    frame = pd.DataFrame(X)
    for other in (X, X.tolist(), frame, frame[0], scipy.sparse.csr_array(X), X[:, 0]):
        assert not is_lazy(other)
    assert is_lazy(File(X))
    assert not is_lazy(File(X.astype(object)))
    assert not is_lazy(File(X[:, 0]))
