"""Common parts of the estimators: mixins, progress, and error handling."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import inspect
import re
import time
import warnings
from collections.abc import Callable
from numbers import Integral
from types import FrameType
from typing import Any, Self, TypeVar, cast

from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning, InconsistentVersionWarning
from sklearn.utils import Bunch
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

import sklearn_mm  # for the version, which is set after this module is imported
from sklearn_mm._rows.sources import is_dask
from sklearn_mm._rows.statistics import score_in_blocks
from sklearn_mm._rows.workers import kept_threads, one_scipy_thread
from sklearn_mm._solver.loop import Monitor, Status

try:  # scikit-learn >= 1.9; the only version check for callbacks in the package
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Replacement for scikit-learn versions without callbacks."""


class DocumentedMixin:
    """Mixin for HTML representations that show and link to the documentation.

    scikit-learn only shows the documentation of parameters and attributes together with
    a link. Links point to the documentation site in the metadata of the package.
    Without such a site, the representation shows the documentation without links.
    """

    _doc_link_module = "sklearn_mm"

    @property
    def _doc_link_template(self) -> str:
        return self.__dict__.get(_LINK) or _doc_link_template()

    @_doc_link_template.setter
    def _doc_link_template(self, value: str) -> None:
        self.__dict__[_LINK] = value

    def _html_repr(self) -> str:
        if self._doc_link_template:
            return super()._html_repr()  # type: ignore[misc]
        shown = copy.copy(self)
        shown._doc_link_template = _NOWHERE
        view = super(DocumentedMixin, shown)._html_repr()  # type: ignore[misc]
        return _DEAD_LINK.sub("", view)


_LINK = "__doc_link_template"  # where scikit-learn keeps a template of an instance
_NOWHERE = "#nowhere"
# The question mark that leads to the documentation, and where names lead to.
_DEAD_LINK = re.compile(
    rf'<a class="sk-estimator-doc-link[^>]*href="{_NOWHERE}[^>]*>.*?</a>'
    rf'|\s*rel="noreferrer" target="_blank" href="{_NOWHERE}[^"]*"',
    flags=re.DOTALL,
)


@functools.cache
def _doc_link_template() -> str:
    """Template of the pages of estimators, from the metadata of the package."""
    try:
        metadata = importlib.metadata.metadata("sklearn-mm")
    except importlib.metadata.PackageNotFoundError:  # run from the source folder
        return ""
    for entry in metadata.get_all("Project-URL") or []:
        label, _, address = entry.partition(", ")
        if label == "Documentation":
            page = "reference/{estimator_module}.{estimator_name}.html"
            return f"{address.rstrip('/')}/{page}"
    return ""


