r"""Losses of a network's output, for contrastive Hebbian learning.

A loss :math:`\ell(f; y)` is convex in the output f, non-negative and smooth. It has to
provide::

    value      l(f; y), row by row
    descent    -dl/df, which takes the place of the error y - f of the squared loss
    curvature  a bound of its second derivative: 1 for the squared loss

The conjugate function, which is part of the dual energy, is never needed: with the
multiplier ``descent(f, y)`` on the output, the Fenchel-Young inequality is an equality,
so that the loss does not contribute to the duality gap.

To use a custom loss, derive a class from `Loss`, define these three, and pass an object
of it as ``loss`` to an estimator. `fit` checks on two rows that they agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOSSES", "Huber", "LogLoss", "Loss", "SquaredError", "get_loss"]

Array = NDArray[np.floating[Any]]


class Loss:
    """Base class for losses.

    Targets are standardised numbers for a regressor and class indicators for a
    classifier.

    Examples
    --------
    The loss log cosh(f - y), summed over outputs:

    >>> import numpy as np
    >>> from sklearn_mm.losses import Loss
    >>> class LogCosh(Loss):
    ...     curvature = 1.0
    ...     def value(self, output, target):
    ...         error = output - target
    ...         return np.sum(np.logaddexp(error, -error) - np.log(2), axis=1)
    ...     def descent(self, output, target, out=None):
    ...         return np.tanh(np.subtract(target, output, out=out), out=out)
    """

    curvature: ClassVar[float] = 1.0
    #: Whether the second derivative is equal to `curvature` everywhere.
    quadratic: ClassVar[bool] = False

    def value(self, output: Array, target: Array) -> Array:
        """Loss of every row, non-negative.

        Parameters
        ----------
        output, target : ndarray of shape (n_samples, n_outputs)
            Outputs of the network and targets.

        Returns
        -------
        loss : ndarray of shape (n_samples,)
            Values.
        """
        raise NotImplementedError

    def descent(self, output: Array, target: Array, out: Array | None = None) -> Array:
        """Minus the gradient of the loss in the output.

        Parameters
        ----------
        output, target : ndarray of shape (n_samples, n_outputs)
            Outputs of the network and targets.

        out : ndarray of shape (n_samples, n_outputs), default=None
            Where to put the result.

        Returns
        -------
        descent : ndarray of shape (n_samples, n_outputs)
            The array `out`, if given.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class SquaredError(Loss):
    r"""Half the squared error, :math:`\|f - y\|^2 / 2`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mm.losses import SquaredError
    >>> SquaredError().value(np.array([[1.0, 3.0]]), np.array([[0.0, 1.0]]))
    array([2.5])
    """

    quadratic: ClassVar[bool] = True

    def value(self, output: Array, target: Array) -> Array:
        """Loss of every row."""
        error = output - target
        # A product sums over outputs faster than a reduction does.
        half = np.full(error.shape[1], 0.5, error.dtype)
        value: Array = np.square(error, out=error) @ half
        return value

    def descent(self, output: Array, target: Array, out: Array | None = None) -> Array:
        """The error itself."""
        return np.subtract(target, output, out=out)


@dataclass(frozen=True)
class Huber(Loss):
    """Huber loss of each output: quadratic up to a width and linear beyond.

    Parameters
    ----------
    width : float, default=1.35
        Error at which the loss becomes linear, in the units in which the network is
        trained. Estimators set it from their own parameters.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mm.losses import Huber
    >>> Huber(width=1.0).value(np.array([[0.5], [3.0]]), np.zeros((2, 1)))
    array([0.125, 2.5  ])
    """

    width: float = 1.35

    def __post_init__(self) -> None:
        width = self.width
        if not (isinstance(width, Real) and 0.0 < float(width) < float("inf")):
            raise ValueError(f"Huber: width must be a positive number, got {width!r}.")

    def value(self, output: Array, target: Array) -> Array:
        """Loss of every row."""
        error = np.abs(output - target)
        inner = np.minimum(error, output.dtype.type(self.width))
        value: Array = np.einsum("ij,ij->i", inner, error - 0.5 * inner)
        return value

    def descent(self, output: Array, target: Array, out: Array | None = None) -> Array:
        """The error, clipped."""
        error = np.subtract(target, output, out=out)
        return np.clip(error, -self.width, self.width, out=error)


