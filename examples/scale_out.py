"""
Beyond one core and one machine's memory
========================================

Every sum over rows is worked out chunk by chunk, so that data may be larger than memory
and the chunks may go to threads, processes or a cluster. Five parts:

``memory``
    A memory map several times larger than the allowed memory is fitted under a limit
    (``RLIMIT_DATA``: the private, writable memory of the process; the map itself does
    not count). Contrastive Hebbian learning on n and on 16 n rows takes the same.
``cores``
    One thread and two threads side by side, and what the machine has to give: bare
    NumPy in one process, and in two that share nothing.
``dask``
    The same calls with Dask arrays, on a local cluster of two workers, side by side
    with one thread and two threads of this process; what travels, by Dask's counters.
``zarr``
    The same for 20,000,000 x 50 numbers in single precision from a Zarr store.
``rows``
    Seconds per row from 10,000 rows up, and a plot.

    python examples/scale_out.py [--quick] [--parts memory cores dask zarr rows]

What follows for a cluster of 100 nodes is worked out in ``examples/SCALING.md``.
"""

import os

# Set before NumPy is imported: one BLAS thread per worker.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
for name in THREADS:
    os.environ.setdefault(name, "1")

import argparse
import csv
import multiprocessing
import tempfile
import threading
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from sklearn_mm import ContrastiveHebbianClassifier, HalfQuadraticRobustRegressor

MB = 1e6
N_FEATURES = 50


# Data on disk
# ------------


def write_rows(folder, n_rows, n_features=N_FEATURES, block=200_000):
    """Rows and targets in float32, a fifth of them outliers, written in blocks."""
    rng = np.random.default_rng(0)
    coef = rng.normal(size=n_features)
    paths = [str(Path(folder) / f"{name}-{n_rows}.npy") for name in "Xy"]
    shapes = [(n_rows, n_features), (n_rows,)]
    X, y = (
        np.lib.format.open_memmap(path, "w+", np.float32, shape)
        for path, shape in zip(paths, shapes, strict=True)
    )
    for start in range(0, n_rows, block):
        rows = slice(start, min(start + block, n_rows))
        X[rows] = rng.standard_normal(X[rows].shape, dtype=np.float32)
        noise = rng.standard_normal(len(X[rows]))
        outlier = rng.random(len(noise)) < 0.2
        y[rows] = X[rows] @ coef + noise + outlier * rng.uniform(20, 60, len(noise))
    X.flush()
    y.flush()
    return paths


# A fit under a limit
# -------------------
# The fit runs in a process of its own, whose private memory is limited to what the
# interpreter takes after its imports, plus the allowance.


