"""Bundle Adjustment in the Large: files, the camera, and synthetic scenes.

The BAL camera maps a point X to the image by ::

    P = R X + t,   p = -P[:2] / P[2],   f * (1 + k1 |p|**2 + k2 |p|**4) * p

It looks down the negative z axis: points in front of it have P[2] < 0. The file format
is described at https://grail.cs.washington.edu/projects/bal.

Arrays over observations are kept component by component (observations last), which is
how NumPy is fastest on many small vectors; `jac` hands them over as transposed views.
"""

from __future__ import annotations

import bz2
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.spatial.transform import Rotation

from sklearn_mm import BlockStructure, robust_least_squares

POSE, INTRINSICS = 6, 3  # parameters of a camera


@dataclass(frozen=True)
class BundleProblem:
    """Cameras (rotation vector, translation, f, k1, k2), points, observations."""

    camera_index: np.ndarray
    point_index: np.ndarray
    observations: np.ndarray  # (n_observations, 2), pixels from the image centre
    cameras: np.ndarray  # (n_cameras, 9)
    points: np.ndarray  # (n_points, 3)

    def __post_init__(self):
        _check(self)

    @property
    def sizes(self):
        """Numbers of cameras, points and observations."""
        return len(self.cameras), len(self.points), len(self.observations)


def _check(problem):
    n_cameras, n_points, n_observations = problem.sizes
    if n_observations == 0:
        raise ValueError("The problem has no observations.")
    for name, index, size in (
        ("camera", problem.camera_index, n_cameras),
        ("point", problem.point_index, n_points),
    ):
        bad = (index < 0) | (index >= size)
        if bad.any():
            raise ValueError(
                f"Observation {np.argmax(bad)} refers to {name} "
                f"{index[np.argmax(bad)]}, but there are {size} of them."
            )
    for name in ("observations", "cameras", "points"):
        if not np.isfinite(getattr(problem, name)).all():
            raise ValueError(f"The {name} contain NaN or infinity.")


def read_bal(path):
    """Read a BAL file, plain or compressed by bzip2.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    problem : BundleProblem
        Its content. A file that is cut short, too long, or inconsistent raises a
        ValueError that says where.
    """
    path = Path(path)
    raw = path.read_bytes()
    if path.suffix == ".bz2":
        try:
            raw = bz2.decompress(raw)
        except (OSError, ValueError) as error:
            raise ValueError(f"{path} is not a complete bzip2 file: {error}.") from None
    try:
        numbers = np.array(raw.split(), dtype=float)
    except ValueError as error:
        raise ValueError(f"{path} is not a BAL file: {error}.") from None
    counts = numbers[:3]
    if len(counts) < 3 or not (np.isfinite(counts) & (counts >= 0)).all():
        raise ValueError(
            f"{path} must begin with the numbers of cameras, points and observations, "
            f"got {counts.tolist()}."
        )
    n_cameras, n_points, n_observations = counts.astype(int)
    expected = 3 + 4 * n_observations + 9 * n_cameras + 3 * n_points
    if len(numbers) != expected:
        raise ValueError(
            f"{path} promises {n_cameras} cameras, {n_points} points and "
            f"{n_observations} observations, i.e. {expected} numbers, but holds "
            f"{len(numbers)}."
        )
    table, cameras, points = np.split(
        numbers[3:], [4 * n_observations, 4 * n_observations + 9 * n_cameras]
    )
    table = table.reshape(-1, 4)
    if not np.isfinite(table).all() or (table[:, :2] % 1).any():
        raise ValueError(f"{path}: indices must be integers, observations finite.")
    return BundleProblem(
        table[:, 0].astype(np.intp),
        table[:, 1].astype(np.intp),
        np.ascontiguousarray(table[:, 2:]),
        cameras.reshape(-1, 9),
        points.reshape(-1, 3),
    )


