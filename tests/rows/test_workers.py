"""Who works on chunks of rows, and what comes back."""

import os
import threading

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sklearn_mm._rows.workers import (
    chunks_of,
    fill_chunks,
    fill_rows,
    kept_threads,
    map_chunks,
    map_rows,
    row_chunks,
)

X = np.arange(46.0).reshape(23, 2)
CHUNKS = row_chunks(23, 4)


def where(*arguments):
    return os.getpid(), threading.get_ident()


@pytest.mark.parametrize("n_jobs", [None, 1])
def test_one_job_is_done_by_the_thread_that_asks(n_jobs):
    assert set(map_chunks(where, CHUNKS, n_jobs)) == {where()}
    assert set(map_rows(where, X, CHUNKS, n_jobs)) == {where()}


def test_a_single_chunk_needs_no_worker():
    whole = [slice(0, 23)]
    assert list(map_chunks(where, whole, 2)) == [where()]
    assert list(map_rows(where, X, whole, 2)) == [where()]


def test_jobs_are_threads_of_this_process():
    for places in (map_chunks(where, CHUNKS, 2), map_rows(where, X, CHUNKS, 2)):
        assert {process for process, _ in places} == {os.getpid()}


def scaled(rows, shift, factor, out=None):
    return np.multiply(factor, rows + shift[:, None], out=out)


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("size", [4, 23, 50])
@pytest.mark.parametrize("backend", ["threading", "loky"])
def test_rows_come_with_their_arguments_and_fill_an_array(size, n_jobs, backend):
    chunks = row_chunks(23, size)
    offsets = np.arange(23.0)
    expected = 10 * (X + offsets[:, None])

    def arguments(chunk):
        return offsets[chunk], 10.0

    out = np.full((23, 2), np.nan)
    with joblib.parallel_config(backend):
        values = map_rows(scaled, X, chunks, n_jobs, arguments)
        assert_array_equal(np.concatenate(list(values)), expected)
        assert fill_rows(scaled, X, chunks, n_jobs, arguments, out) is out
    assert_array_equal(out, expected)
    out = np.full(23, np.nan, dtype=np.float32)
    assert fill_chunks(offsets.__getitem__, chunks, n_jobs, out) is out
    assert_array_equal(out, offsets)


def test_threads_are_kept_for_a_while(monkeypatch):
    monkeypatch.setattr("sklearn_mm._rows.workers.cpu_count", lambda: 2)
    before = threading.active_count()
    together = threading.Barrier(2)

    def thread(chunk):
        together.wait(10)  # both of them are needed
        return threading.current_thread()

    with kept_threads():
        first = set(map_chunks(thread, CHUNKS[:4], 2))
        assert set(map_chunks(thread, CHUNKS[:4], 2)) == first
    assert len(first) == 2
    assert not any(thread.is_alive() for thread in first)
    assert first.isdisjoint(map_chunks(thread, CHUNKS[:4], 2))
    assert threading.active_count() == before


@pytest.mark.parametrize("keep", [False, True])
def test_nobody_works_on_after_an_error(keep):
    running = set()

    def work(chunk):
        if chunk == CHUNKS[0]:
            raise KeyError("first")
        running.add(chunk.start)
        threading.Event().wait(0.05)
        running.discard(chunk.start)

    def fail():
        with pytest.raises(KeyError, match="first"):
            list(map_chunks(work, CHUNKS, 2))
        assert not running

    if keep:
        with kept_threads():
            fail()
    else:
        fail()


def test_data_may_have_borders_of_their_own():
    class Blocks:
        shape = (23, 2)
        row_blocks = [slice(0, 20), slice(20, 23)]

    assert chunks_of(Blocks(), 4) == Blocks.row_blocks
    assert chunks_of(X, 4) == CHUNKS


class TestChunks:
    @given(n=st.integers(0, 50), size=st.integers(1, 60))
    def test_cover(self, n, size):
        rows = [i for chunk in row_chunks(n, size) for i in range(n)[chunk]]
        assert rows == list(range(n))

    @pytest.mark.parametrize("n_jobs", [None, 1, 2])
    def test_order(self, n_jobs):
        values = np.random.default_rng(0).normal(size=1000)
        chunks = row_chunks(1000, 7)
        sums = list(map_chunks(lambda c: values[c].sum(), chunks, n_jobs))
        assert sums == [values[c].sum() for c in chunks]