def private_memory(field="RssAnon"):
    """Bytes of private memory of this process."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field):
                return 1024 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}")


class PeakMemory:
    """Largest private memory above that at the start, sampled by a thread."""

    def __enter__(self):
        self._base = self.peak = private_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        while not self._done.wait(0.005):
            self.peak = max(self.peak, private_memory())

    def __exit__(self, *exception):
        self._done.set()
        self._thread.join()
        self.peak -= self._base


def limited_fit(model, paths, allowance):
    """Fit in this process with so many more bytes of private memory."""
    import resource

    X, y = (np.load(path, mmap_mode="r") for path in paths)
    if allowance is not None:
        limit = private_memory("VmData") + allowance
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    start = time.perf_counter()
    with PeakMemory() as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return model.n_iter_, memory.peak, time.perf_counter() - start


def in_new_process(function, *args):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


def show_memory(folder, n_rows):
    paths = write_rows(folder, n_rows)
    size = os.path.getsize(paths[0])
    # 8 bytes a row are the attribute weights_.
    allowance = min(600 * MB, 0.6 * size) + 8 * n_rows
    model = HalfQuadraticRobustRegressor(random_state=0)
    n_iter, peak, seconds = in_new_process(limited_fit, model, paths, int(allowance))
    print(
        f"robust regression, {n_rows:,} x {N_FEATURES} float32 on disk: "
        f"{size / MB:,.0f} MB of rows, limit {allowance / MB:,.0f} MB, peak "
        f"{peak / MB:,.0f} MB ({(peak - 8 * n_rows) / MB:,.0f} MB without weights_), "
        f"{n_iter} iterations, {seconds:.1f} s"
    )
    for path in paths:
        os.remove(path)


def show_constant_memory(folder, n_rows):
    peaks = []
    for n in (n_rows, 16 * n_rows):
        paths = write_rows(folder, n, 200)
        y = np.load(paths[1])
        np.save(paths[1], (y > np.median(y)).astype(np.int8))
        model = ContrastiveHebbianClassifier(
            (64, 64), batch_size=None, max_iter=2, random_state=0
        )
        _, peak, seconds = in_new_process(limited_fit, model, paths, None)
        print(
            f"contrastive Hebbian, full batches, {n:,} x 200 "
            f"({os.path.getsize(paths[0]) / MB:,.0f} MB): peak {peak / MB:.1f} MB, "
            f"{seconds:.1f} s"
        )
        peaks.append(peak)
        for path in paths:
            os.remove(path)
    return peaks


# Two cores
# ---------


def timed_fit(model, X, y):
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    return time.perf_counter() - start


def digits_like(n_rows, n_features=784):
    """Sparse non-negative rows in ten classes."""
    rng = np.random.default_rng(0)
    centres = np.maximum(rng.normal(size=(10, n_features)), 0)
    y = rng.integers(0, 10, n_rows)
    X = np.maximum(centres[y] + rng.normal(size=(n_rows, n_features)), 0) / 4
    return X.astype(np.float32), y


def gram_matrix(X, v, r):
    for start in range(0, len(X), 5_000):
        rows = X[start : start + 5_000]
        rows.T @ rows


def elementwise(X, v, r):
    for _ in range(10):
        for start in range(0, len(r), 100_000):
            z = np.square(r[start : start + 100_000])
            z *= 2.0 - np.minimum(z, 1.0)


BARE_WORK = {
    "X v": lambda X, v, r: X @ v,
    "Gram matrix": gram_matrix,
    "elementwise": elementwise,
}


def bare_speed(name, seconds):
    """Repetitions a second of a piece of bare NumPy on arrays larger than caches."""
    rng = np.random.default_rng(0)
    X, v, r = (
        rng.random((500_000, N_FEATURES)),
        rng.random(N_FEATURES),
        rng.random(10**6),
    )
    work = BARE_WORK[name]
    work(X, v, r)
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        work(X, v, r)
        count += 1
    return count / (time.perf_counter() - start)


def show_machine(seconds):
    """Two processes that share nothing but the memory's bandwidth: a ceiling."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for name in BARE_WORK:
            one = pool.submit(bare_speed, name, seconds).result()
            two = [pool.submit(bare_speed, name, seconds) for _ in range(2)]
            ratio = sum(future.result() for future in two) / one
            print(f"bare NumPy, two processes against one: {name} {ratio:.2f}")


