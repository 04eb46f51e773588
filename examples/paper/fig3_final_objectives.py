"""Fig. 3: final robust costs of 20 bundle adjustments after 100 iterations.

The paper takes 20 instances of *Bundle Adjustment in the Large*. Here each of the
scenes at hand (made-up ones without them) is used as it is, from random restarts, and
with outliers added, in turn, until there are 20:

* a restart moves points by 2 % of the cloud's spread, rotations by 0.5 degrees and
  camera positions by 0.5 % of the spread;
* of the observations, 5, 10 or 20 % are moved by up to 100 px.

    python examples/paper/fig3_final_objectives.py [--quick] [--output FOLDER]
"""

from dataclasses import replace
from itertools import islice

from _figures import METHODS, adjust, arguments, print_row, save, scenes, write_csv

import matplotlib.pyplot as plt
import numpy as np


def restarted(problem, rng):
    """The same observations from a disturbed start."""
    spread = np.median(np.abs(problem.points - np.median(problem.points, axis=0)))
    cameras = problem.cameras.copy()
    cameras[:, :3] += np.deg2rad(0.5) * rng.normal(size=cameras[:, :3].shape)
    cameras[:, 3:6] += 0.005 * spread * rng.normal(size=cameras[:, 3:6].shape)
    moved = problem.points + 0.02 * spread * rng.normal(size=problem.points.shape)
    return replace(problem, cameras=cameras, points=moved)


def spoiled(problem, share, rng):
    """The same start, with false matches among the observations."""
    observations = problem.observations.copy()
    wrong = rng.random(len(observations)) < share
    observations[wrong] += rng.uniform(-100, 100, (np.sum(wrong), 2))
    return replace(problem, observations=observations)


def instances(found):
    """Names and problems without end: as they are, then restarts and outliers."""
    yield from found.items()
    rng = np.random.default_rng(0)
    for i in range(1, 1000):
        for name, problem in found.items():
            yield f"{name}, restart {i}", restarted(problem, rng)
        share = (0.05, 0.1, 0.2)[(i - 1) % 3]
        for name, problem in found.items():
            yield f"{name}, {share:.0%} outliers", spoiled(problem, share, rng)


def main(argv=None):
    args = arguments(__doc__, argv)
    count, iterations = (4, 20) if args.quick else (20, 100)
    rows = []
    for name, problem in islice(instances(scenes(args.quick)), count):
        row = {"instance": name}
        for criterion, label in METHODS.items():
            row[label] = float(adjust(problem, criterion, iterations).cost)
        rows.append(row)
        print_row(row)
        write_csv(args.output / "fig3.csv", rows)  # kept if interrupted

    draw(rows, args.output / "fig3.png")
    for label, values in zip(METHODS.values(), relative(rows).T, strict=True):
        print(
            f"{label:12} best in {np.sum(values == 1):2d} of {len(rows)}, "
            f"median {np.median(values):.3f}, worst {values.max():.3f} times the best"
        )


def relative(rows):
    """Final costs of the methods (columns) in multiples of the best."""
    costs = np.array([[row[label] for label in METHODS.values()] for row in rows])
    return costs / costs.min(axis=1, keepdims=True)


def draw(rows, path):
    figure, ax = plt.subplots(figsize=(9, 4.2), layout="constrained")
    across = np.arange(len(rows))
    # Side by side, or the better methods would hide each other.
    marks = zip(METHODS.values(), "ovs*", (-0.2, -0.1, 0.1, 0.25), strict=True)
    for (label, marker, shift), values in zip(marks, relative(rows).T, strict=True):
        size = 9 if marker == "*" else 5
        ax.plot(across + shift, values, marker, label=label, markersize=size)
    ax.set(ylabel="final J / best of the four", yscale="log")
    ax.set_xticks(across, [row["instance"] for row in rows], rotation=60, ha="right")
    ticks = [1, 1.1, 1.2, 1.5, 2, 3]
    ax.set_yticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.legend()
    save(figure, path)


if __name__ == "__main__":
    main()
