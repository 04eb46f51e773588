"""
========================
Robust bundle adjustment
========================

Refine camera poses and 3D points from image observations, some of which are wrong::

    python examples/bundle_adjustment.py FILE [--method regemm] [--tau 1.0]
        [--iterations 100] [--compare] [--plot out.png] [--json out.json]
        [--output refined.txt]

FILE is in the format of Bundle Adjustment in the Large (BAL), plain or .bz2. Without it
a synthetic scene is made. Observations of points behind their camera are dropped, with
a warning that counts them. `--compare` runs all methods; `--plot` draws the robust cost
over the iterations, the refined scene with its cameras and with what was rejected, and
the errors before and after.

Robust cost J after 100 iterations of the three BAL scenes that the tests know, metric
(intrinsics fixed), smooth truncated quadratic kernel::

    python examples/bundle_adjustment.py FILE --compare --quiet --tau TAU

=============  ===  =======  ========  =========  =======  ============  =======
scene          tau     IRLS  joint HQ  graduated   SuDeMM  ReGeMM (1/2)   ReGeMM
=============  ===  =======  ========  =========  =======  ============  =======
Ladybug-49     1     4117.0    2190.3     2079.4   3542.3        2098.3   2073.0
Ladybug-49     0.5   1362.2     890.2      834.1   1300.3         832.8    822.2
Trafalgar-21   1     6151.1    4674.4     4482.8   5691.6        4534.0   4441.7
Trafalgar-21   0.5   1816.4    1409.5     1288.7   1762.4        1326.2   1298.4
Dubrovnik-16   1    16136.6   12765.9    12272.3  15433.8       12374.6  12175.3
Dubrovnik-16   0.5   4716.9    3661.7     3405.4   4570.7        3456.0   3372.9
=============  ===  =======  ========  =========  =======  ============  =======

The last column is the default of `robust_least_squares`, eta = 0.15; the one before has
the paper's constants (``--method paper``), which tighten weights faster and end higher
(Ladybug-49, tau 1, after 20 iterations: 2137 instead of 2395, where the graduated
scheme is at 3028). The default was chosen among 0.05, 0.1, 0.15, 0.2 and 0.25 on these
scenes and on small curve fits; 0.1 and 0.2 end within 1.5 % of it everywhere. A
graduated scheme with 4 instead of 8 rounds per level (``criteria.Graduated()``) ends at
2084.8, 838.1, 4488.7, 1301.1, 12389.9 and 3435.5. About two in five steps of the joint
scheme are rejected; other dampings, and damping relative to the system before the
elimination, did not help.

Scenes that chose nothing, ``--seed 1`` to 5 and ``--outliers`` 0.15 to 0.6 of the
synthetic scene: ReGeMM ends at 0.993 to 1.010 times the better graduated scheme in the
mean over seeds, 1.012 at worst (tau 1, 60 % outliers); the paper's constants at 0.998
to 1.008; IRLS at 1.3 to 2.1.

With ``--pixel-distortion`` Trafalgar-21 at tau 1 starts at 6078.2 and ends at 3425.5
(ReGeMM) and 3475.1 (1/2); the graduated scheme ends at 3441.6.
"""

from __future__ import annotations

import argparse
import json

import bal
import numpy as np
from scipy.spatial.transform import Rotation

from sklearn_mm import criteria

METHODS = {
    "irls": "IRLS",
    "joint": "joint HQ",
    "graduated": "graduated",
    "sudemm": "SuDeMM",
    "paper": "ReGeMM (1/2)",
    "regemm": "ReGeMM",
}
CRITERIA = {"irls": criteria.Fixed(), "paper": criteria.RelaxedGeneralized()}


def refine(model, method, args):
    """Adjust the scene by a method; the result of `robust_least_squares`."""
    return model.solve(
        tau=args.tau,
        criterion=CRITERIA.get(method, method),
        eta=args.eta,
        eta_prime=args.eta_prime,
        max_nfev=args.iterations + 1,
        ftol=args.ftol,
        xtol=args.ftol,
        gtol=None,
        verbose=0 if args.quiet else 2,
    )


def record(method, result):
    """A row of the table."""
    return {
        "method": method,
        "final": result.cost,
        "costs": [*result.history.lower_bound.tolist(), result.cost],
        "seconds_per_iteration": result.history.time[-1] / result.nit,
    }


def print_table(rows):
    """Start, cost after 20 iterations, end, and time of each method."""
    print(
        f"{'method':12} {'start':>12} {'J after 20':>12} {'final J':>12} {'ms/it':>8}"
    )
    for row in rows:
        costs = row["costs"]
        print(
            f"{METHODS[row['method']]:12} {costs[0]:12.1f} "
            f"{costs[min(20, len(costs) - 1)]:12.1f} {row['final']:12.1f} "
            f"{1e3 * row['seconds_per_iteration']:8.1f}"
        )