def show_cores(n_robust, n_hebbian, repeats=5):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_robust, N_FEATURES))
    y = X @ rng.normal(size=N_FEATURES) + rng.normal(size=n_robust)
    y[: n_robust // 5] += 30.0
    network = ContrastiveHebbianClassifier(  # the paper's four layers
        (64,) * 4, batch_size=None, max_iter=5, random_state=0
    )
    for model, data in (
        (HalfQuadraticRobustRegressor(random_state=0), (X, y)),
        (network, digits_like(n_hebbian)),
    ):
        seconds = {1: [], 2: []}
        for _ in range(repeats):  # in turn, since the machine has faster minutes
            for n_jobs, times in seconds.items():
                times.append(timed_fit(model.set_params(n_jobs=n_jobs), *data))
        one, two = (np.median(times) for times in seconds.values())
        print(
            f"{type(model).__name__}, {' x '.join(map(str, data[0].shape))}: one "
            f"thread {one:.2f} s, two {two:.2f} s, ratio {one / two:.2f} "
            f"(medians of {repeats})"
        )


# A cluster
# ---------
# Nothing changes but the type of X and y: targets, residuals and weights stay with the
# worker that holds the block, and what travels are sums.

# Dask's workers hand memory back to the system as soon as it is free, and get it back
# page by page, which takes longer than the arithmetic on it. These settings let them
# keep it. They are for the administrator of a cluster: the nanny reads them when it
# starts a worker.
KEEP_MEMORY = {
    "distributed.nanny.pre-spawn-environ": {
        "MALLOC_TRIM_THRESHOLD_": str(2**30),
        "MALLOC_MMAP_THRESHOLD_": str(2**25),  # the largest that is allowed
        "MALLOC_ARENA_MAX": "1",  # those of threads are handed back all the same
        **{name: "1" for name in THREADS},
    }
}
# Blocks stay where they are, and workers do not watch what their tasks do a hundred
# times a second: a trip takes about a tenth less.
QUIET = {
    "distributed.scheduler.work-stealing": False,
    "distributed.worker.profile.enabled": False,
}


def made_rows(number, n_rows, n_features, dtype):
    """A block of rows; runs on the worker that keeps it."""
    rng = np.random.default_rng(number)
    return rng.standard_normal((n_rows, n_features)).astype(dtype)


def made_targets(X, number):
    """Targets of a block of rows, a fifth of them outliers."""
    rng = np.random.default_rng(10**6 + number)
    coef = np.random.default_rng(1).standard_normal(X.shape[1])
    y = (X @ coef.astype(X.dtype)).astype(np.float64) + rng.standard_normal(len(X))
    y[::5] += 30.0
    return y.astype(X.dtype)


def read_rows(path, start, stop):
    import zarr

    return zarr.open_array(path, mode="r")[start:stop]


class Traffic:
    """Bytes that Dask has sent since the start: its own counters.

    Workers count the data that they send, to each other and to the caller. `TCP.write`
    returns the bytes of every message of this process, in which scheduler and caller
    live here: graphs, and everything else.
    """

    def __init__(self, client):
        self._client = client

    def __enter__(self):
        from distributed.comm.tcp import TCP

        self._write, self.messages = TCP.write, 0
        self._before = self._sent()

        async def counted(comm, *args, **kwargs):
            sent = await self._write(comm, *args, **kwargs)
            self.messages += sent or 0
            return sent

        TCP.write = counted
        return self

    def __exit__(self, *exception):
        from distributed.comm.tcp import TCP

        TCP.write = self._write
        self.data = self._sent() - self._before

    def _sent(self):
        sent = self._client.run(
            lambda dask_worker: dask_worker.transfer_outgoing_bytes_total
        )
        return sum(sent.values())


def traffic_per_iteration(model, client, X, y, few=2, more=4):
    """Bytes of data and of messages: those of a longer fit, less a shorter one's."""
    counts = []
    for max_iter in (few, few + more):
        with Traffic(client) as traffic:
            timed_fit(clone(model).set_params(max_iter=max_iter, tol=0.0), X, y)
        counts.append([traffic.data, traffic.messages])
    return np.diff(counts, axis=0)[0] / more


def blocks_of(make, n_rows, n_blocks, shape=(), dtype=np.float64):
    """A Dask array of blocks ``make(number, start, stop)``, kept by the workers."""
    import dask.array as da

    size = -(-n_rows // n_blocks)
    parts = []
    for i, start in enumerate(range(0, n_rows, size)):
        stop = min(start + size, n_rows)
        part = make(i, start, stop)
        parts.append(da.from_delayed(part, (stop - start, *shape), dtype))
    return da.concatenate(parts).persist()


def show_cluster(title, X, y, make_blocks, n_blocks, repeats):
    """Fits by one thread, two threads and two workers, in turn."""
    import dask
    from distributed import Client, LocalCluster, wait

    size = -(-len(X) // n_blocks)
    with (
        dask.config.set(KEEP_MEMORY | QUIET),
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        Client(cluster) as client,
    ):
        X_blocks, y_blocks = make_blocks()
        wait([X_blocks, y_blocks])
        model = HalfQuadraticRobustRegressor(random_state=0, chunk_size=size)
        seconds = {"one thread": [], "two threads": [], "two workers": []}
        timed_fit(model, X_blocks, y_blocks)  # workers import the package
        for _ in range(repeats):
            for name, times in seconds.items():
                if name == "two workers":
                    times.append(timed_fit(model, X_blocks, y_blocks))
                    coef, n_iter = model.coef_, model.n_iter_
                    continue
                model.set_params(n_jobs=1 if name == "one thread" else 2)
                times.append(timed_fit(model, X, y))
        same = np.array_equal(model.coef_, coef)
        # Watching takes time, and so one more fit.
        with PeakMemory() as memory, Traffic(client) as traffic:
            timed_fit(model, X_blocks, y_blocks)
        per_iteration = traffic_per_iteration(model, client, X_blocks, y_blocks)
    one, two, workers = (min(times) for times in seconds.values())
    print(f"{title} in {n_blocks} blocks, best (and median) of {repeats} fits in turn:")
    for name, times in seconds.items():
        print(f"  {name:12} {min(times):6.2f} s ({np.median(times):.2f} s)")
    print(
        f"  two workers are {one / workers:.2f} times as fast as one thread, and take "
        f"{workers / two:.2f} times as long as two threads; coefficients equal: {same}"
    )
    print(
        f"  {n_iter} iterations, start included: {traffic.data / 1e3:.0f} kB of data "
        f"sent by workers, {traffic.messages / 1e3:.0f} kB of messages from scheduler "
        f"and caller; the caller's memory grew by {memory.peak / MB:.0f} MB"
    )
    data, messages = per_iteration
    print(
        f"  of these per iteration: {data / 1e3:.1f} kB of data, {messages / 1e3:.1f} "
        "kB of messages"
    )


def has_dask():
    try:
        import distributed  # noqa: F401
    except ImportError:
        print("dask: not installed (pip install 'dask[array,distributed]')")
        return False
    return True


def show_dask(n_rows, n_features=20, n_blocks=4, repeats=5):
    if not has_dask():
        return
    import dask

    shape, dtype = (n_features,), np.float64

    def make_blocks():
        made, aimed = dask.delayed(made_rows), dask.delayed(made_targets)
        X = blocks_of(
            lambda i, start, stop: made(i, stop - start, n_features, dtype),
            n_rows,
            n_blocks,
            shape,
        )
        parts = X.to_delayed().ravel()
        y = blocks_of(lambda i, start, stop: aimed(parts[i], i), n_rows, n_blocks)
        return X, y

    size = -(-n_rows // n_blocks)
    lengths = [min(size, n_rows - start) for start in range(0, n_rows, size)]
    X = np.concatenate(
        [made_rows(i, n, n_features, dtype) for i, n in enumerate(lengths)]
    )
    starts = np.cumsum(lengths) - lengths
    y = np.concatenate(
        [
            made_targets(X[start : start + n], i)
            for i, (start, n) in enumerate(zip(starts, lengths, strict=True))
        ]
    )
    title = f"Dask, {n_rows:,} x {n_features}"
    show_cluster(title, X, y, make_blocks, n_blocks, repeats)


def show_zarr(folder, n_rows, n_features=N_FEATURES, n_blocks=8, repeats=3):
    """Rows in a Zarr store; the local fits have them in memory."""
    try:
        import zarr
    except ImportError:
        print("zarr: not installed (pip install 'zarr>=3')")
        return
    if not has_dask():
        return
    import dask

    dtype, size = np.float32, -(-n_rows // n_blocks)
    X, y = np.empty((n_rows, n_features), dtype), np.empty(n_rows, dtype)
    for i, start in enumerate(range(0, n_rows, size)):
        rows = slice(start, min(start + size, n_rows))
        X[rows] = made_rows(i, rows.stop - start, n_features, dtype)
        y[rows] = made_targets(X[rows], i)
    paths = [str(Path(folder) / f"{name}.zarr") for name in "Xy"]
    for path, values in zip(paths, (X, y), strict=True):
        chunks = (-(-size // 4), *values.shape[1:])
        store = zarr.create_array(
            path, shape=values.shape, chunks=chunks, dtype=dtype, compressors=None
        )
        store[:] = values

    def make_blocks():
        read = dask.delayed(read_rows)
        return [
            blocks_of(
                lambda i, start, stop, path=path: read(path, start, stop),
                n_rows,
                n_blocks,
                shape,
                dtype,
            )
            for path, shape in zip(paths, ((n_features,), ()), strict=True)
        ]

    title = f"Zarr, {n_rows:,} x {n_features} float32"
    show_cluster(title, X, y, make_blocks, n_blocks, repeats)


# Cost per row
# ------------


def show_rows(folder, sizes, output):
    columns = ["rows", "estimator", "seconds", "nanoseconds_a_row"]
    table = []
    for n_rows in sizes:
        paths = write_rows(folder, n_rows)
        X, y = (np.load(path, mmap_mode="r") for path in paths)
        repeats = 1 if n_rows > 10**6 else 3
        network = ContrastiveHebbianClassifier(
            (16, 16), batch_size=None, max_iter=2, random_state=0
        )
        for model, targets in (
            (HalfQuadraticRobustRegressor(random_state=0), y),
            (network, np.asarray(y) > 0),
        ):
            seconds = min(timed_fit(model, X, targets) for _ in range(repeats))
            table.append(
                [n_rows, type(model).__name__, seconds, 1e9 * seconds / n_rows]
            )
            print("{:>10,} {:<30} {:8.3f} s {:8.0f} ns a row".format(*table[-1]))
        for path in paths:
            os.remove(path)
    with open(Path(output) / "scale_out.csv", "w", newline="") as file:
        csv.writer(file).writerows([columns, *table])
    plot(table, Path(output) / "scale_out.png")


def plot(table, path):
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for name in sorted({row[1] for row in table}):
        rows = [row for row in table if row[1] == name]
        ax.plot([r[0] for r in rows], [r[3] / 1e3 for r in rows], "o-", label=name)
    ax.set(
        xscale="log",
        yscale="log",
        xlabel="rows (50 features, float32, memory-mapped)",
        ylabel="time of a fit per row (µs)",
        title="Cost per row, one thread",
    )
    ax.grid(alpha=0.3)
    ax.legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--quick", action="store_true", help="few rows")
    parser.add_argument(
        "--parts", nargs="*", default=["memory", "cores", "dask", "zarr", "rows"]
    )
    parser.add_argument("--output", default=".", help="folder for the table and plot")
    args = parser.parse_args()
    quick = args.quick
    with tempfile.TemporaryDirectory(dir=args.output) as folder:
        if "memory" in args.parts:
            show_memory(folder, 1_000_000 if quick else 20_000_000)
            show_constant_memory(folder, 2_000 if quick else 20_000)
        if "cores" in args.parts:
            show_machine(0.2 if quick else 3.0)
            show_cores(*((100_000, 2_000) if quick else (2_000_000, 20_000)))
        if "dask" in args.parts:
            show_dask(100_000 if quick else 4_000_000, repeats=2 if quick else 5)
        if "zarr" in args.parts:
            show_zarr(folder, 100_000 if quick else 20_000_000)
        if "rows" in args.parts:
            sizes = [10**4, 10**5] if quick else [10**4, 10**5, 10**6, 10**7]
            show_rows(folder, sizes, args.output)


if __name__ == "__main__":
    main()
