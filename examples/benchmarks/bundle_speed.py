"""
Time of robust bundle adjustment compared with IRLS, Ceres and scipy, in one run.

    python examples/benchmarks/bundle_speed.py FILE [--repeats 3] [--iterations 30]
        [--scipy MAX_NFEV] [--large] [--quick]

Set OPENBLAS_NUM_THREADS=1 to compare with one thread. Ceres takes part if pyceres and
pycolmap (3.13) can be imported: same residuals, fixed intrinsics, its DENSE_SCHUR and
SPARSE_SCHUR. Runs take turns, and medians over the repeats are compared. Times are CPU
times, which other work on the machine disturbs less.

On the large scene (--large --repeats 1 --iterations 5: 356 cameras, 227,000 points,
1,135,000 observations; one thread, set-up included, a busy machine), Cauchy's kernel:
IRLS 1.49 and ReGeMM 1.76 s per iteration, Ceres 5.53 (DENSE_SCHUR) and 8.92
(SPARSE_SCHUR); IRLS and Ceres end at the same cost. Peak memory before Ceres 1.1 GB.
"""

from __future__ import annotations

import argparse
import platform
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import scipy
from scipy.optimize import least_squares
from scipy.spatial.transform import Rotation

sys.path.insert(0, str(Path(__file__).parents[1]))

import bal


def ours(model, criterion, kernel, iterations):
    """Seconds per iteration, set-up included, and cost."""
    start = time.process_time()
    result = model.solve(
        kernel=kernel,
        criterion=criterion,
        max_nfev=iterations + 1,
        ftol=0,
        xtol=0,
        gtol=None,
    )
    return (time.process_time() - start) / result.nit, result.cost


def ceres(problem, solver, iterations):
    """Seconds per step of Ceres with Cauchy's loss, and cost.

    COLMAP's camera looks along +z, so that scene and image are turned about the x axis.
    """
    import pyceres
    from pycolmap import CameraModelId
    from pycolmap.cost_functions import ReprojErrorCost

    flip = Rotation.from_euler("x", np.pi)
    turned = flip * Rotation.from_rotvec(problem.cameras[:, :3])
    # Ceres works in place: every block needs memory of its own.
    quaternions = [q.copy() for q in turned.as_quat()]
    translations = [t.copy() for t in flip.apply(problem.cameras[:, 3:6])]
    intrinsics = [np.array([f, 0, 0, k1, k2]) for f, k1, k2 in problem.cameras[:, 6:]]
    points = [x.copy() for x in problem.points]
    graph, loss = pyceres.Problem(), pyceres.CauchyLoss(1.0)
    for camera, point, xy in zip(
        problem.camera_index,
        problem.point_index,
        problem.observations * [1, -1],
        strict=True,
    ):
        blocks = quaternions, translations, None, intrinsics
        blocks = [points[point] if b is None else b[camera] for b in blocks]
        cost = ReprojErrorCost(CameraModelId.RADIAL, xy)
        graph.add_residual_block(cost, loss, blocks)
    for camera in np.unique(problem.camera_index):
        manifold = pyceres.EigenQuaternionManifold()
        graph.set_manifold(quaternions[camera], manifold)
        graph.set_parameter_block_constant(intrinsics[camera])
    options = pyceres.SolverOptions()
    options.linear_solver_type = getattr(pyceres.LinearSolverType, solver)
    options.max_num_iterations = iterations
    options.num_threads = 1
    options.function_tolerance = options.gradient_tolerance = 0
    options.parameter_tolerance = 0
    summary = pyceres.SolverSummary()
    start = time.process_time()
    pyceres.solve(options, graph, summary)
    elapsed = time.process_time() - start
    steps = summary.num_successful_steps + summary.num_unsuccessful_steps - 1
    return elapsed / steps, summary.final_cost


