"""Display of the certified bounds of a fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils.validation import check_is_fitted

_LABELS = {
    "updates": "update",
    "epochs": "epoch",
    "passes": "accumulated inference passes",
}
_TRIALS = "accumulated trials of the search for σ"
# Objectives that span a larger ratio are drawn on a logarithmic axis.
_WIDE = 10.0
# Curves with at most this many points have markers.
_FEW = 30
# Bounds of a diverged run are clipped here, before the margins of the axis overflow.
_HUGE = 1e200
# Smallest gap that is drawn, relative to the upper bound, and smallest upper bound.
_ROUNDING, _TINY = 1e-16, 1e-300


class ConvergenceDisplay:
    """Visualisation of the certified bounds during a fit, and of the effort.

    It is recommended to use :meth:`from_estimator` to create a display. All parameters
    are stored as attributes.

    Parameters
    ----------
    histories : sequence of Bunch
        For each curve, the ``history_`` of an estimator or the ``history`` of a result
        of `robust_least_squares`.

    names : sequence of str, default=None
        Names of the curves in the legend.

    Attributes
    ----------
    lines_ : list of matplotlib Artist
        Upper and lower bound of each history, alternating.

    gaps_ : list of matplotlib Artist
        Areas between the bounds.

    effort_lines_ : list of matplotlib Artist
        Effort of each history. Empty if there is only one axes.

    gap_lines_ : list of matplotlib Artist
        Relative gap of each history. Empty if there are fewer than three axes.

    ax_ : matplotlib Axes
        Axes with the bounds.

    axes_ : ndarray of matplotlib Axes
        Axes with the bounds and, if present, those with the effort and the gap.

    figure_ : matplotlib Figure
        Figure containing the axes.

    See Also
    --------
    RobustFitDisplay : Residuals, weights and outliers of a robust fit.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn_mm import ConvergenceDisplay, HalfQuadraticRobustRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
    >>> ConvergenceDisplay(histories=[model.history_]).plot()
    <...>
    >>> plt.show()
    """

    def __init__(self, *, histories, names=None):
        self.histories = histories
        self.names = names

    @classmethod
    def from_estimator(
        cls,
        estimator,
        *,
        name=None,
        x="auto",
        average=1,
        ax=None,
        line_kwargs=None,
        fill_between_kwargs=None,
    ):
        """Plot the history of one or several fits.

        Parameters
        ----------
        estimator : estimator, OptimizeResult, or sequence or dict of these
            A fitted estimator of the package, a pipeline that ends in one, a search
            over its parameters, or a result of `robust_least_squares`. Several fits are
            plotted together; the keys of a dict are used as names.

        name : str or sequence of str, default=None
            Name or names of the curves in the legend. If None, several estimators are
            labelled by their criterion.

        x : {"auto", "updates", "epochs", "passes"}, default="auto"
            Quantity on the horizontal axis. "passes" accumulates all passes of
            inference, including discarded ones. With "epochs", bounds are averaged over
            the mini-batches of an epoch. "auto" selects "epochs" if mini-batches were
            used, and "updates" otherwise.

        average : int, default=1
            Number of consecutive updates whose bounds are averaged for each point. The
            means of the bounds are bounds of the mean objective.

        ax : matplotlib Axes or array-like of two or three, default=None
            Axes to plot on: bounds on the first, effort on the second, and on the third
            the gap between the bounds relative to the upper bound, for fits whose
            bounds are too close to be distinguished. With a single axes, only the
            bounds are plotted. If None, a new figure with bounds and effort is created.

        line_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `plot`.

        fill_between_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `fill_between`.

        Returns
        -------
        display : ConvergenceDisplay
            Object that stores the computed values.

        Examples
        --------
        >>> import matplotlib.pyplot as plt
        >>> from sklearn.datasets import load_diabetes
        >>> from sklearn_mm import ConvergenceDisplay, HalfQuadraticRobustRegressor
        >>> X, y = load_diabetes(return_X_y=True)
        >>> fits = {
        ...     criterion: HalfQuadraticRobustRegressor(
        ...         criterion=criterion, init="ols", random_state=0
        ...     ).fit(X, y)
        ...     for criterion in ("regemm", "sudemm", "fixed")
        ... }
        >>> ConvergenceDisplay.from_estimator(fits)
        <...>
        >>> plt.show()
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimator")
        if isinstance(estimator, Mapping) and "history" not in estimator:
            names, fits = list(estimator), list(estimator.values())
        elif isinstance(estimator, Sequence) and not isinstance(estimator, Pipeline):
            fits, names = list(estimator), None
        else:
            fits, names = [estimator], None
        if name is not None:
            names = [name] if isinstance(name, str) else list(name)
        fits = [_fitted(fit) for fit in fits]
        if names is None and len(fits) > 1:
            names = [_name(fit, i) for i, fit in enumerate(fits)]
        display = cls(histories=[_history(fit) for fit in fits], names=names)
        return display.plot(
            ax=ax,
            x=x,
            average=average,
            line_kwargs=line_kwargs,
            fill_between_kwargs=fill_between_kwargs,
        )

    def plot(
        self,
        ax=None,
        *,
        x="auto",
        average=1,
        line_kwargs=None,
        fill_between_kwargs=None,
    ):
        """Plot the display.

        Parameters
        ----------
        ax : matplotlib Axes or array-like of two or three, default=None
            Axes to plot on: bounds on the first, effort on the second, and on the third
            the gap between the bounds relative to the upper bound, for fits whose
            bounds are too close to be distinguished. With a single axes, only the
            bounds are plotted. If None, a new figure with bounds and effort is created.

        x : {"auto", "updates", "epochs", "passes"}, default="auto"
            Quantity on the horizontal axis, see :meth:`from_estimator`.

        average : int, default=1
            Number of consecutive updates whose bounds are averaged for each point.

        line_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `plot`.

        fill_between_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `fill_between`.

        Returns
        -------
        display : ConvergenceDisplay
            The display itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        self._check(x, average)
        import matplotlib.pyplot as plt
        from matplotlib.cbook import normalize_kwargs
        from matplotlib.collections import PolyCollection
        from matplotlib.lines import Line2D

        if ax is None:
            _, ax = plt.subplots(
                2, 1, sharex=True, height_ratios=(3, 1), layout="constrained"
            )
        self.axes_ = np.atleast_1d(ax)
        if self.axes_.shape not in ((1,), (2,), (3,)):
            raise ValueError(f"ax must be one to three axes, got {self.axes_.size}.")
        self.ax_ = self.axes_[0]
        self.figure_ = self.ax_.figure
        line_kwargs = normalize_kwargs(line_kwargs or {}, Line2D)
        fill_kwargs = normalize_kwargs(fill_between_kwargs or {}, PolyCollection)
        if x == "auto":
            batches = any(
                history["epoch"][-1] + 1 < len(history["epoch"])
                for history in self.histories
            )
            x = "epochs" if batches else "updates"

        self.lines_, self.gaps_ = [], []
        self.effort_lines_, self.gap_lines_ = [], []
        curves = [_curves(history, x, average) for history in self.histories]
        for (along, upper, lower, effort, gap), label in zip(
            curves, self._labels(), strict=True
        ):
            style = {"marker": "." if len(along) <= _FEW else "", **line_kwargs}
            (top,) = self.ax_.plot(along, upper, **{"label": label, **style})
            style["color"] = top.get_color()
            (bottom,) = self.ax_.plot(along, lower, **{**style, "linestyle": "--"})
            shade = {"color": top.get_color(), "alpha": 0.2, "linewidth": 0}
            area = self.ax_.fill_between(
                along, lower, upper, **{**shade, **fill_kwargs}
            )
            self.lines_ += [top, bottom]
            self.gaps_.append(area)
            for axes in self.axes_[1:2]:
                self.effort_lines_ += axes.plot(along, effort, **style)
            for axes in self.axes_[2:]:
                self.gap_lines_ += axes.plot(along, gap, **style)
        self._set_scale(curves)
        self._annotate(x)
        return self

    def _check(self, x, average):
        if x not in ("auto", *_LABELS):
            raise ValueError(
                f"x must be one of {', '.join(map(repr, ('auto', *_LABELS)))}. Got "
                f"{x!r} instead."
            )
        if average < 1:
            raise ValueError(f"average must be at least 1, got {average}.")
        if len(self.histories) == 0:
            raise ValueError("There is no history to plot.")
        if self.names is not None and len(self.names) != len(self.histories):
            raise ValueError(
                f"Got {len(self.names)} names for {len(self.histories)} histories."
            )
        if len({"passes" in history for history in self.histories}) > 1:
            raise ValueError(
                "Passes and σ cannot share an axis. Plot networks and robust fits in "
                "different displays."
            )

    def _labels(self):
        return [None] * len(self.histories) if self.names is None else self.names

    def _set_scale(self, curves):
        """Use a logarithmic axis for wide ranges, with zeros at the lower edge."""
        values = np.concatenate([np.r_[upper, lower] for _, upper, lower, *_ in curves])
        positive = values[values > 0]
        uppers = np.concatenate([upper for _, upper, *_ in curves])
        if uppers.min() > 0 and uppers.max() > _WIDE * uppers.min():
            self.ax_.set_yscale("log")
            if (values <= 0).any():
                self.ax_.set_ylim(bottom=0.8 * positive.min())

    def _annotate(self, x):
        from matplotlib.lines import Line2D
        from matplotlib.ticker import MaxNLocator

        networks = "passes" in self.histories[0]
        label = _TRIALS if x == "passes" and not networks else _LABELS[x]
        self.ax_.set_ylabel("objective")
        self.axes_[-1].set_xlabel(label)
        if x != "passes":  # which may be drawn on a logarithmic axis
            self.axes_[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in self.axes_[2:]:
            axes.set(ylabel="gap / upper\nbound", yscale="log")
        for axes in self.axes_[1:2]:
            if networks:
                axes.set_ylabel("passes per\nupdate")
            else:
                axes.set(ylabel="effort 1/σ", ylim=(-0.05, 1.05))
        handles = [line for line in self.lines_[::2] if self.names is not None]
        color = "0.4" if handles else self.lines_[0].get_color()
        styles: Any = (("-", "upper"), ("--", "lower"))
        handles += [
            Line2D([], [], color=color, linestyle=style, label=f"{which} bound")
            for style, which in styles
        ]
        self.ax_.legend(handles=handles)


def _fitted(fit):
    """Object with a history inside a pipeline or search."""
    fit = getattr(fit, "best_estimator_", fit)
    return fit[-1] if isinstance(fit, Pipeline) else fit


def _history(fit):
    if hasattr(fit, "fit"):
        check_is_fitted(fit)
    history = getattr(fit, "history_", None)
    history = getattr(fit, "history", None) if history is None else history
    if not history:
        raise ValueError(
            f"{type(fit).__name__} has no history: pass a fitted estimator of "
            "sklearn_mm or a result of robust_least_squares that made an update."
        )
    return history


def _name(fit, i):
    criterion = getattr(fit, "criterion", None)
    return criterion if isinstance(criterion, str) else f"{type(fit).__name__} {i + 1}"


def _curves(history, x, average):
    """Abscissa, bounds, effort and gap; means over epochs or consecutive updates."""
    effort = history.get("passes", history["effort"])
    rows = np.arange(len(effort))
    group = history["epoch"] if x == "epochs" else rows // average
    _, last = np.unique(group[::-1], return_index=True)
    last = rows[::-1][last]  # the row at which each group ends
    count = np.bincount(group)
    along = {
        "updates": last + 1,
        "epochs": group[last] + 1,
        "passes": np.cumsum(history["work"])[last],
    }[x]
    columns = (history["upper_bound"], history["lower_bound"], effort, history["gap"])
    upper, lower, effort, gap = (
        np.clip(np.bincount(group, column) / count, -_HUGE, _HUGE) for column in columns
    )
    # Bounds that agree to the last bit are drawn at the level of rounding errors.
    gap = np.maximum(gap, _ROUNDING * np.abs(upper)) / np.maximum(np.abs(upper), _TINY)
    return along, upper, lower, effort, gap