class PersistentMixin:
    """Mixin that stores the package version in pickles and warns if it differs.

    scikit-learn does the same for its own estimators. The history, a `Bunch`, is stored
    as a dictionary, so that safe formats only encounter types of this package. Arrays
    on a cluster are omitted.
    """

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[call-overload]
        state[_VERSION_KEY] = sklearn_mm.__version__
        state = {name: value for name, value in state.items() if not is_dask(value)}
        if isinstance(state.get("history_"), Bunch):
            state["history_"] = dict(state["history_"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        written = state.pop(_VERSION_KEY, "unknown")
        if written != sklearn_mm.__version__:
            warnings.warn(
                InconsistentVersionWarning(
                    estimator_name=f"{type(self).__name__} of sklearn_mm",
                    current_sklearn_version=sklearn_mm.__version__,
                    original_sklearn_version=written,
                ),
                stacklevel=2,
            )
        if isinstance(state.get("history_"), dict):
            state["history_"] = Bunch(**state["history_"])
        super().__setstate__(state)  # type: ignore[misc]


class ScoreMixin:
    """Mixin for scores of Dask arrays, of which only sums are gathered."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Score the predictions for the given rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Data.

        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            True targets.

        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row.

        Returns
        -------
        score : float
            R² of a regressor (the mean of its outputs), accuracy of a classifier.
        """
        if not hasattr(X, "__dask_graph__"):
            score: float = super().score(X, y, sample_weight)  # type: ignore[misc]
            return score
        predicted = self.predict(X)  # type: ignore[attr-defined]
        return score_in_blocks(y, predicted, sample_weight, is_classifier(self))


_VERSION_KEY = "_sklearn_mm_version"

Fit = TypeVar("Fit", bound=Callable[..., Any])

# Methods that an object must have to be accepted as a criterion.
_CRITERION_METHODS = ["satisfied", "attainable", "excessive", "prescribe", "converged"]

# Constraints of a parameter `n_jobs`: as in joblib, 0 is not valid.
N_JOBS = [
    None,
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
]


def criterion_options(*names: str) -> list[Any]:
    """Constraints of a parameter `criterion` with these names."""
    return [StrOptions(set(names)), HasMethods(_CRITERION_METHODS)]


def keep_state_on_error(fit: Fit) -> Fit:
    """Decorate a fit method so that errors do not change the estimator.

    It has to be placed above `_fit_context`, so that callbacks are torn down first.
    Threads that are started by the fit end with it.
    """

    @functools.wraps(fit)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = dict(self.__dict__)
        try:
            with kept_threads(), one_scipy_thread():
                return fit(self, *args, **kwargs)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(state)
            raise

    return cast(Fit, wrapper)


def warn_user(message: str) -> None:
    """Issue a warning at the line of user code that called the package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and _is_internal(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, ConvergenceWarning, stacklevel=level)


def _is_internal(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name.split(".")[0] in ("sklearn_mm", "sklearn", "joblib", "contextlib")


def warn_unless_converged(estimator: Any, status: Status) -> None:
    """Warn if a run was interrupted or reached the maximum number of iterations."""
    name = type(estimator).__name__
    if status is Status.INTERRUPTED:
        warn_user(
            f"{name} was interrupted. The last completed update is kept. Set "
            "warm_start=True to continue from it."
        )
    if status is Status.MAX_ITER:
        warn_user(
            f"{name} did not converge in max_iter={estimator.max_iter} iterations: "
            f"{status.value}. Increase max_iter or tol (currently {estimator.tol:g})."
        )


class FitMonitor(Monitor):
    """Calls the callbacks of scikit-learn and, if verbose, prints each epoch.

    Parameters
    ----------
    estimator : estimator
        The estimator that is fitted.
    X, y : array-like
        Training data, passed to callbacks.
    attributes : callable
        Maps theta to the fitted attributes that make `predict` work.
    unit : float, default=1.0
        Factor from the objective of the solver to that of the user.
    max_iter : int, default=None
        Maximum number of epochs. If None, that of the estimator.
    """

    effort_name = "1/sigma"

    @classmethod
    def of(cls, estimator: Any, *args: Any) -> Self | None:
        """A monitor, or None if there is nothing to report to."""
        heard = ("_skl_callbacks", "_parent_callback_ctx")  # of a meta-estimator
        if estimator.verbose or any(hasattr(estimator, name) for name in heard):
            return cls(estimator, *args)
        return None

    def __init__(
        self,
        estimator: Any,
        X: Any,
        y: Any,
        attributes: Callable[[Any], dict[str, Any]],
        unit: float = 1.0,
        max_iter: int | None = None,
    ) -> None:
        self._estimator = estimator
        self._unit = unit
        self._data = {"X": X, "y": y}
        self._attributes = attributes
        self._start = time.perf_counter()
        self._epoch = 0
        self._max_iter = estimator.max_iter if max_iter is None else max_iter
        self._context: Any = None
        self._task: Any = None
        if hasattr(estimator, "_init_callback_context"):
            self._context = estimator._init_callback_context(
                max_subtasks=self._max_iter
            )
            self._context.call_on_fit_task_begin(estimator=estimator, **self._data)

    def begin(self) -> None:
        """Open a task for the epoch."""
        if self._context is not None:
            self._task = self._context.subcontext(task_name="epoch")
            self._task.call_on_fit_task_begin(estimator=self._estimator, **self._data)

    def end(self, point: Any, record: dict[str, float]) -> bool:
        """Close the task; True if a callback requests to stop."""
        self._epoch += 1
        if self._estimator.verbose:
            self._print(record)
        if self._task is None:
            return False
        return self._task.call_on_fit_task_end(
            estimator=self._estimator,
            reconstruction_attributes=lambda: self._attributes(point.theta),
            **self._data,
        )

    def finish(self, point: Any) -> None:
        """Close the task of the whole fit."""
        if self._context is not None:
            self._context.call_on_fit_task_end(
                estimator=self._estimator,
                reconstruction_attributes=lambda: self._attributes(point.theta),
                **self._data,
            )

    def _print(self, record: dict[str, float]) -> None:
        elapsed = time.perf_counter() - self._start
        rest = elapsed / self._epoch * (self._max_iter - self._epoch)
        score = record.get("validation_score")
        if self._epoch == 1:
            heading = "" if score is None else f" {'validation score':>17}"
            print(
                f"{'iter':>6} {'upper bound':>13} {'lower bound':>13} {'gap':>10} "
                f"{self.effort_name:>8}{heading} {'time':>8} {'at most':>8}"
            )
        upper, lower = (
            record[name] * self._unit for name in ("upper_bound", "lower_bound")
        )
        print(
            f"{self._epoch:6d} {upper:13.6g} {lower:13.6g} {upper - lower:10.3g} "
            f"{record['effort']:8.4g}{'' if score is None else f' {score:17.6g}'} "
            f"{clock(elapsed):>8} {clock(rest):>8}"
        )


def clock(seconds: float) -> str:
    """Format a duration: 12.34s, 4m05s, 2h13m."""
    if seconds < 60.0:
        return f"{seconds:.2f}s"
    if seconds < 3600.0:
        return "{}m{:02d}s".format(*divmod(int(seconds), 60))
    return "{}h{:02d}m".format(*divmod(int(seconds) // 60, 60))
