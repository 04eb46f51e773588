"""The same seed gives the same bits: with any workers, threads and global state."""

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sklearn
import threadpoolctl
from estimator_modes import MODES, assert_same, data_for, fit, results

from sklearn_mm import robust_least_squares
from sklearn_mm._rows.table import Rows
from sklearn_mm._rows.workers import (
    _release_openblas,
    blas_threads_for,
    one_blas_thread,
)
from sklearn_mm.kernels import KERNELS, _tuning_constant

# Filters of warnings belong to the process: threads cannot set and reset their own.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
each_mode = pytest.mark.parametrize("name", MODES)


@each_mode
def test_workers_and_repetition(name):
    expected = results(fit(MODES[name]))
    for n_jobs in (None, 1, 2):
        model = fit(MODES[name], n_jobs=n_jobs)
        assert_same(results(model), expected)
        assert_same(results(model), expected)  # answers leave no mark
    generator = fit(MODES[name], random_state=np.random.RandomState(0))
    assert_same(results(generator), expected)


def test_seeds_matter():
    one, other = (
        fit(MODES["ContrastiveHebbianRegressor gd"], random_state=seed)
        for seed in (0, 1)
    )
    assert not np.array_equal(one.coefs_[0], other.coefs_[0])


def global_state():
    _, keys, *rest = np.random.get_state()
    return keys.tobytes(), *rest


@pytest.mark.parametrize("random_state", [0, np.random.RandomState(0)])
@each_mode
def test_the_global_random_state_is_left_alone(name, random_state):
    before = global_state()
    model = fit(MODES[name], random_state=random_state)
    results(model)
    if hasattr(model, "activations"):
        model.activations(data_for(model)[0])
    if hasattr(model, "partial_fit") and not model.early_stopping:
        fit(MODES[name], "partial_fit")
    assert global_state() == before


def decay(x):
    t = np.arange(40) / 8
    return x[0] * np.exp(-x[1] * t) - 3.0 * np.exp(-0.7 * t) - 2.0 * (t % 1 < 0.2)


def test_robust_least_squares_is_deterministic():
    before = global_state()
    one, other = (robust_least_squares(decay, [1.0, 0.1], tau=0.2) for _ in range(2))
    assert np.array_equal(one.x, other.x)
    assert global_state() == before


def in_threads(function, arguments):
    """Results in order; all threads start at once."""
    barrier = threading.Barrier(len(arguments))

    def call(argument):
        barrier.wait(timeout=60)
        return function(argument)

    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(call, arguments))


@each_mode
def test_eight_threads_predict_with_one_model(name):
    model = fit(MODES[name])
    expected = results(model)
    for found in in_threads(lambda _: results(model), range(8)):
        assert_same(found, expected)


@pytest.mark.parametrize(
    "names",
    [
        [name for name in MODES if name.startswith("robust")][:6],
        [name for name in MODES if name.startswith("Contrastive")],
    ],
    ids=["robust", "hebbian"],
)
def test_four_threads_fit(names):
    expected = {name: results(fit(MODES[name], n_jobs=2)) for name in names}
    for first in range(0, len(names), 2):
        # Each model twice: fits of one kind side by side, with caches still empty.
        _tuning_constant.cache_clear()
        four = [names[(first + i // 2) % len(names)] for i in range(4)]
        fitted = in_threads(lambda name: fit(MODES[name], n_jobs=2), four)
        for name, model in zip(four, fitted, strict=True):
            assert_same(results(model), expected[name])


def test_four_threads_solve():
    expected = robust_least_squares(decay, [1.0, 0.1], tau=0.2).x
    starts = [[1.0, 0.1]] * 4
    solved = in_threads(lambda x0: robust_least_squares(decay, x0, tau=0.2), starts)
    for result in solved:
        assert np.array_equal(result.x, expected)


def test_tuning_constants_from_threads():
    expected = {name: KERNELS[name].tuning_constant(3) for name in KERNELS}
    _tuning_constant.cache_clear()
    found = in_threads(
        lambda _: {name: KERNELS[name].tuning_constant(3) for name in KERNELS}, range(8)
    )
    assert all(constants == expected for constants in found)


def test_workers_leave_the_filters_of_warnings_alone(monkeypatch):
    calls = []
    monkeypatch.setattr(warnings, "resetwarnings", lambda: calls.append("reset"))
    for name in ("robust regemm", "ContrastiveHebbianRegressor gd"):
        fit(MODES[name], n_jobs=2)
    assert calls == []


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_workers_have_the_configuration_of_their_caller(n_jobs):
    def seen(rows):
        return sklearn.get_config()["assume_finite"]

    rows = Rows.of(np.zeros((6, 1)), 1, n_jobs)
    for value in (True, False):
        with sklearn.config_context(assume_finite=value):
            assert list(rows.map(seen)) == [value] * 6
            assert list(rows.beside.map(seen, np.zeros(6))) == [value] * 6


def blas_threads(of_scipy=None):
    """Numbers of threads of all libraries, or of those that are SciPy's, or not."""
    return {
        library["num_threads"]
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas"
        and of_scipy in (None, "scipy.libs" in library["filepath"])
    }


@pytest.fixture
def two_blas_threads():
    """BLAS with two threads, whose number any thread may change."""
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        _release_openblas()
        if blas_threads() != {2}:
            pytest.skip("the number of BLAS threads cannot be set")
        yield


def test_one_blas_thread_while_any_thread_asks_for_it(two_blas_threads):
    def work(_):
        seen = set()
        for _ in range(20):
            with one_blas_thread(), one_blas_thread():
                seen |= blas_threads()
        return seen

    assert in_threads(work, range(4)) == [{1}] * 4
    assert blas_threads() == {2}


def test_large_products_keep_their_threads(two_blas_threads):
    if not blas_threads(of_scipy=True):
        pytest.skip("NumPy and SciPy share a library")
    with blas_threads_for(1e12):
        for _ in range(2):
            assert blas_threads(of_scipy=True) == {1}
            assert blas_threads(of_scipy=False) == {2}
            with blas_threads_for(1e3):
                assert blas_threads() == {1}
    assert blas_threads() == {2}


def test_the_last_to_leave_lifts_the_limit_of_another_thread(two_blas_threads):
    entered, left = threading.Event(), threading.Event()

    def first():
        with one_blas_thread():
            entered.wait(timeout=60)
        left.set()
        leave.wait(timeout=60)  # the thread that has set the limit lives on

    leave = threading.Event()
    thread = threading.Thread(target=first)
    thread.start()
    with one_blas_thread():
        entered.set()
        left.wait(timeout=60)
        assert blas_threads() == {1}
    assert blas_threads() == {2}
    leave.set()
    thread.join()