def write_bal(path, problem):
    """Write a problem in BAL format, compressed if the name ends in .bz2."""
    lines = ["{} {} {}".format(*problem.sizes)]
    rows = zip(
        problem.camera_index, problem.point_index, problem.observations, strict=True
    )
    lines += [f"{c} {p} {xy[0]:.17g} {xy[1]:.17g}" for c, p, xy in rows]
    lines += [f"{value:.17g}" for value in problem.cameras.ravel()]
    lines += [f"{value:.17g}" for value in problem.points.ravel()]
    raw = ("\n".join(lines) + "\n").encode()
    path = Path(path)
    path.write_bytes(bz2.compress(raw) if path.suffix == ".bz2" else raw)


def with_pixel_distortion(problem):
    """Read k1 and k2 as if they applied to p in pixels: k1 f**2 and k2 f**4.

    Not the BAL convention, but that of several published robust bundle adjustment
    codes, whose costs can only be compared under it.
    """
    cameras = problem.cameras.copy()
    focal = cameras[:, 6]
    cameras[:, 7] *= focal**2
    cameras[:, 8] *= focal**4
    return replace(problem, cameras=cameras)


def drop_behind(problem):
    """Drop observations of points that lie behind their camera, and say how many.

    Points that are left with a single observation stay (their depth is undetermined and
    moves little under damping), but are counted in a warning too.
    """
    depth = Reprojection(problem).depth()
    front = depth < 0
    if not front.all():
        warnings.warn(
            f"Dropped {np.sum(~front)} of {len(front)} observations: their points lie "
            "behind the camera.",
            stacklevel=2,
        )
        problem = replace(
            problem,
            camera_index=problem.camera_index[front],
            point_index=problem.point_index[front],
            observations=problem.observations[front],
        )
    degree = np.bincount(problem.point_index, minlength=len(problem.points))
    if np.any(degree == 1):
        warnings.warn(
            f"{np.sum(degree == 1)} of {len(degree)} points are seen by one camera "
            "only, so that their depth cannot be determined.",
            stacklevel=2,
        )
    return problem


