"""Which blocks of a Dask array share a task.

Every task costs scheduler and worker about a millisecond each, whatever it does. If the
workers of a cluster hold the blocks already, a task for each of their threads is
enough, and the number of tasks does not grow with the number of blocks.
"""

from __future__ import annotations

import inspect
from itertools import pairwise
from typing import Any

import numpy as np

# Part of the memory of a worker that its blocks may take. If there are more, it may
# have written some of them to disk, and a task would need all of its blocks at once.
_IN_MEMORY = 0.5

Groups = list[list[int]]


def delayed_blocks(array: Any) -> list[Any]:
    """The blocks of a Dask array, which is one block wide, as delayed objects.

    Those of a persisted array contain its futures.
    """
    graph = array.__dask_graph__()
    keys = np.array(array.__dask_keys__(), dtype=object).reshape(-1, array.ndim + 1)
    held = all(hasattr(graph.get(tuple(key)), "result") for key in keys)
    # Optimisation would leave out the futures, from which Dask knows where blocks are.
    return list(array.to_delayed(optimize_graph=not held).ravel())


def is_held(block: Any) -> bool:
    """Whether a worker has the value of a delayed object, or is to have it."""
    return hasattr(block.dask.get(block.key), "result")


def groups_of(blocks: list[Any], n_bytes: list[int]) -> Groups:
    """Numbers of the blocks of each task, in order.

    Parameters
    ----------
    blocks : list of Delayed
        The blocks.
    n_bytes : list of int
        Their sizes.
    """
    futures = [block.dask.get(block.key) for block in blocks]
    alone = [[i] for i in range(len(blocks))]
    if len(blocks) < 2 or not all(hasattr(future, "client") for future in futures):
        return alone
    from distributed import wait

    wait(futures)
    client = futures[0].client
    held = client.who_has(futures)
    workers = _workers(client)
    own: dict[str, list[int]] = {}
    for i, future in enumerate(futures):
        places = [place for place in held.get(future.key, ()) if place in workers]
        if not places:
            return alone
        # Of several copies, one of the worker with the fewest blocks so far.
        place = min(places, key=lambda name: (len(own.get(name, ())), name))
        own.setdefault(place, []).append(i)
    return sorted(
        group
        for name, numbers in own.items()
        for group in _split(numbers, n_bytes, workers[name])
    )


def _workers(client: Any) -> dict[str, Any]:
    """What the scheduler knows about each worker."""
    # Newer versions of Dask describe a few workers only, unless they are told not to.
    named = "n_workers" in inspect.signature(client.scheduler_info).parameters
    info = client.scheduler_info(**({"n_workers": -1} if named else {}))
    workers: dict[str, Any] = info["workers"]
    return workers


def _split(numbers: list[int], n_bytes: list[int], worker: Any) -> Groups:
    """The blocks of a worker, for each of its threads."""
    limit = worker.get("memory_limit")
    if limit and sum(n_bytes[i] for i in numbers) > _IN_MEMORY * limit:
        return [[i] for i in numbers]
    n_groups = min(len(numbers), int(worker.get("nthreads") or 1))
    ends = [len(numbers) * k // n_groups for k in range(n_groups + 1)]
    return [numbers[start:stop] for start, stop in pairwise(ends)]
