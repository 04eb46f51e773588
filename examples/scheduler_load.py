"""
How many blocks can a scheduler serve?
======================================

One pass over the rows of a persisted Dask array is a task for each thread of the
workers, which works on all blocks that lie there, and one for the sum of 32 of them.
The scheduler is one process: it hears of every task twice, when it is sent to a worker
and when it is done, and of every block that a task needs. This script measures what
that costs, on tiny blocks and a local cluster, and simulates a robust fit on many
blocks and many workers with these times.

    python examples/scheduler_load.py [--rows 1e11] [--workers 3200]
        [--microseconds 1.2] [--trips 16] [--tasks 27] [--measured-blocks 2000]

``--microseconds`` is the time of a whole fit per row on one core, ``--trips`` and
``--tasks`` are the round trips of a fit, and its tasks per thread. (Trips that compute
a column as well take two tasks.) ``examples/scale_out.py`` measures the first, and the
tests of ``tests/rows`` count the others. Arrays that are not persisted have a task for
each block instead.
"""

import argparse
import heapq
import time
from collections import deque

import numpy as np

FAN_IN = 32  # partial sums that one task, or the caller, adds up


def nothing(X):
    return np.zeros(3)


def measure(n_blocks, sizes):
    """Seconds per task, of the caller, who makes the graph, and of all the rest.

    One pair for each number of blocks per task.
    """
    import dask.array as da
    from distributed import Client, LocalCluster, wait

    from sklearn_mm._rows.block_tasks import sum_blocks
    from sklearn_mm._rows.blocks import BlockRows
    from sklearn_mm._rows.groups import delayed_blocks
    from sklearn_mm._rows.sources import lazy_rows
    from sklearn_mm._rows.table import SumOver

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        Client(cluster),
    ):
        X = lazy_rows(da.ones((n_blocks, 2), chunks=(1, -1)).persist())
        wait(X.array)
        blocks, seconds = delayed_blocks(X.array), []
        for size in sizes:
            starts = range(0, n_blocks, size)
            groups = [[*range(i, min(i + size, n_blocks))] for i in starts]
            rows = BlockRows(X, blocks, groups)
            rows.sum(nothing)
            n_tasks = len(groups) * (1 + 1 / FAN_IN)
            start = time.thread_time()
            rows._tasks(sum_blocks, [SumOver(nothing)])
            graph = time.thread_time() - start
            # Processor time of this process, in which the scheduler lives: what others
            # do on this machine does not count.
            start = time.process_time()
            rows.sum(nothing)
            rest = time.process_time() - start - graph
            seconds.append((graph / n_tasks, rest / n_tasks))
        return np.array(seconds)


def simulate(n_tasks, n_workers, task_seconds, scheduler_seconds):
    """Seconds of a pass: workers side by side, the scheduler one message at a time.

    A message is the start or the end of a task; the sum of FAN_IN tasks starts when
    these have ended, and takes no time itself. The last ones are left to the caller.
    """
    message = 0.5 * scheduler_seconds
    waiting = deque([task_seconds] * n_tasks)  # durations
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
    parser.add_argument("--microseconds", type=float, default=1.2)
    parser.add_argument("--trips", type=int, default=16)
    parser.add_argument("--tasks", type=float, default=27)
    parser.add_argument("--measured-blocks", type=int, default=2_000)
    args = parser.parse_args()
    one, many = measure(args.measured_blocks, (1, FAN_IN))
    more = (many - one) / (FAN_IN - 1)  # for each further block of a task
    print(
        f"measured with {args.measured_blocks} blocks: {1e6 * one[0]:.0f} us of the "
        f"caller and {1e6 * one[1]:.0f} us of scheduler and client per task, "
        f"{1e6 * more[0]:.0f} and {1e6 * more[1]:.0f} us for each further block of it"
    )
    total = 1e-6 * args.microseconds * args.rows  # of one core
    ideal = total / args.workers
    print(f"{args.rows:.0e} rows on {args.workers} cores: arithmetic {ideal:.0f} s")
    print(
        "  blocks    tasks  rows/block  seconds/task/trip  trip, s  fit, s  "
        "workers' time used"
    )
    per_trip = args.tasks / args.trips
    for n_blocks, shared in (
        (args.workers, True),
        (10_000, True),
        (100_000, True),
        (10_000, False),
        (100_000, False),
    ):
        n_tasks = min(n_blocks, args.workers) if shared else n_blocks
        graph, scheduler = one + (n_blocks / n_tasks - 1) * more
        seconds = total / n_tasks / args.trips
        trip = per_trip * graph * n_tasks
        trip += simulate(n_tasks, args.workers, seconds, per_trip * scheduler)
        print(
            f"{n_blocks:8d} {n_tasks:8d} {args.rows / n_blocks:11.1e} {seconds:18.3f} "
            f"{trip:8.1f} {args.trips * trip:7.0f} "
            f"{100 * ideal / (args.trips * trip):14.0f} %"
        )


if __name__ == "__main__":
    main()
