"""Fig. 2: robust cost against iterations of bundle adjustment.

The paper shows two instances of *Bundle Adjustment in the Large*, Dubrovnik-356 and
Venice-427; here are the scenes at hand, or made-up ones. ReGeMM starts with all weights
one, the kernel is the smooth truncated quadratic with tau = 1 px, intrinsics are fixed.

    python examples/paper/fig2_bundle_iterations.py [--quick] [--output FOLDER]
"""

from _figures import METHODS, adjust, arguments, print_row, save, scenes, write_csv

import matplotlib.pyplot as plt


def main(argv=None):
    args = arguments(__doc__, argv)
    iterations = 20 if args.quick else 100
    found = scenes(args.quick)
    figure, axes = plt.subplots(
        1, len(found), figsize=(4.5 * len(found), 3.6), layout="constrained"
    )
    rows = []
    for ax, (name, problem) in zip(axes, found.items(), strict=True):
        for criterion, label in METHODS.items():
            result = adjust(problem, criterion, iterations)
            costs = [*result.history.lower_bound, result.cost]
            rows += [
                {"scene": name, "method": label, "iteration": i, "J": float(cost)}
                for i, cost in enumerate(costs)
            ]
            print_row(
                {
                    "scene": name,
                    "method": label,
                    "after 20": float(costs[min(20, len(costs) - 1)]),
                    "final": float(costs[-1]),
                    "ms": 1e3 * float(result.history.time[-1]) / result.nit,
                }
            )
            ax.plot(costs, label=label)
        ax.set(title=name, xlabel="iteration", ylabel="robust cost J", yscale="log")
        ax.legend()
    write_csv(args.output / "fig2.csv", rows)
    save(figure, args.output / "fig2.png")


if __name__ == "__main__":
    main()
