"""
How many blocks can a scheduler serve?
======================================

One pass over the rows of a Dask array is a task for each block and a tree of sums. The
scheduler is one process: it hears of every task twice, when it is sent to a worker and
when it is done. This script measures what a task costs it, on empty blocks and a local
cluster, and simulates a pass over many blocks on many workers with these times.

    python examples/scheduler_load.py [--blocks 100000] [--workers 3200]
        [--task-seconds 1.0] [--measured-blocks 2000]
"""

import argparse
import heapq
import time
from collections import deque

import numpy as np

FAN_IN = 32  # partial sums that one task adds up


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
    these have ended, and takes no time itself.
    """
    message = 0.5 * scheduler_seconds
    waiting = deque([task_seconds] * n_blocks)  # durations
    idle, running, clock, open_sums, ended = n_workers, [], 0.0, 0, 0
    while waiting or running:
        if waiting and idle:
            clock += message
            heapq.heappush(running, clock + waiting.popleft())
            idle -= 1
            continue
        clock = max(clock, heapq.heappop(running)) + message
        idle, ended = idle + 1, ended + 1
        open_sums += 1
        if open_sums == FAN_IN or (open_sums > 1 and not (waiting or running)):
            waiting.appendleft(0.0)  # it is a partial sum in its turn
            open_sums = 0
    return clock


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("--blocks", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=3_200)
    parser.add_argument("--task-seconds", type=float, default=1.0)
    parser.add_argument("--measured-blocks", type=int, default=2_000)
    args = parser.parse_args()
    graph, scheduler = measure(args.measured_blocks)
    print(
        f"measured with {args.measured_blocks} blocks: {1e6 * graph:.0f} us of the "
        f"caller and {1e6 * scheduler:.0f} us of scheduler and client per task"
    )
    print(" blocks  seconds/block  ideal pass  simulated pass  of the workers' time")
    total = args.blocks * args.task_seconds
    for n_blocks in (args.blocks // 100, args.blocks // 10, args.blocks):
        seconds = total / n_blocks
        rounds = -(-n_blocks // args.workers)
        cost = graph * n_blocks + simulate(n_blocks, args.workers, seconds, scheduler)
        print(
            f"{n_blocks:7d} {seconds:14.2f} {rounds * seconds:11.1f} {cost:15.1f} "
            f"{100 * total / args.workers / cost:18.0f} %"
        )


if __name__ == "__main__":
    main()
