"""
How many blocks can a scheduler serve?
======================================

One pass over the rows of a Dask array is a task for each block, and one for the sum of
32 of them. The scheduler is one process: it hears of every task twice, when it is sent
to a worker and when it is done. This script measures what a task costs it, on empty
blocks and a local cluster, and simulates a robust fit on many blocks and many workers
with these times.

    python examples/scheduler_load.py [--rows 1e11] [--workers 3200]
        [--microseconds 1.1] [--trips 25] [--tasks 38] [--measured-blocks 2000]

``--microseconds`` is the time of a whole fit per row on one core, ``--trips`` and
``--tasks`` are the round trips of a fit, and its tasks per block. (Trips that compute a
column as well take two tasks per block.) ``examples/scale_out.py`` measures the first,
and the tests of ``tests/rows`` count the others.
"""

import argparse
import heapq
import time
from collections import deque

import numpy as np

FAN_IN = 32  # partial sums that one task, or the caller, adds up


def nothing(X):
    return np.zeros(3)


def measure(n_blocks):
    """Seconds per task: of the caller, who makes the graph, and of all the rest."""
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    from sklearn_mm._rows.sources import lazy_rows
    from sklearn_mm._rows.table import Rows, SumOver

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        X = da.ones((n_blocks, 2), chunks=(1, -1)).persist()
        wait(X)
        rows = Rows.of(lazy_rows(X))
        rows.sum(nothing)
        n_tasks = n_blocks * (1 + 1 / FAN_IN)
        start = time.thread_time()
        rows._tasks([SumOver(nothing)])
        graph = time.thread_time() - start
        # Processor time of this process, in which the scheduler lives: what others do
        # on this machine does not count.
        start = time.process_time()
        rows.sum(nothing)
        return graph / n_tasks, (time.process_time() - start - graph) / n_tasks


def simulate(n_blocks, n_workers, task_seconds, scheduler_seconds):
    """Seconds of a pass: workers side by side, the scheduler one message at a time.

    A message is the start or the end of a task; the sum of FAN_IN tasks starts when
    these have ended, and takes no time itself. The last ones are left to the caller.
    """
    message = 0.5 * scheduler_seconds
    waiting = deque([task_seconds] * n_blocks)  # durations
    idle, running, clock, open_sums = n_workers, [], 0.0, 0
    while waiting or running:
        if waiting and idle:
            clock += message
            heapq.heappush(running, clock + waiting.popleft())
            idle -= 1
            continue
        clock = max(clock, heapq.heappop(running)) + message
        idle, open_sums = idle + 1, open_sums + 1
        if open_sums == FAN_IN and (waiting or running):
            waiting.appendleft(0.0)  # it is a partial sum in its turn
            open_sums = 0
    return clock


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--rows", type=float, default=1e11)
    parser.add_argument("--workers", type=int, default=3_200)
    parser.add_argument("--microseconds", type=float, default=1.1)
    parser.add_argument("--trips", type=int, default=25)
    parser.add_argument("--tasks", type=float, default=38)
    parser.add_argument("--measured-blocks", type=int, default=2_000)
    args = parser.parse_args()
    graph, scheduler = measure(args.measured_blocks)
    print(
        f"measured with {args.measured_blocks} blocks: {1e6 * graph:.0f} us of the "
        f"caller and {1e6 * scheduler:.0f} us of scheduler and client per task"
    )
    total = 1e-6 * args.microseconds * args.rows  # of one core
    ideal = total / args.workers
    print(f"{args.rows:.0e} rows on {args.workers} cores: arithmetic {ideal:.0f} s")
    print(
        "  blocks  rows/block  seconds/block/trip  trip, s  fit, s  workers' time used"
    )
    per_trip = args.tasks / args.trips  # tasks per block
    for n_blocks in (args.workers, 10_000, 100_000):
        seconds = total / n_blocks / args.trips
        trip = per_trip * graph * n_blocks
        trip += simulate(n_blocks, args.workers, seconds, per_trip * scheduler)
        print(
            f"{n_blocks:8d} {args.rows / n_blocks:11.1e} {seconds:19.3f} {trip:8.1f} "
            f"{args.trips * trip:7.0f} {100 * ideal / (args.trips * trip):14.0f} %"
        )


if __name__ == "__main__":
    main()