def plot(path, rows, before, after, tau):
    """Cost over iterations, the scene from above, and errors before and after."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 4.4), layout="constrained")
    left, middle, right = axes
    for row in rows:
        left.plot(row["costs"], label=METHODS[row["method"]])
    left.set(xlabel="iteration", ylabel="robust cost J", yscale="log")
    left.set_title(f"Robust cost, τ = {tau:g} px")
    low, high = left.get_ylim()
    left.set_ylim(top=high * (high / low) ** 0.4)  # room for the legend
    left.legend(ncols=2, fontsize="small", loc="upper right")
    errors = [reprojection_errors(scene) for scene in (before, after)]
    rejected = errors[1] > tau
    plot_from_above(middle, after, rejected)
    bins = np.geomspace(1e-2, 1e2, 80)
    right.hist(errors[0], bins, label="before", histtype="step", color="0.3")
    right.hist(errors[1], bins, label="after", alpha=0.6)
    right.axvline(tau, color="C3", linestyle="--", label=f"τ = {tau:g} px")
    right.set(xscale="log", xlabel="reprojection error (px)", ylabel="observations")
    right.set_title(f"{rejected.mean():.0%} of the observations rejected")
    right.legend()
    figure.savefig(path, dpi=75)
    plt.close(figure)


def reprojection_errors(problem):
    """Distance of each observation from its point's image, in pixels."""
    model = bal.Reprojection(problem)
    return np.hypot(*model.fun(model.x0).reshape(-1, 2).T)


def plot_from_above(ax, problem, rejected):
    """Points and cameras on the plane in which the scene extends most."""
    # Points by the share of their observations that was rejected.
    seen = np.bincount(problem.point_index, minlength=len(problem.points))
    lost = np.bincount(problem.point_index, rejected, minlength=len(problem.points))
    share = lost / np.maximum(seen, 1)
    # In BAL a camera at R, t sees R X + t, from its centre -R't, along -R'e_z.
    turn = Rotation.from_rotvec(problem.cameras[:, :3]).inv()
    centres = turn.apply(-problem.cameras[:, 3:6])
    views = turn.apply([0.0, 0.0, -1.0])
    # Windows that far points do not decide.
    middle = np.median(problem.points, axis=0)
    far = np.percentile(np.abs(problem.points - middle), 90, axis=0)
    near = (np.abs(problem.points - middle) <= 3 * far).all(axis=1)
    _, _, directions = np.linalg.svd(problem.points[near] - middle, full_matrices=False)
    flat, where, look = (
        array @ directions[:2].T
        for array in (problem.points - middle, centres - middle, views)
    )
    order = np.flatnonzero(near)[np.argsort(share[near])]  # the worst on top
    dots = ax.scatter(*flat[order].T, c=share[order], s=2, cmap="coolwarm", vmax=1)
    ax.figure.colorbar(dots, ax=ax, label="share of rejected observations")
    size = 0.06 * np.ptp(flat[near], axis=0).max()
    style = {"angles": "xy", "scale_units": "xy", "scale": 1, "width": 0.003}
    ax.quiver(*where.T, *(size * look).T, color="0.3", **style)
    ax.plot(*where.T, "k.", markersize=3, label="cameras")
    ax.set(title="Points and cameras, refined", xticks=[], yticks=[], aspect="equal")
    # Below the axes, where it hides neither points nor cameras.
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), frameon=False)


def parse(argv):
    """Command line."""
    parser = argparse.ArgumentParser(description="Robust bundle adjustment.")
    parser.add_argument("file", nargs="?", help="BAL file; a synthetic scene if absent")
    parser.add_argument("--seed", type=int, default=0, help="of the synthetic scene")
    parser.add_argument(
        "--outliers", type=float, default=0.15, help="their share there"
    )
    parser.add_argument("--method", choices=sorted(METHODS), default="regemm")
    parser.add_argument("--compare", action="store_true", help="run all methods")
    parser.add_argument("--tau", type=float, default=1.0, help="kernel width in pixels")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--eta", type=float, default=0.15)
    parser.add_argument("--eta-prime", type=float)
    parser.add_argument("--ftol", type=float, default=0.0, help="stop early")
    parser.add_argument("--free-intrinsics", action="store_true")
    parser.add_argument(
        "--pixel-distortion",
        action="store_true",
        help="take k1 and k2 to apply in pixels, as some published codes do",
    )
    parser.add_argument("--plot", metavar="PNG")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--output", metavar="FILE", help="refined problem, BAL format")
    parser.add_argument("--quiet", action="store_true", help="no line per iteration")
    return parser.parse_args(argv)


def main(argv=None):
    """Read or make a scene, adjust it, report."""
    args = parse(argv)
    try:
        problem = (
            bal.read_bal(args.file)
            if args.file
            else bal.synthetic_scene(outliers=args.outliers, random_state=args.seed)
        )
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from None
    if args.pixel_distortion:
        problem = bal.with_pixel_distortion(problem)
    start = bal.Reprojection(problem)
    print(
        "{} cameras, {} points, {} observations; ".format(*problem.sizes)
        + f"least-squares cost {0.5 * np.sum(start.fun(start.x0) ** 2):.6g}"
    )
    problem = bal.drop_behind(problem)
    model = bal.Reprojection(problem, args.free_intrinsics)
    rows = []
    for method in METHODS if args.compare else [args.method]:
        if not args.quiet:
            print(f"\n{METHODS[method]}")
        result = refine(model, method, args)
        rows.append(record(method, result))
        if method == args.method:
            refined = model.refined(result.x)
    print()
    print_table(rows)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    if args.output:
        bal.write_bal(args.output, refined)
    if args.plot:
        plot(args.plot, rows, problem, refined, args.tau)
    return rows


if __name__ == "__main__":
    main()