@dataclass(frozen=True)
class LogLoss(Loss):
    """Cross-entropy of class probabilities, the softmax of the outputs.

    Targets are class indicators, or probabilities that sum to one.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn_mm.losses import LogLoss
    >>> LogLoss().value(np.zeros((1, 4)), np.array([[1.0, 0.0, 0.0, 0.0]])).round(3)
    array([1.386])
    """

    curvature: ClassVar[float] = 0.5

    def value(self, output: Array, target: Array) -> Array:
        """Loss of every row."""
        shifted = _shifted(output)
        log_sum = np.log(np.exp(shifted).sum(axis=0))
        # A sum of two non-negative numbers where targets sum to one.
        value: Array = log_sum - np.einsum("ij,ji->i", target, shifted)
        return value

    def descent(self, output: Array, target: Array, out: Array | None = None) -> Array:
        """Targets minus probabilities."""
        return np.subtract(target, softmax(output), out=out)


def softmax(output: Array) -> Array:
    """Class probabilities of outputs, which are never nan."""
    probability = _shifted(output)
    np.exp(probability, out=probability)
    probability /= probability.sum(axis=0)
    return probability.T


def _shifted(output: Array) -> Array:
    """Outputs minus the row maximum, transposed to make reductions faster."""
    columns = np.array(output.T, order="C")
    columns -= columns.max(axis=0)
    return columns


def check_loss(loss: Any, n_outputs: int) -> None:
    """Raise a ValueError unless a custom loss does what `Loss` describes.

    Tested on two rows, whose targets could be class indicators as well as numbers.
    """
    name = type(loss).__name__
    curvature = getattr(loss, "curvature", None)
    if not (isinstance(curvature, Real) and 0.0 < float(curvature) < float("inf")):
        raise ValueError(
            f"loss {name}: curvature must be a positive number, a bound of the second "
            f"derivative, got {curvature!r}."
        )
    target = np.eye(2, n_outputs)
    output = np.linspace(0.1, 0.4, target.size).reshape(target.shape)
    value = np.asarray(loss.value(output, target))
    if value.shape != (2,) or not np.all(value >= 0.0):
        raise ValueError(
            f"loss {name}: value must return one non-negative number per row, got "
            f"{value!r} for two rows."
        )
    out = np.full_like(output, np.nan)
    loss.descent(output, target, out=out)
    descent = loss.descent(output, target)
    if not np.array_equal(out, descent):
        raise ValueError(
            f"loss {name}: descent must write its result to the array out, if it is "
            "given."
        )
    # Wide enough for a loss that is computed in single precision.
    step = 1e-3
    allowed = 0.02 * np.abs(descent).max() + 1e-4 * value.max()
    for j in range(n_outputs):
        change = np.zeros(n_outputs)
        change[j] = step
        ahead, behind = (loss.value(output + s * change, target) for s in (1.0, -1.0))
        error = descent[:, j] - (behind - ahead) / (2.0 * step)
        if not np.all(np.abs(error) <= allowed):
            raise ValueError(
                f"loss {name}: descent must be minus the gradient of value in the "
                "output."
            )


#: Losses by the names that the estimators accept.
LOSSES: dict[str, Loss] = {
    "huber": Huber(),
    "log_loss": LogLoss(),
    "squared_error": SquaredError(),
}


def get_loss(loss: str | Loss) -> Loss:
    """Get a loss by name, or return the given object.

    Parameters
    ----------
    loss : str or Loss
        A key of `LOSSES`, or an object with `value`, `descent` and `curvature`.

    Returns
    -------
    loss : Loss
        The loss.

    Examples
    --------
    >>> from sklearn_mm.losses import get_loss
    >>> get_loss("log_loss").curvature
    0.5
    """
    if isinstance(loss, type):
        raise ValueError(
            f"loss must be a string or an object, got the class {loss.__name__}; "
            f"pass {loss.__name__}() instead."
        )
    if not isinstance(loss, str):
        return loss
    try:
        return LOSSES[loss]
    except KeyError:
        raise ValueError(
            f"Unknown loss {loss!r}; known are {sorted(LOSSES)}."
        ) from None
