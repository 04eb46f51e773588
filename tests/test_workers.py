"""Who works on chunks of rows, and what comes back."""

import os
import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sklearn_mm._core._chunks import (
    chunks_of,
    collect,
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


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("size", [4, 23, 50])
def test_rows_come_with_their_arguments_and_are_collected(size, n_jobs):
    chunks = row_chunks(23, size)
    offsets = np.arange(23.0)

    def scaled(rows, shift, factor):
        return (factor * (rows + shift[:, None])).astype(np.float32)

    values = map_rows(scaled, X, chunks, n_jobs, lambda chunk: (offsets[chunk], 10.0))
    found = collect(values, chunks, 23)
    assert_array_equal(found, 10 * (X + offsets[:, None]))
    assert found.dtype == np.float32
    single = collect(map_chunks(lambda c: offsets[c], chunks, n_jobs), chunks, 23)
    assert_array_equal(single, offsets)


def test_data_may_have_borders_of_their_own():
    class Blocks:
        shape = (23, 2)
        row_blocks = [slice(0, 20), slice(20, 23)]

    assert chunks_of(Blocks(), 4) == Blocks.row_blocks
    assert chunks_of(X, 4) == CHUNKS
