"""Warnings about questions that the data cannot answer."""

from __future__ import annotations

from sklearn_mm._estimator import warn_user
from sklearn_mm._robust.start.decision import Start
from sklearn_mm._robust.start.search import Verdict


def warn_of_data(start: Start, shape: tuple[int, int], penalised: bool) -> None:
    """Warn if the data do not support the chosen start well enough."""
    n, p = shape
    verdict = start.verdict
    if Verdict.UNDETERMINED in verdict and not penalised:
        warn_user(
            f"With n_samples={n} and n_features={p}, the data do not show which rows "
            "are outliers. The fit is the least-squares solution of minimum norm. Pass "
            "more rows, fewer features, or alpha > 0."
        )
    if Verdict.FEW_ROWS in verdict and not penalised:
        warn_user(
            f"With n_samples={n} and n_features={p}, there are at most two rows "
            "per parameter. Only a few outliers can be distinguished from other rows. "
            "Pass more rows, fewer features, or alpha > 0."
        )
    if Verdict.OVERFITTED in verdict:
        warn_user(
            f"With n_samples={n} and n_features={p}, the penalty is so weak that a "
            "constant predicts y better than the fitted plane. Outliers are determined "
            "from y alone. Pass a larger alpha, more rows or fewer features."
        )
    if Verdict.MINORITY in verdict:
        warn_user(
            f"Only {100 * start.share:.0f}% of the rows follow the fitted plane. The "
            "others may follow another one. Inspect the residuals (RobustFitDisplay), "
            "and pass scale or init if they are known."
        )
    if Verdict.NARROW in verdict:
        warn_user(
            f"Only {100 * start.share:.0f}% of the rows are close to the fitted plane "
            "in units of the given scale. It may be too small, or in other units "
            "than y. Pass scale='auto' to estimate it."
        )
    if Verdict.EXACT in verdict:
        warn_user(
            f"{100 * start.share:.0f}% of the rows lie exactly on the fitted plane, "
            "so that scale_ is zero up to rounding. If y contains a code for missing "
            "values, remove these rows. Otherwise, pass scale."
        )


def warn_of_open_directions(n_rows: int) -> None:
    """Warn that all rows that would determine some coefficients have been rejected."""
    warn_user(
        f"Some coefficients are not determined by the rows that have weight, and "
        f"the predictions of {n_rows} training rows, which are taken for outliers, "
        "depend on them. Inspect these rows (inlier_mask_); if they are valid, "
        "pass a larger scale or init='ols'."
    )
