"""Rows: what tasks are given, who works on them, and how values are put together."""

import os
import threading

import joblib
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sklearn_mm._rows.sources import lazy_rows
from sklearn_mm._rows.table import Rows, row_chunks

X = np.arange(46.0).reshape(23, 2)
COLUMN = np.arange(23.0)
EXPECTED = 10 * (X + COLUMN[:, None])


def length_and_strides(rows, column):
    return len(column), column.strides


def where(*arguments):
    return os.getpid(), threading.get_ident()


def scaled(rows, shift, factor, out=None):
    return np.multiply(factor, rows + shift[:, None], out=out)


def shifted(column, shift, out=None):
    return np.add(column, shift, out=out)


def received(*arguments, **keywords):
    return arguments, keywords


class TestWorkers:
    @pytest.mark.parametrize("n_jobs", [None, 1])
    def test_one_job_is_done_by_the_thread_that_asks(self, n_jobs):
        rows = Rows.of(X, 4, n_jobs)
        assert set(rows.map(where)) == {where()}
        assert set(rows.beside.map(where, COLUMN)) == {where()}

    @pytest.mark.parametrize("backend", ["threading", "loky"])
    def test_a_single_chunk_needs_no_worker(self, backend):
        rows = Rows.of(X, 23, 2)
        with joblib.parallel_config(backend):
            assert list(rows.map(where)) == [where()]
            assert list(rows.beside.map(where, COLUMN)) == [where()]

    def test_jobs_are_threads_of_this_process(self):
        rows = Rows.of(X, 4, 2)
        for places in (rows.map(where), rows.beside.map(where, COLUMN)):
            assert {process for process, _ in places} == {os.getpid()}

    def test_columns_alone_never_leave_the_process(self):
        with joblib.parallel_config("loky", n_jobs=2):
            places = Rows.of(X, 4).beside.map(where, COLUMN)
            assert {process for process, _ in places} == {os.getpid()}

    def test_rows_go_where_the_user_wants_them_to(self):
        with joblib.parallel_config("loky", n_jobs=2):
            places = Rows.of(X, 4).map(where)
            assert os.getpid() not in {process for process, _ in places}

    def test_columns_that_repeat_a_number_do_so_in_other_processes(self):
        constant = np.broadcast_to(3.0, len(X))
        for backend in ("threading", "loky"):
            with joblib.parallel_config(backend, n_jobs=2):
                found = list(Rows.of(X, 4).map(length_and_strides, constant))
            assert found == [(4, (0,))] * 5 + [(3, (0,))]

    @pytest.mark.parametrize("n_jobs", [None, 1, 2])
    def test_order(self, n_jobs):
        values = np.random.default_rng(0).normal(size=1000)
        rows = Rows(None, 1000, 7, n_jobs)
        expected = [values[chunk].sum() for chunk in rows.chunks]
        assert list(rows.map(np.sum, values)) == expected

    @pytest.mark.parametrize("n_jobs", [1, 2])
    def test_errors_are_those_of_the_task(self, n_jobs):
        def fails(*arguments, **keywords):
            raise KeyError("in a task")

        rows = Rows.of(X, 4, n_jobs)
        for act in (rows.map, rows.sum, rows.beside.sum):
            with pytest.raises(KeyError, match="in a task"):
                list(act(fails, COLUMN))
        with pytest.raises(KeyError, match="in a task"):
            rows.fill(COLUMN.copy(), fails)

    @pytest.mark.parametrize("make", [Rows.of, lambda X, *a: Rows(None, len(X), *a)])
    def test_no_jobs_are_an_error(self, make):
        with pytest.raises(ValueError, match="n_jobs must be None or a non-zero"):
            make(X, 4, 0)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("size", [4, 23, 50])
@pytest.mark.parametrize("backend", ["threading", "loky"])
class TestFill:
    def test_rows_come_with_their_columns_and_arguments(self, size, n_jobs, backend):
        rows = Rows.of(X, size, n_jobs)
        with joblib.parallel_config(backend):
            values = list(rows.map(scaled, COLUMN, args=(10.0,)))
            assert_array_equal(np.concatenate(values), EXPECTED)
            out = np.full((23, 2), np.nan)
            assert rows.fill(out, scaled, COLUMN, args=(10.0,)) is out
        assert_array_equal(out, EXPECTED)

    def test_columns_alone(self, size, n_jobs, backend):
        rows = Rows.of(X, size, n_jobs).beside
        out = np.full(23, np.nan, dtype=np.float32)
        with joblib.parallel_config(backend):
            assert rows.fill(out, shifted, COLUMN, args=(1.0,)) is out
            assert_array_equal(out, COLUMN + 1.0)
            # The memory of a column may be that of what it is made of.
            column = COLUMN.copy()
            rows.fill(column, shifted, column, args=(1.0,))
            assert_array_equal(column, COLUMN + 1.0)

    def test_rows_read_on_demand(self, size, n_jobs, backend):
        rows = Rows.of(lazy_rows(File(X)), size, n_jobs)
        with joblib.parallel_config(backend):
            values = list(rows.map(scaled, COLUMN, args=(10.0,)))
            assert_array_equal(np.concatenate(values), EXPECTED)
            out = np.full((23, 2), np.nan)
            rows.fill(out, scaled, COLUMN, args=(10.0,))
        assert_array_equal(out, EXPECTED)

    def test_sums(self, size, n_jobs, backend):
        rows = Rows.of(X, size, n_jobs)
        with joblib.parallel_config(backend):
            assert rows.sum(np.sum) == X.sum()
            total, (first, second) = X.sum(axis=0), rows.sum(sums, COLUMN)
            assert_array_equal(first, total)
            assert second == COLUMN.sum()
            assert rows.beside.sum(np.sum, COLUMN) == COLUMN.sum()


