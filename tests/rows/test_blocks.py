"""Rows of Dask arrays: columns that stay with the blocks, and what travels.

With Dask's scheduler in the calling thread; clusters are in `test_distributed.py`.
"""

import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
)
from sklearn_mm._hebbian.inference import MiniBatches
from sklearn_mm._hebbian.schedule import Schedule
from sklearn_mm._robust import regressor
from sklearn_mm._robust.start import sample
from sklearn_mm._rows import block_tasks, blocks, groups, ranks, sources, table
from sklearn_mm._rows.block_columns import BlockColumn
from sklearn_mm._rows.blocks import BlockRows
from sklearn_mm._rows.sources import MappedRows, lazy_rows
from sklearn_mm._rows.statistics import weighted_median
from sklearn_mm._rows.table import RowNumbers, Rows, SumOver
from sklearn_mm.criteria import Fixed

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

ROWS, BLOCK = 9_000, 2_000


@pytest.fixture(autouse=True)
def scheduler():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def trips(monkeypatch):
    """What is sent to the scheduler: tasks of each graph."""
    made = []
    for name in ("compute", "persist"):
        original = getattr(dask, name)

        def counted(*collections, original=original, **kwargs):
            made.append(len(collections))
            return original(*collections, **kwargs)

        monkeypatch.setattr(dask, name, counted)
    return made


def in_blocks(X, size=BLOCK):
    return da.from_array(X, chunks=(size, *(-1 for _ in X.shape[1:])))


def test_options_of_dask_are_left_as_they_were():
    """Also those of the package that Dask imports when it computes something first."""
    code = (
        "import dask.array as da, numpy as np\n"
        "from sklearn_mm import HalfQuadraticRobustRegressor\n"
        "X, y = np.arange(40.0).reshape(-1, 1), np.arange(40.0)\n"
        "rows = da.from_array(X, chunks=(20, 1))\n"
        "model = HalfQuadraticRobustRegressor().fit(rows, y)\n"  # y is sent
        "assert abs(rows.sum().compute() - X.sum()) < 1e-9\n"
        "assert np.allclose(model.predict(rows).compute(), y)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class File:
    """Rows that slice, as those of a file do."""

    def __init__(self, values):
        self.values = values
        self.shape, self.dtype = values.shape, values.dtype

    def __getitem__(self, rows):
        return self.values[rows]


def rows_of(n=23, size=5):
    X = np.arange(2.0 * n).reshape(n, 2)
    return X, Rows.of(lazy_rows(in_blocks(X, size)))


def make_data(n_rows=ROWS, n_outputs=None):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 6))
    shape = (6,) if n_outputs is None else (6, n_outputs)
    y = X @ rng.normal(size=shape)
    y += 0.1 * rng.normal(size=y.shape)
    y[::4] += 9.0
    return X, y


def robust(X, y, sample_weight=None, **params):
    model = HalfQuadraticRobustRegressor(chunk_size=BLOCK, random_state=0, **params)
    return model.fit(X, y, sample_weight)


def sums_of(*columns):
    return tuple(column.sum() for column in columns)


def sums_of_products(X, v, ones):
    return np.array([*np.einsum("ij,i->j", X, v), ones @ v, v @ v])