class Reprojection:
    """Residuals f(P) - m of a bundle problem, their Jacobian, and pose updates.

    Parameters
    ----------
    problem : BundleProblem
        The scene.
    free_intrinsics : bool, default=False
        Whether f, k1 and k2 of every camera are adjusted as well.

    Attributes
    ----------
    x0 : ndarray
        The problem's cameras (6 or 9 parameters each) and points, in one vector.
    structure : BlockStructure
        What `sklearn_mm.robust_least_squares` needs to know about them.
    """

    def __init__(self, problem, free_intrinsics=False):
        self.problem = problem
        self.camera_dim = POSE + (INTRINSICS if free_intrinsics else 0)
        self.structure = BlockStructure(
            problem.camera_index,
            problem.point_index,
            first_dim=self.camera_dim,
            second_dim=3,
            n_first=len(problem.cameras),
            n_second=len(problem.points),
        )
        self.x0 = np.concatenate(
            [problem.cameras[:, : self.camera_dim].ravel(), problem.points.ravel()]
        )
        self._measured = np.ascontiguousarray(problem.observations.T)
        self._seen = None, None  # the latest x, and its projection

    def solve(self, **kwargs):
        """Result of `robust_least_squares` with these keywords, from the start x0."""
        return robust_least_squares(
            self.fun,
            self.x0,
            self.jac,
            residual_dim=2,
            structure=self.structure,
            retract=self.retract,
            **kwargs,
        )

    def split(self, x):
        """Cameras with all nine parameters, and points."""
        n_cameras = len(self.problem.cameras)
        cameras, points = np.split(x, [n_cameras * self.camera_dim])
        cameras = cameras.reshape(n_cameras, -1)
        rest = self.problem.cameras[:, self.camera_dim :]
        return np.hstack([cameras, rest]), points.reshape(-1, 3)

    def refined(self, x):
        """The bundle problem with the parameters x."""
        cameras, points = self.split(x)
        return replace(self.problem, cameras=cameras, points=points)

    def depth(self, x=None):
        """P[2] of every observation; negative in front of the camera."""
        return self._project(self.x0 if x is None else x).depth

    def fun(self, x):
        """Residuals, two per observation."""
        view = self._project(x)
        return (view.focal * view.distortion * view.p - self._measured).T.ravel()

    def jac(self, x):
        """Block Jacobians in cameras and points: (n, 2, 6 or 9) and (n, 2, 3)."""
        view = self._project(x)
        self._seen = None, None  # nothing else is asked for at this x
        p, n = view.p, view.squared
        # Q = dr/dP: the distorted projection by p, times dp/dP = -(I, p) / P_z.
        slope = view.focal * (2.0 * view.k1 + 4.0 * view.k2 * n)
        M = slope * p[:, None] * p
        M[0, 0] += view.focal * view.distortion
        M[1, 1] += view.focal * view.distortion
        M /= -view.depth
        A = np.empty((2, self.camera_dim, len(n)))
        A[:, 3:5] = M
        A[:, 5] = M[:, 0] * p[0] + M[:, 1] * p[1]
        Q = A[:, 3:6]
        # R <- exp(d) R moves q = R X by d x q, and Q (d x q) = d . (q x Q).
        q = view.q
        for k in range(3):
            i, j = (k + 1) % 3, (k + 2) % 3
            np.multiply(q[i], Q[:, j], out=A[:, k])
            A[:, k] -= q[j] * Q[:, i]
        if self.camera_dim > POSE:
            A[:, 6] = view.distortion * p
            A[:, 7] = view.focal * n * p
            A[:, 8] = n * A[:, 7]
        B = np.empty((2, 3, len(n)))
        for k in range(3):
            np.multiply(Q[:, 0], view.R(0, k), out=B[:, k])
            B[:, k] += Q[:, 1] * view.R(1, k)
            B[:, k] += Q[:, 2] * view.R(2, k)
        return A.transpose(2, 0, 1), B.transpose(2, 0, 1)

    def retract(self, x, delta):
        """Add delta, but turn rotations by exp(delta) from the left."""
        new = x + delta
        n_cameras = len(self.problem.cameras)
        end = n_cameras * self.camera_dim
        old = x[:end].reshape(n_cameras, -1)[:, :3]
        turn = delta[:end].reshape(n_cameras, -1)[:, :3]
        turned = Rotation.from_rotvec(turn) * Rotation.from_rotvec(old)
        new[:end].reshape(n_cameras, -1)[:, :3] = turned.as_rotvec()
        return new

    def _project(self, x):
        seen, view = self._seen
        if seen is not x:
            self._seen = view = None, None  # not both in memory at the same time
            view = _View(self, x)
            self._seen = x, view
        return view


class _View:
    """What residuals and Jacobian share at one x; arrays end in observations."""

    def __init__(self, model, x):
        cameras, points = model.split(x)
        camera, point = model.problem.camera_index, model.problem.point_index
        rotation = Rotation.from_rotvec(cameras[:, :3]).as_matrix()
        per_camera = np.concatenate(
            [rotation.reshape(-1, 9), cameras[:, 3:]], axis=1
        ).T.copy()
        self._rotation, self._camera = per_camera[:9].reshape(3, 3, -1), camera
        self.focal, self.k1, self.k2 = np.take(per_camera[12:], camera, axis=1)
        X = np.take(points.T.copy(), point, axis=1)
        self.q = np.empty_like(X)
        for k in range(3):
            np.multiply(self.R(k, 0), X[0], out=self.q[k])
            self.q[k] += self.R(k, 1) * X[1]
            self.q[k] += self.R(k, 2) * X[2]
        del X
        P = np.take(per_camera[9:12], camera, axis=1)
        P += self.q
        self.depth = P[2].copy()
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self.p = P[:2] / -self.depth
            self.squared = self.p[0] ** 2 + self.p[1] ** 2
            self.distortion = 1.0 + self.squared * (self.k1 + self.k2 * self.squared)

    def R(self, i, j):
        """Entries of the rotations; all nine would be half as large as the Jacobian."""
        return np.take(self._rotation[i, j], self._camera)