def sums(rows, column):
    return rows.sum(axis=0), column.sum()


class File:
    """Slices, and has no more than a shape and a dtype besides."""

    def __init__(self, values):
        self._values = values
        self.shape, self.dtype = values.shape, values.dtype

    def __getitem__(self, rows):
        return self._values[rows]


@pytest.mark.parametrize("n_jobs", [None, 2])
def test_sums_do_not_depend_on_workers(n_jobs):
    values = np.random.default_rng(0).normal(size=(10_000, 3))
    column = values[:, 0].copy()
    one, many = Rows.of(values, 77, 1), Rows.of(values, 77, n_jobs)
    for a, b in zip(one.sum(sums, column), many.sum(sums, column), strict=True):
        assert_array_equal(a, b)
    # In the order of the rows.
    parts = list(one.beside.map(np.sum, column))
    total = parts[0]
    for part in parts[1:]:
        total += part
    assert one.beside.sum(np.sum, column) == total == many.beside.sum(np.sum, column)


class TestParts:
    def test_a_single_chunk_is_the_array_itself(self):
        """Slicing a sparse matrix would copy all of it."""
        rows = Rows.of(X, 23)
        ((part, column, argument), keywords) = next(
            rows.map(received, COLUMN, args=(3,))
        )
        assert part is X and column is COLUMN and argument == 3
        assert keywords == {}
        sparse = scipy.sparse.csr_array(X)
        ((part,), _) = next(Rows.of(sparse).map(received))
        assert part is sparse

    def test_a_single_chunk_of_a_reader_is_read(self):
        ((part,), _) = next(Rows.of(lazy_rows(File(X))).map(received))
        assert isinstance(part, np.ndarray)
        assert_array_equal(part, X)

    def test_chunks_of_arrays_are_views(self):
        for (part, column), _ in Rows.of(X, 4).map(received, COLUMN):
            assert np.shares_memory(part, X) and np.shares_memory(column, COLUMN)

    def test_workers_of_this_process_are_handed_memory(self):
        out = np.zeros((23, 2))
        given = []

        def task(rows, out=None):
            given.append(out)
            out[:] = rows

        Rows.of(X, 4).fill(out, task)
        assert_array_equal(out, X)
        assert len(given) == 6
        assert all(np.shares_memory(part, out) for part in given)

    def test_workers_elsewhere_return_values(self):
        out = np.zeros(23)
        with joblib.parallel_config("loky", n_jobs=2):
            Rows.of(X, 4).fill(out, without_memory)
        assert_array_equal(out, X.sum(axis=1))


def without_memory(rows, out=None):
    assert out is None
    return rows.sum(axis=1)


class TestChunks:
    def test_size_is_that_asked_for(self):
        lengths = [chunk.stop - chunk.start for chunk in Rows.of(X, 4).chunks]
        assert lengths == [4] * 5 + [3]
        assert Rows.of(X, 4).beside.chunks == Rows.of(X, 4).chunks

    @pytest.mark.parametrize("n_columns", [1, 30, 1_000, 10**6])
    def test_size_depends_on_the_columns_alone(self, n_columns):
        rows = np.broadcast_to(0.0, (300_000, n_columns))
        first, *_ = Rows.of(rows).chunks
        assert 64 <= first.stop <= 262_144
        assert first.stop * n_columns <= 8_388_608 or first.stop == 64
        for n_jobs in (1, 2, 7):
            assert Rows.of(rows, None, n_jobs).chunks == Rows.of(rows).chunks

    def test_columns_beside(self):
        rows = Rows.of(X, 4, 2)
        assert rows.beside.X is None
        assert (rows.beside.n_rows, rows.beside.n_jobs) == (23, 2)
        assert rows.beside is rows.beside
        assert rows.column().shape == (23,)
        assert rows.column(3, np.float32).shape == (23, 3)
        assert rows.column(3, np.float32).dtype == np.float32


@given(n=st.integers(0, 50), size=st.integers(1, 60))
def test_chunks_cover(n, size):
    chunks = row_chunks(n, size)
    assert [i for chunk in chunks for i in range(n)[chunk]] == list(range(n))
    assert all(0 < chunk.stop - chunk.start <= size for chunk in chunks)
