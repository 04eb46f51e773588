"""Structure of problems with two groups of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

from sklearn_mm._solver.roles import Array


class BlockStructure:
    """Structure of residuals that depend on one block of each of two groups.

    The parameter vector contains the blocks of the first group, followed by those of
    the second group. Residual i depends on block ``first[i]`` of the first group and on
    block ``second[i]`` of the second group, like an image observation depends on a
    camera and a point. The second group, which should be the larger one, is eliminated.

    Parameters
    ----------
    first, second : array-like of int of shape (n_residuals,)
        Block of each group on which each residual (vector) depends.

    first_dim, second_dim : int
        Number of parameters per block of each group.

    n_first, n_second : int, default=None
        Number of blocks of each group. If None, the largest index plus one.

    See Also
    --------
    robust_least_squares : Accepts a `structure`.

    Examples
    --------
    >>> from sklearn_mm import BlockStructure
    >>> structure = BlockStructure([0, 0, 1], [0, 1, 1], first_dim=6, second_dim=3)
    >>> structure.n_parameters
    18
    """

    def __init__(
        self,
        first: Any,
        second: Any,
        *,
        first_dim: int,
        second_dim: int,
        n_first: int | None = None,
        n_second: int | None = None,
    ) -> None:
        self.first, self.n_first = _index("first", first, n_first)
        self.second, self.n_second = _index("second", second, n_second)
        if len(self.first) != len(self.second):
            raise ValueError(
                "first and second must have the same length, got "
                f"{len(self.first)} and {len(self.second)}."
            )
        for name, dim in (("first_dim", first_dim), ("second_dim", second_dim)):
            if int(dim) != dim or dim < 1:
                raise ValueError(f"{name} must be a positive integer, got {dim!r}.")
        self.first_dim, self.second_dim = int(first_dim), int(second_dim)

    @property
    def n_residuals(self) -> int:
        """Number of residual vectors."""
        return len(self.first)

    @property
    def n_parameters(self) -> int:
        """Length of the parameter vector and of its updates."""
        return self.n_first * self.first_dim + self.n_second * self.second_dim

    def blocks(self, values: Any) -> tuple[Any, Any]:
        """Get the entries of a parameter vector in the two blocks of each residual.

        Parameters
        ----------
        values : ndarray of shape (n_parameters,)
            One number per parameter.

        Returns
        -------
        first : ndarray of shape (n_residuals, first_dim)
            Entries in the block of the first group.

        second : ndarray of shape (n_residuals, second_dim)
            Entries in the block of the second group.
        """
        first, second = np.split(values, [self.n_first * self.first_dim])
        return (
            first.reshape(self.n_first, -1)[self.first],
            second.reshape(self.n_second, -1)[self.second],
        )

    def push(self, A: Array, B: Array, delta: Array) -> Array:
        """Multiply the Jacobian with a step.

        Parameters
        ----------
        A, B : ndarray
            Block Jacobians as for `to_sparse`.

        delta : ndarray of shape (n_parameters,)
            The step.

        Returns
        -------
        product : ndarray of shape (n_residuals, residual_dim)
            Change of the residuals.
        """
        x, y = self.blocks(delta)
        return np.einsum("ndp,np->nd", A, x) + np.einsum("ndp,np->nd", B, y)

    def pull(self, A: Array, B: Array, r: Array) -> Array:
        """Multiply the transposed Jacobian with residual vectors.

        Parameters
        ----------
        A, B : ndarray
            Block Jacobians as for `to_sparse`.

        r : ndarray of shape (n_residuals, residual_dim)
            One vector per residual.

        Returns
        -------
        product : ndarray of shape (n_parameters,)
            The product.
        """
        parts = []
        for J, index, size in (
            (A, self.first, self.n_first),
            (B, self.second, self.n_second),
        ):
            terms = np.einsum("ndp,nd->pn", J, r)
            sums = [np.bincount(index, term, size) for term in terms]
            parts.append(np.array(sums).T.ravel())
        return np.concatenate(parts)

    def to_sparse(self, A: Array, B: Array) -> scipy.sparse.csr_array:
        """Convert block Jacobians to a sparse Jacobian.

        Parameters
        ----------
        A : ndarray of shape (n_residuals, residual_dim, first_dim)
            Derivatives of each residual vector with respect to its block of the first
            group.

        B : ndarray of shape (n_residuals, residual_dim, second_dim)
            Derivatives with respect to the block of the second group.

        Returns
        -------
        jac : csr_array of shape (n_residuals * residual_dim, n_parameters)
            The Jacobian.
        """
        n, d, _ = A.shape
        offset = self.n_first * self.first_dim
        columns = np.hstack(
            [
                self.first[:, None] * self.first_dim + np.arange(self.first_dim),
                offset
                + self.second[:, None] * self.second_dim
                + np.arange(self.second_dim),
            ]
        )
        width = columns.shape[1]
        data = np.concatenate([A, B], axis=2)
        indptr = np.arange(n * d + 1) * width
        indices = np.repeat(columns, d, axis=0).ravel()
        shape = (n * d, self.n_parameters)
        return scipy.sparse.csr_array((data.ravel(), indices, indptr), shape=shape)


def _index(name: str, values: Any, size: int | None) -> tuple[Any, int]:
    """Validate an index array and the number of blocks."""
    array = np.asarray(values)
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{name} must be a one-dimensional array of integers, got shape "
            f"{array.shape} and dtype {array.dtype}."
        )
    if array.size == 0:
        raise ValueError(f"{name} is empty: there are no residuals.")
    if size is None:
        size = int(array.max()) + 1
    if array.min() < 0 or array.max() >= size:
        raise ValueError(
            f"{name} must be in [0, {size}), got values from {array.min()} to "
            f"{array.max()}."
        )
    return array.astype(np.intp), int(size)
