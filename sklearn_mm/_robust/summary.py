"""Table of coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from scipy.special import stdtr

from sklearn_mm._robust.inference import Inference
from sklearn_mm._solver.roles import Array

_PENALISED = (
    "Coefficients are penalised (alpha > 0). Their bias is not known, so that tests "
    "and intervals are not available."
)
_FEW_ROWS = (
    "There are not more rows of positive weight than coefficients (sample weights "
    "count as numbers of rows). The noise scale, and therefore the standard errors, "
    "cannot be estimated."
)
_OPEN = (
    "The rows that have weight do not determine all coefficients (columns are "
    "collinear or constant there). Those without standard errors are not unique. "
    "Remove columns to make them so."
)
_EXACT = (
    "The rows that have weight lie on the fitted plane up to rounding errors, which is "
    "all that standard errors, tests and intervals reflect."
)
# Values of t from here on are written with an exponent.
_LONG = 1e5


@dataclass(frozen=True)
class RobustSummary:
    """Coefficients with standard errors, tests and intervals, and facts about the fit.

    Returned by :meth:`HalfQuadraticRobustRegressor.summary`. It is displayed as text by
    ``print`` and as HTML in notebooks.

    Parameters
    ----------
    title : str
        Name of the estimator.

    facts : tuple of (str, str)
        Names and values of facts about the fit.

    names : tuple of str
        Names of the coefficients, with the intercept last.

    columns : tuple of str
        Names of the columns of the table.

    tables : ndarray of shape (n_outputs, n_coefficients, n_columns)
        One table per output.

    notes : tuple of str
        What is not available, and the reason.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    columns: tuple[str, ...]
    tables: Array
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls, model: Any, inference: Inference, plane: Array, level: float
    ) -> RobustSummary:
        """Make the summary of a fitted model.

        Parameters
        ----------
        model : estimator
            The fitted model.
        inference : Inference
            What is known about its coefficients.
        plane : ndarray of shape (n_outputs, q)
            Coefficients, with the intercept last.
        level : float
            Probability of the intervals.
        """
        names = getattr(model, "feature_names_in_", None)
        if names is None:
            names = [f"x{j}" for j in range(model.n_features_in_)]
        names = [
            *map(str, names),
            *(["intercept"] if inference.frame.fit_intercept else []),
        ]
        columns, notes = {"estimate": plane}, []
        if inference.parts is None:
            notes.append(inference.reason)
        elif np.all(inference.freedom <= 0.0):
            notes.append(_FEW_ROWS)
        else:
            error = inference.standard_errors()
            columns["std_error"] = error
            if inference.reason:
                notes.append(_PENALISED)
            else:
                columns |= _tests(plane, error, inference, level)
            if np.any(inference.freedom <= 0.0):
                notes.append(_FEW_ROWS)
            if np.isnan(error).any():
                notes.append(_OPEN)
            if inference.exact:
                notes.append(_EXACT)
        return cls(
            type(model).__name__,
            tuple(_facts(model, inference, level)),
            tuple(names),
            tuple(columns),
            np.stack(list(columns.values()), axis=-1),
            tuple(notes),
        )

    def to_frame(self) -> Any:
        """Convert the table to a pandas data frame.

        Returns
        -------
        frame : pandas.DataFrame
            One row per coefficient. With several outputs, rows are indexed by output
            and coefficient.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn_mm import HalfQuadraticRobustRegressor
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(100, 1))
        >>> y = 2.0 * X[:, 0] + 1.0 + rng.normal(size=100)
        >>> model = HalfQuadraticRobustRegressor(random_state=0).fit(X, y)
        >>> frame = model.summary().to_frame()  # doctest: +SKIP
        >>> frame.loc["x0", ["lower", "upper"]]  # doctest: +SKIP
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError(
                "to_frame requires pandas. Install it with `pip install pandas`."
            ) from error
        index: Any = pd.Index(self.names, name="coefficient")
        if len(self.tables) > 1:
            index = pd.MultiIndex.from_product(
                [range(len(self.tables)), self.names], names=["output", "coefficient"]
            )
        values = self.tables.reshape(-1, len(self.columns))
        return pd.DataFrame(values, index=index, columns=list(self.columns))

    def __str__(self) -> str:
        width = max(len(name) for name, _ in self.facts)
        lines = [self.title, "=" * len(self.title)]
        lines += [f"{name + ':':{width + 1}} {value}" for name, value in self.facts]
        for output, table in enumerate(self.tables):
            lines.append("")
            if len(self.tables) > 1:
                lines.append(f"Output {output}")
            cells = [["", *self.columns], *self._cells(table)]
            widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
            for first, *rest in cells:
                texts = (f"{x:>{w}}" for x, w in zip(rest, widths[1:], strict=True))
                lines.append("  ".join([f"{first:<{widths[0]}}", *texts]))
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [f"<strong>{escape(self.title)}</strong><table>"]
        for name, value in self.facts:
            parts.append(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>")
        parts.append("</table>")
        for output, table in enumerate(self.tables):
            if len(self.tables) > 1:
                parts.append(f"<p>Output {output}</p>")
            head = "".join(f"<th>{escape(c)}</th>" for c in ("", *self.columns))
            parts.append(f"<table><tr>{head}</tr>")
            for first, *rest in self._cells(table):
                cells = "".join(f"<td>{escape(x)}</td>" for x in rest)
                parts.append(f"<tr><th>{escape(first)}</th>{cells}</tr>")
            parts.append("</table>")
        parts += [f"<p>{escape(note)}</p>" for note in self.notes]
        return "".join(parts)

    def _cells(self, table: Array) -> list[list[str]]:
        return [
            [name, *(_text(c, v) for c, v in zip(self.columns, row, strict=True))]
            for name, row in zip(self.names, table, strict=True)
        ]


def _tests(
    plane: Array, error: Array, inference: Inference, level: float
) -> dict[str, Array]:
    """Columns with intervals and tests of the hypothesis that coefficients are zero."""
    freedom = inference.freedom[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        t = plane / error
        p = 2.0 * stdtr(np.where(freedom > 0.0, freedom, np.nan), -np.abs(t))
        half = inference.quantile(level)[:, None] * error
    return {
        "t": t,
        "p_value": p,
        "lower": plane - half,
        "upper": plane + half,
    }


def _facts(model: Any, inference: Inference, level: float) -> list[tuple[str, str]]:
    mask = getattr(model, "inlier_mask_", None)
    if mask is None:  # it was not pickled with the model
        rows = f"sum of sample weights {inference.n_rows:.6g}"
    else:
        n, flagged = len(mask), int(np.sum(~mask))
        rows = f"{n} ({flagged} flagged as outliers)"
        if not np.isclose(inference.n_rows, n):
            rows += f"; sum of sample weights {inference.n_rows:.6g}"
    upper, lower = (
        float(model.history_[name][-1]) for name in ("upper_bound", "lower_bound")
    )
    kernel, _ = model._fitted_kernel
    facts = [
        ("Rows", rows),
        ("Noise scale", _list(model.scale_)),
        ("Robust R²", _r2(inference)),
        ("Kernel", kernel.name or type(kernel).__name__),
        ("Criterion", f"{_name(model._fitted_criterion)}, {model.n_iter_} iterations"),
        ("Certificate", f"objective in [{lower:.6g}, {upper:.6g}]"),
    ]
    if inference.interpolates:  # all residuals are zero, whatever the noise
        del facts[1:3]
    if inference.parts is not None:
        freedom = _list(inference.freedom)
        noun = "degree" if freedom == "1" else "degrees"
        facts.append(
            ("Covariance", f"{inference.cov_type}, {freedom} {noun} of freedom")
        )
        if not inference.reason and np.any(inference.freedom > 0.0):
            facts.append(("Intervals", f"{100 * level:g} %"))
    return facts


def _r2(inference: Inference) -> str:
    r2 = inference.robust_r2
    if inference.parts is None:
        return _list(r2)
    m = np.array([part.n_rows for part in inference.parts])
    q = np.array([part.n_parameters for part in inference.parts])
    if np.any(m <= q):
        return _list(r2)
    # R² refers to the mean of the targets, with or without an intercept.
    adjusted = 1.0 - (1.0 - r2) * (m - 1.0) / (m - q)
    return f"{_list(r2)} (adjusted {_list(adjusted)})"


def _list(values: Any) -> str:
    return ", ".join(f"{value:.4g}" for value in np.atleast_1d(values))


def _name(criterion: Any) -> str:
    return criterion if isinstance(criterion, str) else type(criterion).__name__


def _text(column: str, value: float) -> str:
    if column == "p_value":
        return "<0.001" if value < 0.001 else f"{value:.3f}"
    short = column == "t" and abs(value) < _LONG
    return f"{value:.2f}" if short else f"{value:.5g}"