def synthetic_scene(
    n_cameras=12, n_points=600, noise=0.5, outliers=0.15, random_state=0
):
    """A ring of cameras around a cloud of points, disturbed, with false matches.

    Parameters
    ----------
    n_cameras, n_points : int
        Size of the scene; a camera sees each point with probability 1/2.
    noise : float, default=0.5
        Standard deviation of the observations, in pixels.
    outliers : float, default=0.15
        Share of observations that are moved by up to 60 pixels.
    random_state : int, default=0
        Seed.

    Returns
    -------
    problem : BundleProblem
        The disturbed scene, as a start for bundle adjustment.
    """
    rng = np.random.default_rng(random_state)
    points = rng.normal(size=(n_points, 3))
    seen = rng.random((n_cameras, n_points)) < 0.5
    point_index, camera_index = np.nonzero(seen.T)
    index = camera_index, point_index
    return _disturbed(n_cameras, points, *index, noise, outliers, rng)


def large_scene(
    n_cameras=356,
    n_points=227_000,
    n_views=5,
    window=60,
    noise=0.5,
    outliers=0.15,
    random_state=0,
):
    """The same on a large scale: 1,135,000 observations.

    Parameters
    ----------
    n_cameras, n_points : int
        Size of the scene.
    n_views, window : int, default=5 and 60
        Each point is seen by this many of the cameras in a window on the ring.
    noise, outliers, random_state : float, float and int
        As for `synthetic_scene`.

    Returns
    -------
    problem : BundleProblem
        The disturbed scene.
    """
    rng = np.random.default_rng(random_state)
    points = rng.normal(size=(n_points, 3))
    centre = rng.integers(0, n_cameras, n_points)
    # Different places in the window: the first of a random order.
    places = np.argpartition(rng.random((n_points, window)), n_views, axis=1)
    cameras = (centre[:, None] + places[:, :n_views]) % n_cameras
    point_index = np.repeat(np.arange(n_points), n_views)
    camera_index = np.sort(cameras, axis=1).ravel()
    index = camera_index, point_index
    return _disturbed(n_cameras, points, *index, noise, outliers, rng)


def _disturbed(n_cameras, points, camera_index, point_index, noise, outliers, rng):
    """Cameras on a ring around a cloud that see given points; all of it disturbed."""
    cameras = np.zeros((n_cameras, 9))
    for i, angle in enumerate(2 * np.pi * np.arange(n_cameras) / n_cameras):
        # The camera at distance 8 looks at the origin along its negative z axis.
        turn = Rotation.from_euler("y", -angle)
        cameras[i, :3] = turn.as_rotvec()
        cameras[i, 3:6] = [0.0, 0.0, -8.0]
        cameras[i, 6:] = [500.0, -0.05, 0.01]
    blank = np.zeros((len(camera_index), 2))
    truth = BundleProblem(camera_index, point_index, blank, cameras, points)
    observations = Reprojection(truth).fun(Reprojection(truth).x0).reshape(-1, 2)
    observations += noise * rng.normal(size=observations.shape)
    wrong = rng.random(len(observations)) < outliers
    observations[wrong] += rng.uniform(-60, 60, (np.sum(wrong), 2))
    disturbed = cameras.copy()
    disturbed[:, :3] += 0.02 * rng.normal(size=(n_cameras, 3))
    disturbed[:, 3:6] += 0.1 * rng.normal(size=(n_cameras, 3))
    return replace(
        truth,
        observations=observations,
        cameras=disturbed,
        points=points + 0.1 * rng.normal(size=points.shape),
    )