class TestColumns:
    def test_a_column_is_computed_when_it_is_needed(self, trips):
        X, rows = rows_of()
        column = rows.fill(None, np.sum, args=(1,))
        twice = rows.beside.fill(None, np.multiply, column, args=(2.0,))
        assert trips == []
        assert rows.beside.sum(np.sum, twice) == 2 * X.sum()
        assert len(trips) == 1
        assert column.parts is None and twice.parts is None

    def test_a_column_that_is_kept_is_computed_once(self):
        calls = []

        def counted(x):
            calls.append(len(x))
            return x.sum(axis=1)

        X, rows = rows_of()
        column = rows.keep(rows.fill(None, counted))
        once_more = rows.keep(rows.beside.fill(None, np.negative, column))
        for _ in range(3):
            assert rows.beside.sum(np.sum, once_more) == -X.sum()
        assert sorted(calls) == [3, 5, 5, 5, 5]
        assert column.function is None and column.columns == ()  # lets go of the rest

    def test_an_array_that_is_kept_is_computed_once(self):
        """Targets of a frame, for example, which has to be converted."""
        read = []

        def counted(part):
            read.append(len(part))
            return part

        _, rows = rows_of()
        values = in_blocks(np.arange(23.0), 7).map_blocks(counted, meta=np.empty(0))
        column = rows.keep(rows.place(values))
        assert read == []
        for _ in range(3):
            assert rows.beside.sum(np.sum, column) == 253.0
        assert sorted(read) == [2, 7, 7, 7]
        ones = np.broadcast_to(1.0, 23)
        assert rows.keep(rows.place(ones)) is ones

    def test_targets_are_read_once(self):
        X, y = make_data(2_000)
        read = []

        def counted(part):
            read.append(len(part))
            return part

        targets = in_blocks(y, 500).map_blocks(counted, meta=y[:0])
        robust(in_blocks(X, 500), targets)
        assert read == [500] * 4

    def test_sums_take_one_trip(self, trips):
        X, rows = rows_of()
        column = rows.place(np.arange(23.0))
        trips.clear()
        first, second = rows.sums(
            [SumOver(np.sum), SumOver(np.sum, (column,), reads_rows=False)]
        )
        assert (first, second) == (X.sum(), 23 * 11)
        assert trips == [5]  # a task for each block, and the caller adds them up

    def test_sums_of_tuples_and_of_many_blocks(self, trips):
        X, rows = rows_of(100, 1)  # more than are added up at a time
        trips.clear()
        total, number = rows.sum(lambda x: (x.sum(axis=0), len(x)))
        assert_allclose(total, X.sum(axis=0))
        assert number == 100
        assert trips == [4]  # sums of 32 blocks are all that comes back

    def test_sums_and_columns_are_computed_in_pieces(self, monkeypatch):
        for module in (block_tasks, table):
            monkeypatch.setattr(module, "PIECE_ROWS", 4)
        lengths = []

        def row_sums(x, out=None):
            lengths.append(len(x))
            return x.sum(axis=1, out=out)

        def numbers(x, i):
            return np.array([len(x), i.sum()])

        X, rows = rows_of(23, 10)
        column = rows.keep(rows.fill(None, row_sums))
        assert rows.beside.sum(np.sum, column) == X.sum()
        assert sorted(lengths) == [2, 2, 3, 4, 4, 4, 4]
        assert_array_equal(rows.output(column, float), X.sum(axis=1))
        for table_ in (rows, Rows.of(X, 10), Rows.of(X, 10, n_jobs=2)):
            assert_array_equal(table_.sum(numbers, RowNumbers()), [23, 253])

    def test_where_in_memory_arrays_lie_does_not_matter(self):
        """Arrays that have been sent are not aligned, which changes sums of NumPy."""

        def moved(values):
            memory = np.empty(values.nbytes + 1, dtype=np.uint8)[1:]
            copy = memory.view(values.dtype).reshape(values.shape)
            np.copyto(copy, values)
            assert not copy.flags.aligned
            return copy

        rng = np.random.default_rng(0)
        X, v = rng.normal(size=(5_000, 3)), rng.normal(size=5_000)
        found = []
        for change in (np.array, moved):
            constant = block_tasks.Constant(change(np.ones(1)))
            call = block_tasks.Call(sums_of_products, (0, constant), (), True)
            places = block_tasks.Place(0), (block_tasks.Place(1, 0),)
            part = block_tasks.Part(slice(0, 5_000), *places)
            work = block_tasks.Work((call,), X.dtype, (part,))
            found.append(block_tasks.sum_blocks(work, change(X), [change(v)]))
        assert_array_equal(*found)

    def test_rows_and_entries_are_taken_in_order(self):
        X, rows = rows_of()
        column = rows.place(np.arange(23.0))
        index = np.array([22, 0, 5, 5, 21, 4])
        for found in (
            rows.take(index, column),
            Rows.of(X).take(index, np.arange(23.0)),
        ):
            assert_array_equal(found[0], X[index])
            assert_array_equal(found[1], index)
        (alone,) = rows.beside.take(index, column)
        assert_array_equal(alone, index)

    @pytest.mark.parametrize("size", [5, 50])
    def test_rows_and_sums_take_one_trip(self, size, trips):
        X, rows = rows_of(500, size)  # few blocks, and many
        index = np.array([22, 0, 499, 5])
        trips.clear()
        (taken,), sums = rows.take_with([SumOver(np.sum), SumOver(len)], index)
        assert len(trips) == 1
        assert_array_equal(taken, X[index])
        assert sums == (X.sum(), 500)
        (taken,), sums = Rows.of(X).take_with([SumOver(np.sum)], index)
        assert_array_equal(taken, X[index])
        assert sums == (X.sum(),)

    def test_values_are_let_go_of_once_the_next_graph_is_sent(self):
        """Dask would otherwise delay the graph."""
        _, rows = rows_of()
        column = rows.keep(rows.fill(None, np.sum, args=(1,)))
        rows.beside.sum(np.sum, column)
        part = weakref.ref(column.parts[0][0])
        del column
        assert part() is not None
        rows.sum(np.sum)
        assert part() is None

    def test_constants_and_numbers_of_rows_do_not_travel(self):
        _, rows = rows_of()
        ones = np.broadcast_to(1.0, 23)
        assert rows.place(ones) is ones
        assert rows.total(ones) == 23.0
        assert rows.beside.sum(np.dot, ones, RowNumbers()) == 253
        assert Rows(None, 23, 4).sum(np.dot, ones, RowNumbers()) == 253
        pairs = np.broadcast_to([1.0, 2.0], (23, 2))
        assert rows.place(pairs) is pairs
        assert_array_equal(list(rows.beside.map(np.shape, pairs))[-1], (3, 2))
        assert_array_equal(rows.beside.sum(np.sum, pairs, args=(0,)), [23.0, 46.0])

    def test_arrays_of_any_kind_become_columns(self):
        _, rows = rows_of()
        values = np.arange(23.0)
        for given_ in (values, da.from_array(values, chunks=7)):
            column = rows.place(given_)
            assert isinstance(column, BlockColumn)
            assert column.shape == (23,)
            assert rows.place(column) is column
            assert_array_equal(list(rows.beside.map(len, column)), [5, 5, 5, 5, 3])
            assert_array_equal(rows.output(column, float), values)

    def test_columns_that_are_not_placed_are_not_mixed_up(self):
        _, rows = rows_of()
        first, second = np.arange(23.0), np.arange(23.0) ** 2
        mapped = MappedRows(first, np.negative, 1, np.dtype(float))
        wanted = (-first.sum(), second.sum(), first.sum())
        for _ in range(5):
            assert rows.beside.sum(sums_of, mapped, second, first) == wanted

    def test_output_is_a_dask_array(self):
        X, rows = rows_of()
        out = rows.output(rows.fill(None, np.sum, args=(1,)), np.float64)
        assert isinstance(out, da.Array)
        assert out.chunks == ((5, 5, 5, 5, 3),)
        assert_array_equal(out.compute(), X.sum(axis=1))


