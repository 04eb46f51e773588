"""What the estimators share: mixins, progress, keeping state on errors."""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import inspect
import re
import time
import warnings
from numbers import Integral
from typing import Any

from sklearn.exceptions import ConvergenceWarning, InconsistentVersionWarning
from sklearn.utils import Bunch
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions

import sklearn_mm  # for the version, which is set after this module is imported
from sklearn_mm._rows.sources import is_dask
from sklearn_mm._rows.workers import kept_threads
from sklearn_mm._solver.loop import Status
from sklearn_mm._solver.roles import Monitor

try:  # scikit-learn >= 1.9; the only place in the package that knows
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Stand-in for versions without callbacks: there is nothing to support."""


class DocumentedMixin:
    """Views in notebooks that show and link to the documentation.

    scikit-learn shows what parameters and attributes mean only next to a link. Links
    lead to the pages whose address the package was installed with. Without an address,
    an estimator's own view still shows the texts, but has no links.
    """

    _doc_link_module = "sklearn_mm"

    @property
    def _doc_link_template(self):
        return self.__dict__.get(_LINK) or _doc_link_template()

    @_doc_link_template.setter
    def _doc_link_template(self, value):
        self.__dict__[_LINK] = value

    def _html_repr(self):
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
    """Pages of estimators, by the address of the site in the package's metadata."""
    try:
        metadata = importlib.metadata.metadata("sklearn-mm")
    except importlib.metadata.PackageNotFoundError:  # run from a folder of sources
        return ""
    for entry in metadata.get_all("Project-URL") or []:
        label, _, address = entry.partition(", ")
        if label == "Documentation":
            page = "reference/{estimator_module}.{estimator_name}.html"
            return f"{address.rstrip('/')}/{page}"
    return ""


class PersistentMixin:
    """Pickles with the version of the package, and a warning where it is another one.

    scikit-learn does so for its own estimators. The record of the run, a `Bunch`, is
    written as a dictionary: safe formats then meet types of this package only. Results
    for rows that lie on a cluster stay there: they are left out.
    """

    def __getstate__(self):
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[call-overload]
        state[_VERSION_KEY] = sklearn_mm.__version__
        state = {name: value for name, value in state.items() if not is_dask(value)}
        if isinstance(state.get("history_"), Bunch):
            state["history_"] = dict(state["history_"])
        return state

    def __setstate__(self, state):
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


_VERSION_KEY = "_sklearn_mm_version"

# What an object must offer to be taken for a criterion.
_CRITERION_METHODS = ["satisfied", "attainable", "excessive", "prescribe", "converged"]

# Constraints of a parameter `n_jobs`: joblib's numbers of workers, of which 0 is none.
N_JOBS = [
    None,
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
]


def criterion_options(*names):
    """Constraints of a parameter `criterion` that knows these names."""
    return [StrOptions(set(names)), HasMethods(_CRITERION_METHODS)]


def keep_state_on_error(fit):
    """Decorate a fit method so that an error leaves the estimator as it was.

    Goes above `_fit_context`, so that callbacks are torn down before. Threads that the
    fit starts end with it.
    """

    @functools.wraps(fit)
    def wrapper(self, *args, **kwargs):
        state = dict(self.__dict__)
        try:
            with kept_threads():
                return fit(self, *args, **kwargs)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(state)
            raise

    return wrapper


def warn_user(message: str) -> None:
    """Warn at the line of the user's that called into the package."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and _is_internal(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, ConvergenceWarning, stacklevel=level)


def _is_internal(frame):
    name = frame.f_globals.get("__name__", "")
    return name.split(".")[0] in ("sklearn_mm", "sklearn", "joblib", "contextlib")


def warn_unless_converged(estimator, status):
    """Name the parameter to raise when a run ended at its cap or was cut short."""
    name = type(estimator).__name__
    if status is Status.INTERRUPTED:
        warn_user(
            f"{name} was interrupted. The last finished update is kept; set "
            "warm_start=True to go on from it."
        )
    if status is Status.MAX_ITER:
        warn_user(
            f"{name} did not converge in max_iter={estimator.max_iter} iterations: "
            f"{status.value}. Increase max_iter, or increase tol (now "
            f"{estimator.tol:g})."
        )


class FitMonitor(Monitor):
    """Tells scikit-learn's callbacks and, if verbose, the user of every epoch.

    Parameters
    ----------
    estimator : estimator
        The one being fitted.
    X, y : array-like
        Training data, handed to callbacks.
    attributes : callable
        Maps theta to the fitted attributes that make `predict` work.
    unit : float, default=1.0
        One in the solver's objective is this much in the user's.
    max_iter : int, default=None
        Largest number of epochs; that of the estimator by default.
    """

    effort_name = "1/sigma"

    @classmethod
    def of(cls, estimator, *args):
        """A monitor, or None if there is nobody to tell."""
        heard = ("_skl_callbacks", "_parent_callback_ctx")  # of a meta-estimator
        if estimator.verbose or any(hasattr(estimator, name) for name in heard):
            return cls(estimator, *args)
        return None

    def __init__(self, estimator, X, y, attributes, unit=1.0, max_iter=None):
        self._estimator = estimator
        self._unit = unit
        self._data = {"X": X, "y": y}
        self._attributes = attributes
        self._start = time.perf_counter()
        self._epoch = 0
        self._max_iter = estimator.max_iter if max_iter is None else max_iter
        self._context = self._task = None
        if hasattr(estimator, "_init_callback_context"):
            self._context = estimator._init_callback_context(
                max_subtasks=self._max_iter
            )
            self._context.call_on_fit_task_begin(estimator=estimator, **self._data)

    def begin(self):
        """Open a task for the epoch."""
        if self._context is not None:
            self._task = self._context.subcontext(task_name="epoch")
            self._task.call_on_fit_task_begin(estimator=self._estimator, **self._data)

    def end(self, point, record):
        """Close it; True if a callback asks to stop."""
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

    def finish(self, point):
        """Close the task of the whole fit."""
        if self._context is not None:
            self._context.call_on_fit_task_end(
                estimator=self._estimator,
                reconstruction_attributes=lambda: self._attributes(point.theta),
                **self._data,
            )

    def _print(self, record):
        elapsed = time.perf_counter() - self._start
        rest = elapsed / self._epoch * (self._max_iter - self._epoch)
        if self._epoch == 1:
            print(
                f"{'iter':>6} {'upper bound':>13} {'lower bound':>13} {'gap':>10} "
                f"{self.effort_name:>8} {'time':>8} {'at most':>8}"
            )
        upper, lower = (
            record[name] * self._unit for name in ("upper_bound", "lower_bound")
        )
        print(
            f"{self._epoch:6d} {upper:13.6g} {lower:13.6g} {upper - lower:10.3g} "
            f"{record['effort']:8.4g} {clock(elapsed):>8} {clock(rest):>8}"
        )


def clock(seconds):
    """A duration in a few characters: 12.34s, 4m05s, 2h13m."""
    if seconds < 60.0:
        return f"{seconds:.2f}s"
    if seconds < 3600.0:
        return "{}m{:02d}s".format(*divmod(int(seconds), 60))
    return "{}h{:02d}m".format(*divmod(int(seconds) // 60, 60))