def additive_jacobian(model, x):
    """Sparse Jacobian in rotation vectors that are added to, as scipy needs it.

    exp(w + d) = exp(L(w) d) exp(w) to first order, with the left Jacobian L of SO(3).
    """
    A, B = model.jac(x)
    w = model.split(x)[0][:, :3]
    angle = np.linalg.norm(w, axis=1)[:, None, None]
    zero = np.zeros(len(w))
    rows = [[zero, -w[:, 2], w[:, 1]], [w[:, 2], zero, -w[:, 0]]]
    K = np.array([*rows, [-w[:, 1], w[:, 0], zero]]).transpose(2, 0, 1)
    safe = np.maximum(angle, 1e-4)
    left = np.eye(3) + (1 - np.cos(safe)) / safe**2 * K
    left += (safe - np.sin(safe)) / safe**3 * (K @ K)
    A = A.copy()
    A[:, :, :3] = A[:, :, :3] @ left[model.structure.first]
    return model.structure.to_sparse(A, B)


def compare_scipy(model, max_nfev):
    """Time of plain least squares to the cost that scipy reaches."""

    start = time.process_time()
    theirs = least_squares(
        model.fun,
        model.x0,
        lambda x: additive_jacobian(model, x),
        x_scale="jac",
        max_nfev=max_nfev,
        tr_solver="lsmr",
    )
    their_time = time.process_time() - start
    reached = []

    def callback(intermediate_result):
        reached.append(time.process_time())
        if intermediate_result.cost <= theirs.cost:
            raise StopIteration

    start = time.process_time()
    model.solve(
        kernel="quadratic",
        criterion="fixed",
        callback=callback,
    )
    return their_time, reached[-1] - start, theirs.cost, theirs.nfev, len(reached)


def peak_memory():
    """Largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(argv=None):
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[1])
    parser.add_argument("file", nargs="?", help="BAL file; synthetic scene if absent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--scipy", type=int, metavar="MAX_NFEV", default=0)
    parser.add_argument(
        "--large",
        action="store_true",
        help="a synthetic scene of 1.1 million",
    )
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args(argv)
    if args.quick:
        args.repeats, args.iterations = 1, 5
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, SciPy "
        f"{scipy.__version__}, {platform.processor() or platform.machine()}"
    )
    if args.file:
        problem = bal.read_bal(args.file)
    else:
        problem = bal.large_scene() if args.large else bal.synthetic_scene()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = bal.drop_behind(problem)
    model = bal.Reprojection(problem)
    runs = {
        f"{name}, {kernel}": (lambda c=c, k=kernel: ours(model, c, k, args.iterations))
        for kernel in ("smooth_truncated_quadratic", "cauchy")
        for name, c in (("IRLS", "fixed"), ("ReGeMM", "regemm"))
    }
    try:
        import pyceres  # noqa: F401
    except ImportError:
        print("pyceres is not installed: no comparison with Ceres")
    else:
        for solver in ("DENSE_SCHUR", "SPARSE_SCHUR"):
            runs[f"Ceres {solver}, cauchy"] = lambda s=solver: ceres(
                problem, s, args.iterations
            )
    times = {name: [] for name in runs}
    costs, memory = {}, None
    for _ in range(args.repeats):
        for name, run in runs.items():
            if memory is None and name.startswith("Ceres"):
                memory = peak_memory()
            seconds, costs[name] = run()
            times[name].append(seconds)
    for name, seconds in times.items():
        print(
            f"{name:36} {1e3 * np.median(seconds):8.1f} ms/it   J {costs[name]:12.2f}"
        )
    print(f"peak memory before Ceres: {memory or peak_memory():.0f} MB")
    if args.scipy:
        theirs, mine, cost, nfev, nit = compare_scipy(model, args.scipy)
        print(
            f"scipy least_squares: {theirs:.1f} s ({nfev} evaluations) to {cost:.6g}; "
            f"robust_least_squares: {mine:.2f} s ({nit} iterations), "
            f"{theirs / mine:.0f} times faster"
        )


if __name__ == "__main__":
    main()
