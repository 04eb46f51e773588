"""The same fits on joblib's process pools, Dask and Ray.

Longer than other tests, since clusters have to start: ``pytest -m distributed``.
"""

import os
import signal
import warnings

import joblib
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import ContrastiveHebbianClassifier, HalfQuadraticRobustRegressor
from sklearn_mm._robust import reweighting
from sklearn_mm._rows.table import Rows
from sklearn_mm.criteria import Fixed, RelaxedGeneralized, SufficientDescent

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:Contrastive.*did not converge"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ROWS, BLOCK = 9_000, 2_000


def make_data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, 6))
    y = X @ np.arange(1.0, 7.0) + 0.1 * rng.normal(size=ROWS)
    y[::4] += 9.0
    return X, y


def robust(X, y, **params):
    model = HalfQuadraticRobustRegressor(chunk_size=BLOCK, random_state=0, **params)
    return model.fit(X, y)


def hebbian(X, y, criterion="sudemm"):
    return ContrastiveHebbianClassifier(
        (8, 5),
        criterion=criterion,
        batch_size=None,
        max_iter=4,
        tol=0.0,
        chunk_size=BLOCK,
        random_state=0,
    ).fit(X, y > 0)


def mini_batches(X, y, criterion="sudemm", scheduler=None, **params):
    dask = pytest.importorskip("dask")
    params = {"max_iter": 3, **params}
    model = ContrastiveHebbianClassifier(
        (8, 5), criterion=criterion, batch_size=500, tol=0.0, random_state=0, **params
    )
    with dask.config.set(scheduler=scheduler):
        return model.fit(X, y > 0)


def bytes_sent(client):
    """Data that workers have sent so far, by their own counters."""
    totals = client.run(lambda dask_worker: dask_worker.transfer_outgoing_bytes_total)
    return sum(totals.values())


def assert_equal_fits(X, y, criteria=("sudemm", "regemm")):
    """Fits of these data, on the engine that is set, are those of one thread."""
    X_local, y_local = make_data()
    with joblib.parallel_config("threading", n_jobs=1):
        plain = robust(X_local, y_local)
        networks = {c: hebbian(X_local, y_local, c) for c in criteria}
    model = robust(X, y)
    assert_array_equal(model.coef_, plain.coef_)
    assert_array_equal(model.weights_, plain.weights_)
    assert model.scale_ == plain.scale_
    assert_array_equal(model.predict(X), plain.predict(X_local))
    for criterion, expected in networks.items():
        network = hebbian(X, y, criterion)
        for W, V in zip(network.coefs_, expected.coefs_, strict=True):
            assert_array_equal(W, V)
        assert network.bounds(X, y > 0) == expected.bounds(X_local, y_local > 0)


@pytest.mark.parametrize("backend", ["threading", "loky", "multiprocessing"])
def test_joblib_backends(backend):
    with joblib.parallel_config(backend, n_jobs=2):
        assert_equal_fits(*make_data())


def test_blas_threads_in_worker_processes():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    X = np.ones((4, 2))
    for backend in ("threading", "loky"):
        with joblib.parallel_config(backend, n_jobs=2):
            seen = list(Rows.of(X, 1).map(blas_threads))
        assert seen == [1] * 4
    # The limit is lifted again.
    before = blas_threads(None)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        list(Rows.of(X, 1, 2).map(blas_threads))
        assert blas_threads(None) == 2
    assert blas_threads(None) == before


def blas_threads(rows):
    import threadpoolctl

    info = threadpoolctl.threadpool_info()
    return max(pool["num_threads"] for pool in info if pool["user_api"] == "blas")