class TestRanks:
    @given(
        seed=st.integers(0, 10_000),
        n=st.integers(2, 400),
        kind=st.sampled_from(["spread", "rounded", "half equal", "negative"]),
        weighted=st.booleans(),
        few=st.sampled_from([0, 20, 10**5]),
    )
    def test_median_is_that_of_all_rows(self, seed, n, kind, weighted, few):
        rng = np.random.default_rng(seed)
        y = rng.normal(size=n) * 10.0 ** rng.integers(-9, 9)
        if kind == "rounded":
            y = np.round(y)
        if kind == "half equal":
            y[: n // 2] = -7.0
        if kind == "negative":
            y = -np.abs(y)
        weight = np.broadcast_to(1.0, n)
        if weighted:
            weight = rng.integers(0, 4, n).astype(float)
            weight[0] = 1.0
        rows = Rows.of(lazy_rows(da.ones((n, 1), chunks=(max(1, n // 5), -1))))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranks, "_FEW_ROWS", few)
            found = ranks.medians(rows, rows.place(y[:, None]), rows.place(weight), 1)
        assert_array_equal(found, weighted_median(y[:, None], weight))

    @given(
        seed=st.integers(0, 10_000),
        n=st.integers(2, 3_000),
        kind=st.sampled_from(["spread", "rounded", "half equal", "far", "two parts"]),
        weighted=st.booleans(),
    )
    def test_median_and_spread_are_those_of_all_rows(self, seed, n, kind, weighted):
        rng = np.random.default_rng(seed)
        y = rng.normal(size=n) * 10.0 ** rng.integers(-9, 9)
        if kind == "rounded":
            y = np.round(y)
        if kind == "half equal":
            y[: n // 2] = -7.0
        if kind == "far":
            y += 1e3 * np.abs(y).max()
        if kind == "two parts":
            y[::3] += 30.0
        weight = np.broadcast_to(1.0, n)
        if weighted:
            weight = rng.integers(0, 4, n).astype(float)
            weight[0] = 1.0
        rows = Rows.of(lazy_rows(da.ones((n, 1), chunks=(max(1, n // 5), -1))))
        columns = (rows.place(y), rows.place(weight))
        (counted,) = rows.sums([ranks.first_counts(np.asarray, *columns)])
        args = (rows, np.asarray, *columns, (), counted)
        narrowed = ranks.MedianAndSpread.of(*args)
        (few,) = rows.sums([narrowed.wanted])
        found = narrowed.of_rows(few)
        centre = weighted_median(y[:, None], weight)
        spread = weighted_median(np.abs(y[:, None] - centre), weight)
        assert found == (centre[0], spread[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ranks, "_FEW_ROWS", 0)
            assert ranks.MedianAndSpread.of(*args) is None

    @given(seed=st.integers(0, 10_000))
    def test_histograms_add_up(self, seed):
        rng = np.random.default_rng(seed)
        keys = rng.integers(-5, 40, 60) * rng.choice([1, 10_000])
        weight = rng.integers(0, 3, 60).astype(float)
        whole = ranks.Histogram.of(keys, weight)
        cut = int(rng.integers(0, 61))
        parts = [
            ranks.Histogram.of(k, w)
            for k, w in ((keys[:cut], weight[:cut]), (keys[cut:], weight[cut:]))
        ]
        added = parts[0] + parts[1]
        assert added.low == whole.low
        added = pickle.loads(pickle.dumps(added))
        assert_array_equal(added.mass, whole.mass)
        assert_array_equal(added.count, whole.count)
        assert whole.count.sum() == 60

    def test_random_numbers_are_those_of_splitmix64(self):
        """The published sequence from the seed zero."""
        words = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
        expected = [((word >> 12) + 0.5) / 2.0**52 for word in words]
        assert_array_equal(ranks._uniform(np.arange(3)), expected)

    def test_rows_are_drawn_by_their_weight(self):
        n = 40_000
        weight = np.where(np.arange(n) % 2, 3.0, 1.0)
        bins, quota = np.zeros(n, dtype=int), np.array([4_000])
        parts = [
            ranks.Drawn.of(quota, bins[i::7], weight[i::7], np.arange(n)[i::7])
            for i in range(7)
        ]
        drawn = sum(parts[1:], start=parts[0])
        whole = ranks.Drawn.of(quota, bins, weight, np.arange(n))
        assert_array_equal(np.sort(drawn.rows), np.sort(whole.rows))
        assert len(set(drawn.rows)) == 4_000
        heavy = np.mean(drawn.rows % 2)
        assert abs(heavy - 0.74) < 0.03  # a little less than 3/4: without replacement

    @given(seed=st.integers(0, 10_000), n=st.integers(1, 3_000))
    def test_few_candidates_are_enough(self, seed, n):
        """The rows of the smallest numbers are found among those below a limit."""
        rng = np.random.default_rng(seed)
        quota = rng.integers(1, 5, 20)
        bins, rows = rng.integers(0, 20, n), np.arange(n)
        weight = 10.0 ** rng.uniform(-3, 0, n)
        drawn = ranks.Drawn.of(quota, bins, weight, rows)
        luck = -np.log(ranks._uniform(rows)) / weight
        for k in range(20):
            inside = np.flatnonzero(bins == k)
            expected = inside[np.argsort(luck[inside])][: quota[k]]
            assert_array_equal(np.sort(drawn.rows[drawn.bins == k]), np.sort(expected))

    def test_a_drawn_sample_decides_as_a_systematic_one(self, monkeypatch):
        X, y = make_data(30_000)
        expected = robust(X, y)
        monkeypatch.setattr(sample, "_MOST_ROWS", 100)
        drawn = robust(X, y)
        assert_allclose(drawn.scale_, expected.scale_, rtol=0.01)
        assert_allclose(drawn.coef_, expected.coef_, atol=1e-3)
        assert_array_equal(robust(in_blocks(X), in_blocks(y)).coef_, drawn.coef_)

    @pytest.mark.parametrize("held", [False, True])
    def test_drawn_rows_come_with_their_entries(self, held, trips, monkeypatch):
        """If workers hold the blocks; otherwise, reading them all takes longer."""
        monkeypatch.setattr(sample, "_MOST_ROWS", 100)
        X, y = make_data(30_000)
        rows = Rows.of(lazy_rows(in_blocks(X)))
        rows.held = held
        residual, ones = rows.place(y[:, None]), np.broadcast_to(1.0, len(y))
        norms = sample.RowNorms(rows.beside, residual, ones, (rows, rows.place(y)))
        trips.clear()
        order, weight, sampled, entries = norms.sample(500)
        assert len(trips) == 2  # a histogram, and the draw
        assert sampled and len(order) == len(weight) == 500
        if held:
            assert_array_equal(entries[0], X[order])
            assert_array_equal(entries[1], y[order])
            # As many rows travel from each chunk, from which they are then drawn.
            travelling = len(rows.chunks) * 500 * X.shape[1]
            monkeypatch.setattr(sample, "_MOST_ENTRIES", travelling)
            assert norms.sample(500)[-1] != ()
            monkeypatch.setattr(sample, "_MOST_ENTRIES", travelling - 1)
            again, *_, entries = norms.sample(500)
            assert_array_equal(again, order)
        assert entries == ()


class TestRobust:
    @pytest.mark.parametrize("n_outputs", [None, 2])
    @pytest.mark.parametrize("n_rows", [ROWS, 30_000])  # with and without a kept matrix
    @pytest.mark.parametrize("piece", [300, 10**6])
    def test_blocks_that_are_chunks_give_the_same_bits(
        self, n_rows, n_outputs, piece, monkeypatch
    ):
        for module in (block_tasks, table):
            monkeypatch.setattr(module, "PIECE_ROWS", piece)
        X, y = make_data(n_rows, n_outputs)
        local = robust(X, y)
        model = robust(in_blocks(X), in_blocks(y, 1_300))
        assert_array_equal(model.coef_, local.coef_)
        assert_array_equal(model.scale_, local.scale_)
        for name in ("weights_", "inlier_mask_"):
            rows = getattr(model, name)
            assert isinstance(rows, da.Array)
            assert rows.dtype == getattr(local, name).dtype
            assert_array_equal(rows.compute(), getattr(local, name))
        assert_array_equal(model.history_.upper_bound, local.history_.upper_bound)

    @pytest.mark.parametrize(
        "params",
        [
            {},
            {"criterion": "sudemm"},
            {"alpha": 2.0},
            {"init": "ols", "scale": 0.1},
            {"init": np.ones(6)},
            {"fit_intercept": False},
            {"scale": 0.1},
        ],
        ids=str,
    )
    def test_any_parameters_and_weights(self, params):
        X, y = make_data(12_000)
        weight = np.random.default_rng(1).random(12_000)
        weight[::3] = 0.0
        local = robust(X, y, weight, **params)
        model = robust(in_blocks(X), in_blocks(y), in_blocks(weight, 999), **params)
        assert_allclose(model.coef_, local.coef_, rtol=1e-10, atol=1e-12)
        assert_allclose(model.scale_, local.scale_, rtol=1e-10)

    def test_neither_X_nor_y_is_gathered(self, monkeypatch):
        X, y = (in_blocks(part) for part in make_data())
        for name in ("compute", "__array__"):
            monkeypatch.setattr(da.Array, name, None)
        robust(X, y)

    def test_what_travels_does_not_grow_with_the_rows(self, monkeypatch):
        def bytes_of_sums(n_rows):
            """Bytes of every sum that comes back.

            But for targets: histograms, and those few from which the median is found.
            """
            sizes, original = [], blocks.add_all

            def measured(*values):
                targets = ("Histogram", "Collected")
                sums = [v for v in values if not any(t in repr(v) for t in targets)]
                sizes.extend(len(pickle.dumps(value)) for value in sums)
                return original(*values)

            monkeypatch.setattr(blocks, "add_all", measured)
            X, y = make_data(n_rows)
            size = n_rows // 8
            X, y = in_blocks(X, size), in_blocks(y, size)
            robust(X, y, init=start, scale=0.1)
            monkeypatch.undo()
            return sizes

        start = robust(*make_data()).coef_
        few, many = bytes_of_sums(16_000), bytes_of_sums(128_000)
        assert max(few) == max(many) < 2_000  # a Gram matrix
        assert set(few) == set(many)

    def test_an_exact_iteration_takes_two_trips(self, trips):
        """Bounds come with the sums of the step, then there is a line search."""
        X, y = make_data(30_000)
        X, y = in_blocks(X), in_blocks(y)
        start = robust(X, y)
        numbers = []

        class Counting(Fixed):
            def converged(self, trial, moved, memory, tol):
                numbers.append(len(trips))
                return super().converged(trial, moved, memory, tol)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(regressor, "_EXACT_WEIGHTS", Counting(1.0))
            robust(X, y, init=start.coef_ + 1e-3, scale=start.scale_, tol=1e-9)
        assert len(numbers) >= 3
        assert set(np.diff(numbers)) == {2}

    def test_trips_and_tasks_of_a_fit(self, trips, monkeypatch):
        """SCALING.md and the simulation of the scheduler rely on these."""
        tasks, original = [], BlockRows._tasks

        def counted(rows, *args, **kwargs):
            made = original(rows, *args, **kwargs)
            tasks.append(len(made))
            return made

        monkeypatch.setattr(BlockRows, "_tasks", counted)
        X, y = make_data(60_000)
        X, y = in_blocks(X, 6_000), in_blocks(y, 6_000)
        trips.clear()
        model = robust(X, y)
        assert model.n_iter_ >= 4
        n_blocks = len(model.weights_.chunks[0])
        # 16, and 27 tasks per block, if workers hold X and rows are drawn from it.
        assert len(trips) <= 18
        # Two arrays of results, which are computed when they are read.
        assert sum(tasks) - 2 * n_blocks <= 30 * n_blocks

    def test_targets_may_be_local(self):
        X, y = make_data()
        local = robust(X, y)
        assert_array_equal(robust(in_blocks(X), y).coef_, local.coef_)

    def test_weights_may_be_dask_arrays_beside_local_rows(self):
        X, y = make_data()
        weight = np.random.default_rng(1).random(len(y))
        local, model = robust(X, y, weight), robust(X, y, in_blocks(weight))
        assert_array_equal(model.coef_, local.coef_)
        with pytest.raises(ValueError, match="Negative values"):
            robust(X, y, in_blocks(-weight))

    def test_blocks_of_any_shape(self):
        X, y = make_data()
        local = robust(X, y)
        ragged = da.from_array(X, chunks=((10, 3_000, 1, 5_989), (4, 2)))
        assert_allclose(robust(ragged, in_blocks(y)).coef_, local.coef_, rtol=1e-9)
        mixed = da.concatenate(
            [in_blocks(X[:4_000]), in_blocks(X[4_000:].astype(np.float32))]
        )
        assert_allclose(robust(mixed, in_blocks(y)).coef_, local.coef_, rtol=1e-3)
        single = robust(in_blocks(X.astype(np.float32)), in_blocks(y))
        assert single.coef_.dtype == np.float32
        assert_allclose(single.coef_, local.coef_, rtol=1e-3)

    def test_types_and_shapes_of_targets(self):
        X, y = make_data(600)
        known = {"init": "ols", "scale": 0.5}
        for targets in (
            y[:, None],
            y.astype(np.longdouble),
            y.astype(object),
            y > 0,
        ):
            local = robust(X, targets, **known)
            model = robust(in_blocks(X), in_blocks(targets), **known)
            assert_array_equal(model.coef_, local.coef_)
            assert model.predict(in_blocks(X)).shape == local.predict(X).shape
        both = np.column_stack([y, -y])
        by_column = da.from_array(both, chunks=(BLOCK, 1))
        model = robust(in_blocks(X), by_column, **known)
        assert_array_equal(model.coef_, robust(X, both, **known).coef_)
        for rows in (X.astype(object), X.astype(str)):
            model = robust(in_blocks(rows), y, **known)
            assert_array_equal(model.coef_, robust(X, y, **known).coef_)

    def test_fitted_models_pickle_without_results_for_rows(self):
        X, y = make_data()
        model = robust(in_blocks(X), in_blocks(y))
        again = pickle.loads(pickle.dumps(model))
        assert_array_equal(again.coef_, model.coef_)
        assert not hasattr(again, "weights_") and not hasattr(again, "inlier_mask_")
        assert_array_equal(again.predict(X), model.predict(in_blocks(X)))
        assert hasattr(model, "weights_")


class TestFrames:
    def test_names_are_kept(self):
        pd = pytest.importorskip("pandas")
        dd = pytest.importorskip("dask.dataframe", exc_type=ImportError)
        X, y = make_data()
        names = [f"column {i}" for i in range(6)]
        table = pd.DataFrame(X, columns=names).assign(y=y)
        frame = dd.from_pandas(table, npartitions=4)
        local = robust(table[names], y)
        model = robust(frame[names], frame["y"])
        assert_array_equal(model.feature_names_in_, names)
        assert_allclose(model.coef_, local.coef_, rtol=1e-10)
        assert isinstance(model.weights_, da.Array)
        with pytest.raises(ValueError, match="feature names"):
            model.predict(frame[names[::-1]])

    @pytest.mark.parametrize("of_frame", [False, True])
    def test_names_are_kept_with_targets_in_memory(self, of_frame):
        pd = pytest.importorskip("pandas")
        dd = pytest.importorskip("dask.dataframe", exc_type=ImportError)
        X, y = make_data(2_000)
        names = [f"column {i}" for i in range(6)]
        frame = dd.from_pandas(pd.DataFrame(X, columns=names), npartitions=4)
        model = robust(frame, pd.Series(y) if of_frame else y)
        assert_array_equal(model.feature_names_in_, names)
        model.score(frame, y)
        assert_array_equal(model.feature_names_in_, names)
        with pytest.raises(ValueError, match="feature names"):
            model.score(frame[names[::-1]], y)
        network = ContrastiveHebbianRegressor(4, max_iter=1, random_state=0)
        with pytest.warns(ConvergenceWarning):
            network.fit(frame, y)
        network.bounds(frame, y)
        assert_array_equal(network.feature_names_in_, names)

    @pytest.mark.parametrize(
        "dtypes",
        [
            {"b": bool},
            {"b": "Int64", "f": "Float64", "y": "Float64"},
            {"b": "int64[pyarrow]", "y": "double[pyarrow]"},
            {"f": object, "y": object},
            {"f": np.float32, "b": np.int8},
        ],
        ids=str,
    )
    def test_columns_of_any_numbers_stay_with_the_workers(self, dtypes, monkeypatch):
        """Those that NumPy does not have would make an array of objects."""
        pd = pytest.importorskip("pandas")
        dd = pytest.importorskip("dask.dataframe", exc_type=ImportError)
        if "pyarrow" in str(dtypes):
            pytest.importorskip("pyarrow")
        X, y = make_data(2_000)
        table = pd.DataFrame({"f": X[:, 0], "b": X[:, 1] > 0, "y": y, "w": abs(y)})
        table = table.astype(dtypes)
        frame = dd.from_pandas(table, npartitions=3)
        data = [table[["f", "b"]].astype(float), table["y"].astype(float), table["w"]]
        local = robust(*data)
        for name in ("compute", "__array__"):
            monkeypatch.setattr(da.Array, name, None)
        model = robust(frame[["f", "b"]], frame["y"], frame["w"])
        assert_allclose(model.coef_, local.coef_, rtol=1e-7)
        assert isinstance(model.predict(frame[["f", "b"]]), da.Array)

    def test_missing_numbers_and_words(self):
        pd = pytest.importorskip("pandas")
        dd = pytest.importorskip("dask.dataframe", exc_type=ImportError)
        X, y = make_data(2_000)
        numbers = pd.array(X[:, 0], dtype="Float64")
        numbers[1_500] = None
        table = pd.DataFrame({"f": X[:, 0], "n": numbers, "word": "a", "y": y})
        frame = dd.from_pandas(table, npartitions=2)
        with pytest.raises(ValueError, match=r"X contains NaN.*row 1500, column 1"):
            robust(frame[["f", "n"]], frame["y"])
        with pytest.raises(ValueError, match="could not convert string to float"):
            robust(frame[["f", "word"]], frame["y"])
        with pytest.raises(ValueError, match=r"y contains NaN.*row 1500"):
            robust(frame[["f"]], frame["n"])

    @pytest.mark.filterwarnings("ignore:Contrastive.*did not converge")
    @pytest.mark.filterwarnings("ignore:Dask currently has limited support")
    @pytest.mark.parametrize("kind", ["Int64", "category", "string", "boolean"])
    def test_labels(self, kind):
        pd = pytest.importorskip("pandas")
        dd = pytest.importorskip("dask.dataframe", exc_type=ImportError)
        X, y = make_data(2_000)
        words = pd.Series(np.where(y > 0, "yes", "no"))
        labels = pd.Series(y > 0) if kind in ("Int64", "boolean") else words
        table = pd.DataFrame(X, columns=list("abcdef")).assign(y=labels.astype(kind))
        frame = dd.from_pandas(table, npartitions=2)
        model = ContrastiveHebbianClassifier((3,), max_iter=2, random_state=0)
        model.fit(frame[list("abcdef")], frame["y"])
        assert_array_equal(model.classes_, np.unique(labels))
        score = model.score(frame[list("abcdef")], frame["y"])
        assert_allclose(score, model.score(table[list("abcdef")], labels))


class TestBadInput:
    def fit(self, X, y, sample_weight=None):
        model = HalfQuadraticRobustRegressor()
        try:
            model.fit(X, y, sample_weight)
        finally:
            assert not hasattr(model, "coef_") and not hasattr(model, "n_features_in_")

    @pytest.mark.parametrize(
        ("value", "kind"),
        [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")],
    )
    def test_the_place_of_what_is_not_finite(self, value, kind):
        X, y = make_data()
        X[5_003, 4] = value
        place = r"row 5003, column 4 \(block 2\)"
        with pytest.raises(ValueError, match=f"Input X contains {kind}.*{place}"):
            self.fit(in_blocks(X), in_blocks(y))
        X, y = make_data()
        y[4_001] = value
        with pytest.raises(ValueError, match=rf"Input y contains {kind}.*row 4001"):
            self.fit(in_blocks(X), in_blocks(y))
        network = ContrastiveHebbianRegressor((3,), batch_size=None)
        with pytest.raises(ValueError, match=rf"Input y contains {kind}.*row 4001"):
            network.fit(in_blocks(X), in_blocks(y))

    def test_lengths(self):
        X, y = make_data()
        X, y = in_blocks(X), in_blocks(y)
        unknown = y[y > 0]
        with pytest.raises(ValueError, match=r"y\.compute_chunk_sizes"):
            self.fit(X, unknown)
        with pytest.raises(ValueError, match=r"X\.compute_chunk_sizes"):
            self.fit(X[X[:, 0] > 0], y)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            self.fit(X, y[:-1])
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            self.fit(X, y, y[:-1])
        with pytest.raises(ValueError, match="y must be numeric"):
            self.fit(X, y.astype(str))
        with pytest.raises(ValueError, match="Expected 2D array"):
            self.fit(X[:, 0], y)
        with pytest.raises(ValueError, match="Complex data not supported"):
            self.fit(X + 1j, y)

    @pytest.mark.parametrize("change", ["fewer", "more"])
    def test_blocks_that_are_not_what_the_array_says(self, change):
        """The rows that are too many would be left out."""
        changes = {"fewer": lambda x: x[:-1], "more": lambda x: np.concatenate([x, x])}
        X, y = (in_blocks(part) for part in make_data())
        for k in range(3):
            data = [X, y, da.ones(ROWS, chunks=BLOCK)]
            data[k] = data[k].map_blocks(
                changes[change], dtype=float, meta=data[k]._meta
            )
            with pytest.raises(
                ValueError, match=r"rows, but \d+ by the array's chunks"
            ):
                self.fit(*data)

    @pytest.mark.parametrize("n_outputs", [None, 2])
    @pytest.mark.parametrize("value", [1e100, -1e160, 1e300])
    def test_targets_that_are_too_large(self, value, n_outputs):
        """Their squares are not finite, or all others vanish beside them."""
        X, y = make_data(3_000, n_outputs)
        y[7] = value
        for data in ((X, y), (in_blocks(X), in_blocks(y))):
            for fit_intercept in (True, False):
                model = HalfQuadraticRobustRegressor(fit_intercept=fit_intercept)
                with pytest.raises(ValueError, match=r"largest value of y.*Rescale"):
                    model.fit(*data)

    def test_labels_that_have_no_order(self):
        X, y = make_data(1_000)
        labels = np.where(y > 0, "yes", "no").astype(object)
        labels[5] = None
        with pytest.raises(ValueError, match="labels in y cannot be put in order"):
            ContrastiveHebbianClassifier((3,)).fit(in_blocks(X), in_blocks(labels))

    def test_sparse_blocks(self):
        X, y = make_data()
        X = in_blocks(X).map_blocks(scipy.sparse.csr_array, dtype=float)
        with pytest.raises(ValueError, match="sparse blocks, which are not supported"):
            self.fit(X, in_blocks(y))

    def test_masked_blocks(self):
        """What the masks hide would be used."""
        X, y = (in_blocks(part) for part in make_data())
        masked = [da.ma.masked_greater(part, 2.0) for part in (X, y, abs(y))]
        for k, name in enumerate(("X", "y", "sample_weight")):
            data = [X, y, abs(y)]
            data[k] = masked[k]
            with pytest.raises(ValueError, match=f"{name} is a Dask array of masked"):
                self.fit(*data)

    def test_weights_that_are_words(self):
        X, y = (in_blocks(part) for part in make_data())
        with pytest.raises(ValueError, match="could not convert string to float"):
            self.fit(X, y, da.full(ROWS, "a", chunks=BLOCK))

    @pytest.mark.parametrize("weight", [-1.0, np.nan, 0.0])
    def test_weights(self, weight):
        X, y = make_data()
        weight = da.full(len(y), weight, chunks=3_000)
        with pytest.raises(ValueError, match=r"[Ss]ample.weight"):
            self.fit(in_blocks(X), in_blocks(y), weight)


class TestGroups:
    """Blocks that lie with the same worker share a task."""

    class Client:
        """A cluster of two workers, the second of which has two threads."""

        def __init__(self, held, memory_limit):
            self.held, self.memory_limit = held, memory_limit

        def who_has(self, futures):
            return dict(zip((f.key for f in futures), self.held, strict=True))

        def scheduler_info(self, n_workers=5):
            limit = {"memory_limit": self.memory_limit}
            workers = {"a": {"nthreads": 1, **limit}, "b": {"nthreads": 2, **limit}}
            return {"workers": workers if n_workers < 0 else {}}

    class Block:
        def __init__(self, key, client):
            self.key, self.client = key, client
            self.dask = {key: self}

    def groups(self, held, monkeypatch, memory_limit=0):
        distributed = pytest.importorskip("distributed")
        monkeypatch.setattr(distributed, "wait", lambda futures: None)
        client = self.Client(held, memory_limit)
        parts = [self.Block(str(i), client) for i in range(len(held))]
        return groups.groups_of(parts, [100] * len(held))

    def test_one_for_each_thread(self, monkeypatch):
        held = [("a",), ("b",), ("a",), ("b",), ("b",), ("b",), ("b",)]
        assert self.groups(held, monkeypatch) == [[0, 2], [1, 3], [4, 5, 6]]

    def test_one_of_several_copies(self, monkeypatch):
        assert self.groups([("a",), ("a", "b")], monkeypatch) == [[0], [1]]

    def test_not_if_blocks_may_be_on_disk(self, monkeypatch):
        held = [("a",)] * 3 + [("b",)]
        assert self.groups(held, monkeypatch, 700) == [[0, 1, 2], [3]]
        assert self.groups(held, monkeypatch, 500) == [[0], [1], [2], [3]]

    def test_not_if_a_block_is_lost(self, monkeypatch):
        assert self.groups([("a",), ("a",), ()], monkeypatch) == [[0], [1], [2]]

    @pytest.mark.parametrize("n_blocks", [7, 40])
    def test_sums_of_groups(self, n_blocks):
        """They are those of the blocks, to the last bit if these are few."""
        X = np.random.default_rng(0).normal(size=(10 * n_blocks, 3))
        alone = Rows.of(lazy_rows(in_blocks(X, 10)))
        numbers = np.arange(n_blocks)
        shared = BlockRows(
            alone.X, alone._blocks, [list(numbers[k::3]) for k in range(3)]
        )
        found = []
        for rows in (alone, shared):
            column = rows.keep(rows.fill(None, np.sum, args=(1,)))
            more = rows.place(np.arange(float(len(X))))
            sums = rows.beside.sum(sums_of, column, more)
            parts = list(rows.map(np.sum, args=(0,)))
            taken = rows.take(np.array([55, 3, 60]), column, more)
            kept = rows.output(column, float).compute()
            found.append((sums, parts, *taken, kept))
        (first, *others), (second, *more_others) = found
        if n_blocks > 32:
            assert_allclose(second, first, rtol=1e-12)
        else:
            assert_array_equal(second, first)
        for one, other in zip(others, more_others, strict=True):
            assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore:Contrastive.*did not converge")
class TestNetworks:
    def test_states_that_are_taken_apart_can_be_made_again(self):
        """Schedulers may look for collections in the fields of dataclasses."""
        schedule = Schedule.first(4)
        schedule.add([1.0, 0.0, 0.0], most=9)
        state = MiniBatches(Fixed(2), schedule=schedule, n_updates=7)
        _, make_again = dask.base.unpack_collections(state)
        (again,) = make_again([])
        assert again == state and again is not state
        assert again.schedule.tops == [4, 3, 2]

    def test_predictions_are_made_where_the_blocks_are(self):
        X, y = make_data(1_000)
        labels = np.where(y > 1.0, "high", np.where(y < -1.0, "low", "middle"))
        X_blocks = in_blocks(X, 300)
        params = {"max_iter": 3, "random_state": 0}
        classifiers = [
            ContrastiveHebbianClassifier((5,), loss=loss, **params).fit(X, target)
            for loss in ("squared_error", "log_loss")
            for target in (labels, labels == "low")
        ]
        regressors = [
            ContrastiveHebbianRegressor((5,), **params).fit(X, target)
            for target in (y, np.column_stack([y, -y]))
        ]
        names = ("decision_function", "predict_proba", "predict_log_proba")
        for model in classifiers + regressors:
            for name in ("predict", *(names if model in classifiers else ())):
                expected = getattr(model, name)(X)
                found = getattr(model, name)(X_blocks)
                assert isinstance(found, da.Array)
                assert found.shape == expected.shape and found.dtype == expected.dtype
                if name == "predict" and model in classifiers:
                    assert_array_equal(found, expected)
                else:
                    assert_allclose(found, expected, rtol=1e-6, atol=1e-9)
        for model, target in ((classifiers[0], labels), (regressors[0], y)):
            score = model.score(X_blocks, in_blocks(target, 300))
            assert_allclose(score, model.score(X, target))

    @pytest.mark.parametrize("criterion", ["sudemm", "regemm"])
    def test_full_batches(self, criterion):
        X, y = make_data(3_000)
        params = {"criterion": criterion, "batch_size": None, "max_iter": 4, "tol": 0.0}
        params |= {"chunk_size": 500, "random_state": 0}
        X_blocks, y_blocks = in_blocks(X, 500), in_blocks(y, 700)
        local = ContrastiveHebbianClassifier((8, 5), **params).fit(X, y > 0)
        model = ContrastiveHebbianClassifier((8, 5), **params).fit(
            X_blocks, y_blocks > 0
        )
        for first, second in zip(model.coefs_, local.coefs_, strict=True):
            assert_array_equal(first, second)
        assert_array_equal(model.classes_, [False, True])
        # A column of targets is a vector, and labels may be of any kind.
        names = np.where(y > 0, "yes", "no")
        column = ContrastiveHebbianClassifier((8, 5), **params).fit(
            X_blocks, in_blocks(names[:, None], 700)
        )
        for first, second in zip(column.coefs_, local.coefs_, strict=True):
            assert_array_equal(first, second)
        assert_array_equal(column.classes_, ["no", "yes"])
        assert model.bounds(X_blocks, y_blocks > 0) == local.bounds(X, y > 0)
        local = ContrastiveHebbianRegressor((8, 5), **params).fit(X, y)
        model = ContrastiveHebbianRegressor((8, 5), **params).fit(X_blocks, y_blocks)
        for first, second in zip(model.coefs_, local.coefs_, strict=True):
            assert_allclose(first, second, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize(
        "params",
        [
            {},
            {"criterion": "fixed", "solver": "sgd", "average": False},
            {"shuffle": False, "alpha": 1e-3},
            {"feedback": 1.0},
            {"inference": "coordinate", "batch_size": 200},
        ],
        ids=str,
    )
    def test_mini_batches_are_those_of_a_file_with_the_same_blocks(
        self, params, monkeypatch
    ):
        X, y = make_data(1_100)
        weight = np.random.default_rng(1).random(len(y))
        params = {"batch_size": 40, "max_iter": 3, "tol": 0.0, **params}
        monkeypatch.setattr(sources, "_GATHERED_ENTRIES", 250 * X.shape[1])
        for kind, targets in (
            (ContrastiveHebbianClassifier, y > 0),
            (ContrastiveHebbianRegressor, y),
        ):
            for sample_weight in (None, weight):
                fits = []
                for data in (
                    (File(X), targets),
                    (in_blocks(X, 250), in_blocks(targets, 300)),
                ):
                    random = np.random.RandomState(0)
                    model = kind((8, 5), random_state=random, **params)
                    model.fit(*data, sample_weight)
                    fits.append((model, random.randint(10**9)))
                (expected, drawn), (model, also_drawn) = fits
                assert drawn == also_drawn
                for W, V in zip(model.coefs_, expected.coefs_, strict=True):
                    assert_allclose(W, V, rtol=1e-9, atol=1e-12)
                history, wanted = model.history_, expected.history_
                assert_allclose(history.upper_bound, wanted.upper_bound, rtol=1e-9)
                assert_array_equal(history.epoch, wanted.epoch)
                assert_array_equal(history.effort, wanted.effort)
                assert np.all(np.diff(history.time) >= 0.0)

    @pytest.mark.parametrize("without", [slice(0, 250), slice(750, None)])
    def test_blocks_without_weight_are_passed_over(self, without, monkeypatch):
        """Mini-batches of them have no mean."""
        X, y = make_data(1_100)
        weight = np.random.default_rng(1).random(len(y))
        weight[without] = weight[300:310] = 0.0
        monkeypatch.setattr(sources, "_GATHERED_ENTRIES", 250 * X.shape[1])
        params = {"batch_size": 40, "max_iter": 3, "tol": 0.0, "random_state": 0}
        fits = [
            ContrastiveHebbianClassifier((8, 5), **params).fit(*data, weight)
            for data in ((File(X), y > 0), (in_blocks(X, 250), in_blocks(y > 0, 300)))
        ]
        parts = (weight[i : i + 250] for i in range(0, len(y), 250))
        n_batches = sum(-(-np.count_nonzero(part) // 40) for part in parts)
        assert len(fits[0].history_.upper_bound) == 3 * n_batches
        for W, V in zip(*(model.coefs_ for model in fits), strict=True):
            assert_allclose(W, V, rtol=1e-9, atol=1e-12)

    def test_mini_batches_of_a_stream(self, monkeypatch):
        """What one call of `partial_fit` has learnt is passed on to the next."""
        X, y = make_data(1_000)
        monkeypatch.setattr(sources, "_GATHERED_ENTRIES", 250 * X.shape[1])
        fits = []
        for rows, targets in ((File(X), y), (in_blocks(X, 250), in_blocks(y, 300))):
            model = ContrastiveHebbianRegressor((8,), batch_size=50, random_state=0)
            for _ in range(3):
                model.partial_fit(rows, targets)
            fits.append(model)
        assert_allclose(fits[1].coefs_[0], fits[0].coefs_[0], rtol=1e-9, atol=1e-12)
        assert fits[1].n_iter_ == 3

    def test_mini_batches_that_diverge(self):
        X, y = make_data(1_000)
        model = ContrastiveHebbianRegressor(
            (8,), solver="sgd", learning_rate_init=1e6, batch_size=50, random_state=0
        )
        with pytest.warns(ConvergenceWarning, match="diverged"):
            model.fit(in_blocks(X, 250), in_blocks(y, 250))
        assert all(np.isfinite(W).all() for W in model.coefs_)

    def test_mini_batches_read_each_block_once_an_epoch(self, monkeypatch):
        X, y = make_data(2_000)
        read, gathered = [], []

        def counted(block):
            read.append(len(block))
            return block

        def fit(targets, max_iter):
            blocks = in_blocks(X, 250).map_blocks(counted, meta=X[:0])
            read.clear()
            model = ContrastiveHebbianClassifier(
                (8,), batch_size=50, max_iter=max_iter, tol=0.0, random_state=0
            ).fit(blocks, targets)
            return model, list(read)

        compute = da.Array.compute

        def measured(array, **kwargs):
            gathered.append(array.shape[0])
            return compute(array, **kwargs)

        monkeypatch.setattr(da.Array, "compute", measured)
        model, few = fit(in_blocks(y > 0, 300), 2)
        _, more = fit(in_blocks(y > 0, 300), 5)
        assert sum(more) - sum(few) == 3 * 2_000
        assert max(more) <= 250
        assert max(gathered) <= 64  # rows that tell where the features are
        local, _ = fit(y > 0, 2)
        assert_array_equal(model.coefs_[0], local.coefs_[0])

    def test_a_state_passes_through_the_blocks(self):
        X, rows = rows_of()
        numbers = rows.place(np.arange(23.0))

        def visit(block, column, state, factor):
            return [*state, (factor * block.sum(), column[0])]

        first = []
        found = rows.fold(visit, first, numbers, args=(2.0,), order=[3, 0, 4])
        assert found == [
            (2.0 * X[start : start + 5].sum(), start) for start in (15, 0, 20)
        ]
        assert first == []

    def test_class_weights_need_labels_in_memory(self):
        X, y = (in_blocks(part) for part in make_data())
        model = ContrastiveHebbianClassifier((3,), class_weight="balanced")
        with pytest.raises(ValueError, match="class_weight requires y in memory"):
            model.fit(X, y > 0)
        with pytest.raises(ValueError, match="Unknown label type"):
            ContrastiveHebbianClassifier((3,)).fit(X, y)


class TestNewRows:
    """Methods of a fitted model: Dask arrays of what they give for arrays."""

    @pytest.fixture(params=[None, 2])
    def fitted(self, request):
        X, y = make_data(3_000, request.param)
        return robust(X, y), X, y

    @pytest.mark.parametrize("in_file", [False, True])
    def test_all_methods(self, fitted, in_file):
        model, X, y = fitted

        def arrays(part):
            return in_blocks(part, 700)

        rows = File(X) if in_file else arrays(X)
        for kind in ("prediction", "mean"):
            found = model.predict_interval(rows, kind=kind)
            assert isinstance(found, np.ndarray if in_file else da.Array)
            assert found.dtype == np.float64
            assert_allclose(found, model.predict_interval(X, kind=kind), rtol=1e-9)
        found = model.predict(rows)
        assert isinstance(found, np.ndarray if in_file else da.Array)
        assert found.shape == y.shape
        assert_allclose(found, model.predict(X), rtol=1e-12)
        for targets in (y, y if in_file else in_blocks(y, 900)):
            weights = model.confidence(rows, targets)
            inliers = model.inlier_mask(rows, targets)
            assert isinstance(weights, np.ndarray if in_file else da.Array)
            assert inliers.dtype == bool and weights.shape == (len(y),)
            assert_allclose(weights, model.confidence(X, y), rtol=1e-9, atol=1e-12)
            assert_array_equal(inliers, model.inlier_mask(X, y))
            assert_allclose(model.score(rows, targets), model.score(X, y), rtol=1e-9)
        leverages, mean = model._leverages(rows)
        assert_allclose(leverages, model._leverages(X)[0], rtol=1e-9)
        assert mean == model._leverages(X)[1]

    @pytest.mark.parametrize("weighted", [False, True])
    def test_scores_are_sums(self, fitted, weighted, monkeypatch):
        model, X, y = fitted
        weight = np.random.default_rng(1).random(len(y)) if weighted else None
        expected = model.score(X, y, weight)
        monkeypatch.setattr(da.Array, "__array__", None)
        targets = da.from_array(y, chunks=(900, *[1] * (y.ndim - 1)))
        if weighted:
            weight = in_blocks(weight, 500)
        assert_allclose(model.score(in_blocks(X, 700), targets, weight), expected)
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            model.score(in_blocks(X, 700), targets[:-1])
        with pytest.raises(ValueError, match="y has shape"):
            model.score(in_blocks(X, 700), da.ones((3_000, 3)))
        with pytest.raises(ValueError, match="y contains NaN"):
            model.score(in_blocks(X, 700), targets * np.nan)

    def test_scores_of_constant_targets(self):
        X, _ = make_data(300)
        constant = np.full(300, 3.0)
        model = HalfQuadraticRobustRegressor(kernel="quadratic").fit(X, constant)
        for y in (constant, constant + 1.0):
            assert model.score(in_blocks(X), in_blocks(y)) == model.score(X, y)

    def test_rows_are_read_when_the_result_is_computed(self, fitted):
        model, X, y = fitted
        read = []

        def counted(block):
            read.append(len(block))
            return block

        rows = in_blocks(X, 1_000).map_blocks(counted, meta=X[:0])
        lazy = model.confidence(rows, in_blocks(y, 1_000))
        read.clear()  # they have been checked
        lazy[:10].compute()
        assert read == [1_000]

    def test_single_precision(self, fitted):
        model, X, _ = fitted
        X32 = X.astype(np.float32)
        for part in (X32, in_blocks(X32, 700)):
            assert model.predict(part).dtype == model.predict(X32).dtype

    def test_bad_input(self, fitted):
        model, X, y = fitted
        rows = in_blocks(X.copy(), 700)
        with pytest.raises(ValueError, match=r"X has 5 features"):
            model.predict_interval(rows[:, :5].rechunk({1: -1}))
        with pytest.raises(ValueError, match="outputs, but"):
            model.confidence(rows, in_blocks(np.zeros((3_000, 3)), 700))
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            model.inlier_mask(rows, in_blocks(y[:-1], 700))
        X[2_000, 3] = np.nan
        with pytest.raises(ValueError, match=r"row 2000, column 3"):
            model.predict(in_blocks(X, 700))
        y[1_500] = np.inf
        with pytest.raises(ValueError, match=r"Input y contains infinity.*row 1500"):
            model.confidence(rows, in_blocks(y, 700))
