"""What the data cannot tell, said to the user with a remedy."""

from __future__ import annotations

from sklearn_mm._estimator import warn_user
from sklearn_mm._robust.start.decision import Start
from sklearn_mm._robust.start.search import Verdict


def warn_of_data(start: Start, shape: tuple[int, int], penalised: bool) -> None:
    """Warn where a start rests on less than it should."""
    n, p = shape
    verdict = start.verdict
    if Verdict.UNDETERMINED in verdict and not penalised:
        warn_user(
            f"With n_samples={n} and n_features={p} the rows do not show which of them "
            "are outliers: the fit is least squares of minimum norm. Pass more rows, "
            "fewer features, or alpha > 0."
        )
    if Verdict.FEW_ROWS in verdict and not penalised:
        warn_user(
            f"With n_samples={n} and n_features={p} there are at most two rows "
            "per parameter: only few outliers can be told from the others. Pass more "
            "rows, fewer features, or alpha > 0."
        )
    if Verdict.OVERFITTED in verdict:
        warn_user(
            f"With n_samples={n} and n_features={p} the penalty leaves so many "
            "parameters that a constant predicts y better than the plane does: rows "
            "are judged by y alone. Pass a larger alpha, more rows or fewer features."
        )
    if Verdict.MINORITY in verdict:
        warn_user(
            f"Only {100 * start.share:.0f} % of the rows follow the fitted plane: the "
            "others may follow another one. Look at the residuals (RobustFitDisplay), "
            "and pass scale or init if you know better."
        )
    if Verdict.EXACT in verdict:
        warn_user(
            f"{100 * start.share:.0f} % of the rows lie exactly on the fitted plane, "
            "so that scale_ is zero but for rounding. If y has a code for missing "
            "values, leave these rows out; or pass scale."
        )
