"""Display of residuals, weights and outliers of a robust fit."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.pipeline import Pipeline
from sklearn.utils._optional_dependencies import check_matplotlib_support
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
)

from sklearn_mm._robust.learner.regressor import RobustRegressor
from sklearn_mm._robust.regressor import HalfQuadraticRobustRegressor

_KINDS = ("auto", "fit", "residuals", "influence")
# Residuals beyond this many widths of the band lead to a symmetric logarithmic axis.
_FAR = 50.0
# Leverages beyond this many times their mean are high.
_HIGH = 3.0


class RobustFitDisplay:
    """Visualisation of the residuals, weights and outliers of a robust fit.

    It is recommended to use :meth:`from_estimator` to create a display. All parameters
    are stored as attributes.

    Parameters
    ----------
    y_true : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Targets.

    y_pred : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Predictions.

    weights : ndarray of shape (n_samples,)
        Confidence weight of each row, in [0, 1].

    radius : float
        Largest residual of an inlier. With several outputs, largest norm of the
        residuals in units of `scale`.

    curve : tuple of ndarray, default=None
        For a single feature: its values, a grid, and the predictions on the grid.

    feature_name : str, default=None
        Name of the single feature.

    scale : float or ndarray of shape (n_outputs,), default=1.0
        Noise scales by which the residuals of several outputs are divided.

    leverage : ndarray of shape (n_samples,), default=None
        Leverage of each row with respect to the rows that have weight, see
        :meth:`from_estimator`.

    high_leverage : float, default=None
        Leverage above which a row is a leverage point.

    Attributes
    ----------
    scatter_ : matplotlib Artist
        Inliers, coloured by their weights.

    outliers_ : matplotlib Artist
        Rows outside the band.

    line_ : matplotlib Artist
        The fitted curve, or the line of zero residuals.

    band_ : matplotlib Artist
        Band of the inliers.

    ax_ : matplotlib Axes
        Axes with the data.

    figure_ : matplotlib Figure
        Figure containing the axes.

    See Also
    --------
    ConvergenceDisplay : Plot of the certified bounds during a fit.
    sklearn.metrics.PredictionErrorDisplay : Plot of the residuals of any regressor,
        without weights.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> import numpy as np
    >>> from sklearn_mm import RobustFitDisplay
    >>> RobustFitDisplay(
    ...     y_true=np.array([1.0, 2.1, 9.0]),
    ...     y_pred=np.array([1.1, 2.0, 3.0]),
    ...     weights=np.array([0.9, 0.9, 0.0]),
    ...     radius=0.5,
    ... ).plot()
    <...>
    >>> plt.show()
    """

    def __init__(
        self,
        *,
        y_true: Any,
        y_pred: Any,
        weights: Any,
        radius: float,
        curve: Any = None,
        feature_name: str | None = None,
        scale: float = 1.0,
        leverage: Any = None,
        high_leverage: float | None = None,
    ) -> None:
        self.y_true = y_true
        self.y_pred = y_pred
        self.weights = weights
        self.radius = radius
        self.scale = scale
        self.curve = curve
        self.feature_name = feature_name
        self.leverage = leverage
        self.high_leverage = high_leverage

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        kind: str = "auto",
        ax: Any = None,
        scatter_kwargs: dict[str, Any] | None = None,
        outlier_kwargs: dict[str, Any] | None = None,
        line_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """Plot the residuals, weights and outliers of a robust regressor.

        Parameters
        ----------
        estimator : HalfQuadraticRobustRegressor, RobustRegressor, Pipeline or search
            Fitted regressor, a pipeline that ends in one, or a search (such as
            :class:`~sklearn.model_selection.GridSearchCV`) whose best estimator is
            plotted.

        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Training data or new data.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.

        kind : {"auto", "fit", "residuals", "influence"}, default="auto"
            Type of plot.

            - "fit": targets and fitted curve against the feature, for a single feature
              and a single output;
            - "residuals": residuals against predictions. With several outputs, norms of
              the residuals against row numbers;
            - "auto": "fit" if possible, otherwise "residuals";
            - "influence": residuals against leverages ``x' (X'WX)^-1 x``. Rows
              contribute in proportion to their weights W, so that outliers cannot mask
              each other. The dotted line is at three times the mean leverage of the
              rows that have weight. Rows to the right of it are bad leverage points if
              they are outside the band, and good ones if they are inside. Not for
              RobustRegressor, which has no leverages.

        ax : matplotlib Axes, default=None
            Axes to plot on. If None, a new figure is created.

        scatter_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `scatter` for the inliers.

        outlier_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `scatter` for the outliers.

        line_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `plot`.

        Returns
        -------
        display : RobustFitDisplay
            Object that stores the computed values.

        Examples
        --------
        >>> import matplotlib.pyplot as plt
        >>> import numpy as np
        >>> from sklearn_mm import HalfQuadraticRobustRegressor, RobustFitDisplay
        >>> rng = np.random.default_rng(0)
        >>> X = rng.uniform(0, 10, size=(60, 1))
        >>> y = 2.0 * X[:, 0] + 1.0 + 0.5 * rng.normal(size=60)
        >>> y[:20] -= 15.0
        >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
        >>> RobustFitDisplay.from_estimator(model, X, y)
        <...>
        >>> plt.show()
        """
        check_matplotlib_support(f"{cls.__name__}.from_estimator")
        check_is_fitted(estimator)
        estimator = getattr(estimator, "best_estimator_", estimator)
        model = estimator[-1] if isinstance(estimator, Pipeline) else estimator
        if not isinstance(model, HalfQuadraticRobustRegressor | RobustRegressor):
            raise TypeError(
                "estimator must be a HalfQuadraticRobustRegressor, a RobustRegressor "
                f"or a pipeline that ends in one, got {type(model).__name__}."
            )
        if y is None:
            raise ValueError("y must be passed to show residuals, got None.")
        check_consistent_length(X, y)
        y_true = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        y_pred = np.asarray(estimator.predict(X))  # of a Dask array, too
        if y_true.size != np.size(y_pred):
            raise ValueError(
                f"y has shape {y_true.shape}, but the predictions have shape "
                f"{y_pred.shape}."
            )
        y_true = y_true.reshape(y_pred.shape)
        weights, radius = model._weigh(y_true - y_pred)
        display = cls(
            y_true=y_true,
            y_pred=y_pred,
            weights=weights,
            radius=radius,
            scale=model.scale_,
            **_one_feature(estimator, X, y_pred),
            **(_leverages(estimator, model, X) if kind == "influence" else {}),
        )
        return display.plot(
            ax=ax,
            kind=kind,
            scatter_kwargs=scatter_kwargs,
            outlier_kwargs=outlier_kwargs,
            line_kwargs=line_kwargs,
        )

    def plot(
        self,
        ax: Any = None,
        *,
        kind: str = "auto",
        scatter_kwargs: dict[str, Any] | None = None,
        outlier_kwargs: dict[str, Any] | None = None,
        line_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """Plot the display.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Axes to plot on. If None, a new figure is created.

        kind : {"auto", "fit", "residuals", "influence"}, default="auto"
            Type of plot, see :meth:`from_estimator`.

        scatter_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `scatter` for the inliers.

        outlier_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `scatter` for the outliers.

        line_kwargs : dict, default=None
            Keyword arguments passed to matplotlib's `plot`.

        Returns
        -------
        display : RobustFitDisplay
            The display itself.
        """
        check_matplotlib_support(f"{type(self).__name__}.plot")
        if kind not in _KINDS:
            raise ValueError(f"kind must be one of {_KINDS}. Got {kind!r} instead.")
        if kind == "fit" and self.curve is None:
            raise ValueError("kind='fit' requires a single feature and output.")
        if kind == "influence" and self.leverage is None:
            raise ValueError("kind='influence' requires leverages.")
        import matplotlib.pyplot as plt
        from matplotlib.cbook import normalize_kwargs
        from matplotlib.collections import PathCollection
        from matplotlib.lines import Line2D

        if ax is None:
            _, ax = plt.subplots(layout="constrained")
        self.ax_, self.figure_ = ax, ax.figure
        line_kwargs = normalize_kwargs(line_kwargs or {}, Line2D)
        line_kwargs = {"color": "C0", "label": "fit", "zorder": 1, **line_kwargs}
        if kind in ("auto", "fit") and self.curve is not None:
            residual, points = self._draw_fit(line_kwargs)
        else:
            residual, points = self._draw_residuals(line_kwargs)
        if kind == "influence":
            points = np.stack([self._draw_leverage(), residual])
        outlier = np.abs(residual) > self.radius
        weights = np.clip(self.weights, 0.0, 1.0)
        self.scatter_ = ax.scatter(
            *points[:, ~outlier],
            **{
                "c": weights[~outlier],
                "s": 10.0 + 25.0 * weights[~outlier],
                "vmin": 0.0,
                "vmax": 1.0,
                "cmap": "viridis_r",
                "zorder": 2,
                "label": f"inliers ({np.sum(~outlier)})",
                **normalize_kwargs(scatter_kwargs or {}, PathCollection),
            },
        )
        self.outliers_ = ax.scatter(
            *points[:, outlier],
            **{
                "c": "C3",
                "marker": "x",
                "s": 30.0,
                "zorder": 2,
                "label": f"outliers ({np.sum(outlier)})",
                **normalize_kwargs(outlier_kwargs or {}, PathCollection),
            },
        )
        self.figure_.colorbar(self.scatter_, ax=ax, label="weight")
        _legend_above_data(ax)
        return self

    def _draw_fit(self, line_kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Plot curve and band over the feature; return residuals and points."""
        feature, grid, fitted = self.curve
        (self.line_,) = self.ax_.plot(grid, fitted, **line_kwargs)
        self.band_ = self.ax_.fill_between(
            grid,
            fitted - self.radius,
            fitted + self.radius,
            color=self.line_.get_color(),
            alpha=0.15,
            linewidth=0,
            label="inlier band",
        )
        self.ax_.set(xlabel=self.feature_name or "feature", ylabel="target")
        return self.y_true - self.y_pred, np.stack([feature, self.y_true])

    def _draw_residuals(self, line_kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Plot zero line and band; return residuals and points."""
        residual, ax = self.y_true - self.y_pred, self.ax_
        several = residual.ndim == 2
        if several:
            residual = np.linalg.norm(residual / self.scale, axis=1)
            across, low = np.arange(len(residual)), 0.0
            ax.set(xlabel="row", ylabel="norm of residuals in noise scales")
        else:
            across, low = self.y_pred, -self.radius
            ax.set(xlabel="predicted value", ylabel="residual (actual − predicted)")
        self.line_ = ax.axhline(0.0, **{**line_kwargs, "label": None})
        self.band_ = ax.axhspan(
            low,
            self.radius,
            color=self.line_.get_color(),
            alpha=0.15,
            linewidth=0,
            label="inlier band",
        )
        if np.abs(residual).max() > _FAR * self.radius > 0.0:
            ax.set_yscale("symlog", linthresh=self.radius)
            ax.set_ylabel(f"{ax.get_ylabel()}\n(log beyond the band)")
        return residual, np.stack([across, residual])

    def _draw_leverage(self) -> Any:
        """Set up the axis of leverages and return them."""
        from matplotlib.ticker import LogLocator

        largest = float(self.leverage.max())
        # Zero, a row at the very centre, cannot be shown on a logarithmic axis.
        leverage = np.maximum(self.leverage, 1e-6 * largest if largest > 0 else 1e-6)
        self.ax_.set(xscale="log", xlabel="leverage with respect to rows of weight")
        self.ax_.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        self.ax_.xaxis.set_major_formatter("{x:g}")
        self.ax_.xaxis.set_minor_formatter("")
        if self.high_leverage is not None:
            self.ax_.axvline(
                self.high_leverage,
                color="0.4",
                linestyle=":",
                zorder=1,
                label="high leverage",
            )
        return leverage


def _legend_above_data(ax: Any) -> None:
    """Add a legend inside the axes, extended so that it does not hide any points."""
    low, high = ax.get_ylim()
    legend = ax.legend(loc="upper center", ncols=2, fontsize="small")
    room = legend.get_window_extent().height / ax.get_window_extent().height
    # The legend also keeps a distance from the frame. In small axes, the data take up
    # at least half of the height.
    share = max(1.0 - 1.3 * room, 0.5)
    scale = ax.yaxis.get_transform()
    bottom, top = scale.transform([low, high])
    ax.set_ylim(low, scale.inverted().transform([bottom + (top - bottom) / share])[0])


def _leverages(estimator: Any, model: Any, X: Any) -> dict[str, Any]:
    """Leverages and the threshold for high ones."""
    if isinstance(model, RobustRegressor):
        raise ValueError(
            "kind='influence' requires a linear model; a RobustRegressor has no "
            "leverages."
        )
    if isinstance(estimator, Pipeline) and len(estimator) > 1:
        X = estimator[:-1].transform(X)
    leverage, mean = model._leverages(X)
    return {"leverage": np.asarray(leverage), "high_leverage": _HIGH * mean}


def _one_feature(estimator: Any, X: Any, y_pred: Any) -> dict[str, Any]:
    """The curve over a single feature and its name; empty for several features."""
    shape = getattr(X, "shape", None) or np.shape(X)
    if shape[1] != 1 or y_pred.ndim > 1:
        return {}
    names = getattr(X, "columns", None)
    feature = X.toarray() if issparse(X) else np.asarray(X)
    feature = feature[:, 0].astype(np.float64)
    grid = np.linspace(feature.min(), feature.max(), 200)
    column = grid[:, None]
    if names is not None:  # a frame of the same library
        column = type(X)({names[0]: grid})
    return {
        "curve": (feature, grid, estimator.predict(column)),
        "feature_name": None if names is None else str(names[0]),
    }