class TestDask:
    @pytest.fixture(scope="class")
    def cluster(self):
        dask = pytest.importorskip("dask")
        distributed = pytest.importorskip("distributed")
        # Workers do not take blocks from each other, which would count as traffic.
        config = {"distributed.scheduler.work-stealing": False}
        with (
            dask.config.set(config),
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=":0"
            ) as cluster,
            distributed.Client(cluster),
        ):
            yield cluster

    def arrays(self):
        da = pytest.importorskip("dask.array")
        X, y = make_data()
        # Columns in blocks, too: they are put together.
        return da.from_array(X, chunks=(BLOCK, 4)), da.from_array(y, chunks=BLOCK)

    def test_local_scheduler(self):
        assert_equal_fits(*self.arrays())

    def test_cluster(self, cluster):
        assert_equal_fits(*self.arrays())

    def test_blocks_stay_on_their_workers(self, cluster):
        X, y = self.arrays()
        assert_equal_fits(X.persist(), y)

    def test_empty_blocks(self):
        da = pytest.importorskip("dask.array")
        X, y = make_data()
        kept = np.ones(len(X), dtype=bool)
        kept[BLOCK : 2 * BLOCK] = False
        filtered = da.from_array(X, chunks=(BLOCK, -1))[da.from_array(kept, BLOCK)]
        with pytest.raises(ValueError, match="compute_chunk_sizes"):
            robust(filtered, y[kept])
        model = robust(filtered.compute_chunk_sizes(), y[kept])
        assert_array_equal(model.coef_, robust(X[kept], y[kept]).coef_)
        network = hebbian(filtered, y[kept])
        expected = hebbian(X[kept], y[kept])
        assert_array_equal(network.coefs_[0], expected.coefs_[0])

    def test_joblib_backend(self, cluster):
        with joblib.parallel_config("dask"):
            assert_equal_fits(*make_data())

    def test_lost_worker(self, cluster):
        """Columns that it held are computed again."""
        X, y = (part.persist() for part in self.arrays())
        killer = KillWorker(cluster)
        model = robust(X, y, criterion=killer)
        assert killer.killed
        assert_array_equal(model.coef_, robust(*make_data()).coef_)
        assert_array_equal(model.weights_, robust(*make_data()).weights_)

    def test_what_travels_does_not_grow_with_the_rows(self, cluster):
        """Bytes per iteration, by the workers' own counters."""
        da = pytest.importorskip("dask.array")
        distributed = pytest.importorskip("distributed")
        client = distributed.get_client()
        start = robust(*make_data()).coef_

        def per_iteration(factor):
            X, y = (np.concatenate([part] * factor) for part in make_data())
            size = len(y) // 6
            X = da.from_array(X, chunks=(size, -1)).persist()
            y = da.from_array(y, chunks=size).persist()
            distributed.wait([X, y])
            counts = []

            class Counting(Fixed):
                def converged(self, trial, moved, memory, tol):
                    counts.append(bytes_sent(client))
                    return False

            params = {"init": start + 0.01, "scale": 0.1, "max_iter": 12}
            robust(X, y, criterion=Counting(1.0), **params)
            # The median: a scheduler may move a block once, to a worker that is new.
            return np.median(np.diff(counts))

        with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            # Without the matrix that is kept on many rows, iterations are alike.
            patch.setattr(reweighting, "_KEEP_ROWS", 10**9)
            patch.setattr(reweighting, "_KEEP_ENTRIES", 10**9)
            few, many = per_iteration(1), per_iteration(8)
        # Sums of six blocks, which all go to the caller.
        assert 0 < few == many < 10_000  # a column has 576,000 bytes

    def test_mini_batches_where_the_blocks_are(self, cluster, tmp_path):
        """Held by workers or read when needed; a lost worker changes nothing."""
        X, y = self.arrays()
        expected = mini_batches(X, y, scheduler="synchronous")
        held = X.persist(), y.persist()
        killer = KillOwnWorker(tmp_path / "killed")
        for data, criterion in (((X, y), "sudemm"), (held, "sudemm"), (held, killer)):
            model = mini_batches(*data, criterion)
            for W, V in zip(model.coefs_, expected.coefs_, strict=True):
                assert_array_equal(W, V)
        assert killer.path.exists()

    def test_mini_batches_do_not_travel(self, cluster):
        da = pytest.importorskip("dask.array")
        distributed = pytest.importorskip("distributed")
        client = distributed.get_client()

        def sent_per_epoch(factor):
            X, y = (np.concatenate([part] * factor) for part in make_data())
            size = len(y) // 6
            X = da.from_array(X, chunks=(size, -1)).persist()
            y = da.from_array(y, chunks=size).persist()
            distributed.wait([X, y])
            counts = [0, 0]
            for i, max_iter in enumerate((1, 4)):
                before = bytes_sent(client)
                mini_batches(X, y, max_iter=max_iter, shuffle=False)
                counts[i] = bytes_sent(client) - before
            return (counts[1] - counts[0]) / 3

        # The state moves at most six times an epoch. It contains the history of the
        # epoch, some hundred bytes an update, but no rows, which have 64 bytes each.
        few, many = sent_per_epoch(1), sent_per_epoch(8)
        updates = 8 * ROWS / 500
        assert 0 <= few <= many < 6 * (60_000 + 200 * updates) < 8 * ROWS * 64

    def test_unknown_lengths(self):
        X, y = self.arrays()
        with pytest.raises(ValueError, match="compute_chunk_sizes"):
            robust(X[X[:, 0] > 0], y)


class KillWorker(RelaxedGeneralized):
    """The default criterion, which kills a worker once in the middle of the fit."""

    def __init__(self, cluster):
        super().__init__()
        object.__setattr__(self, "cluster", cluster)
        object.__setattr__(self, "killed", [])

    def satisfied(self, trial, memory):
        if memory.iteration == 1 and not self.killed:
            worker = next(iter(self.cluster.workers.values()))
            self.killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        return super().satisfied(trial, memory)


class KillOwnWorker(SufficientDescent):
    """The default criterion of networks, which kills the worker that it runs on."""

    def __init__(self, path):
        super().__init__()
        object.__setattr__(self, "path", path)

    def satisfied(self, trial, memory):
        if memory.iteration == 30 and not self.path.exists():
            self.path.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().satisfied(trial, memory)


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
    yield ray
    ray.shutdown()


def test_ray_through_joblib(ray):
    from ray.util.joblib import register_ray

    register_ray()
    # Ray starts its actors anew for every sum: few of them.
    with joblib.parallel_config("ray", n_jobs=2):
        assert_equal_fits(*make_data(), criteria=())


def test_ray_as_the_scheduler_of_dask(ray):
    dask = pytest.importorskip("dask")
    da = pytest.importorskip("dask.array")
    from ray.util.dask import ray_dask_get

    X, y = make_data()
    X, y = da.from_array(X, chunks=(BLOCK, -1)), da.from_array(y, chunks=BLOCK)
    expected = mini_batches(X, y, scheduler="synchronous")
    with dask.config.set(scheduler=ray_dask_get):
        assert_equal_fits(X, y, criteria=("sudemm",))
    model = mini_batches(X, y, scheduler=ray_dask_get)
    assert_array_equal(model.coefs_[0], expected.coefs_[0])


@pytest.mark.parametrize("engine", ["h5py", "zarr"])
def test_files(engine, tmp_path):
    library = pytest.importorskip(engine)
    X, y = make_data()
    if engine == "h5py":
        with library.File(tmp_path / "X.h5", "w") as file:
            assert_equal_fits(file.create_dataset("X", data=X, chunks=(500, 6)), y)
    else:
        path = str(tmp_path / "X.zarr")
        array = library.create_array(path, data=X, chunks=(500, 6))
        with joblib.parallel_config("loky", n_jobs=2):
            assert_equal_fits(array, y)
