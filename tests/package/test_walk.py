"""A small fit, walked as a stranger would read it.

The package's functions are listed in the order in which one fit first visits them. How
often that list changes from one file to another is how often a reader who follows the
fit has to open another file: limits keep that from growing unnoticed.

``python tests/package/test_walk.py robust`` prints the walk of an estimator.
"""

import itertools
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import sklearn_mm
from sklearn_mm import (
    ContrastiveHebbianClassifier,
    HalfQuadraticRobustRegressor,
    robust_least_squares,
)

PACKAGE = Path(sklearn_mm.__file__).parent


def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 3))
    y = X @ [1.0, 2.0, 3.0] + 0.1 * rng.normal(size=100)
    y[::5] += 10.0
    return X, y


def fit_robust():
    X, y = data()
    HalfQuadraticRobustRegressor(random_state=0).fit(X, y)


def fit_classifier():
    X, y = data()
    ContrastiveHebbianClassifier((8,), max_iter=3, random_state=0).fit(X, y > 0)


def fit_least_squares():
    X, y = data()
    robust_least_squares(lambda theta: y - X @ theta, np.zeros(3), tau=1.0)


FITS = {
    "robust": fit_robust,
    "classifier": fit_classifier,
    "least_squares": fit_least_squares,
}


def walk(fit):
    """Functions of the package, (file, name), in the order of their first visit."""
    visited = {}

    def visit(frame, event, _):
        code = frame.f_code
        if event == "call" and code not in visited:
            path = Path(code.co_filename)
            if path.is_relative_to(PACKAGE) and code.co_name != "<module>":
                visited[code] = (str(path.relative_to(PACKAGE)), code.co_qualname)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fit()  # what is imported or computed once in a process is no part of it
        sys.setprofile(visit)
        try:
            fit()
        finally:
            sys.setprofile(None)
    return list(visited.values())


def changes(visits):
    """How often the file changes."""
    return sum(a[0] != b[0] for a, b in itertools.pairwise(visits))


# Files to open on the way; a little more than it takes today.
LIMITS = {"robust": 111, "classifier": 110, "least_squares": 58}


@pytest.mark.parametrize("name", FITS)
def test_a_reader_need_not_change_files_more_often(name):
    visits = walk(FITS[name])
    assert len(visits) > 50  # it was a walk
    assert changes(visits) <= LIMITS[name]


if __name__ == "__main__":
    for name in sys.argv[1:] or FITS:
        visits = walk(FITS[name])
        for i, (path, function) in enumerate(visits):
            new = i == 0 or visits[i - 1][0] != path
            print(f"{path if new else '':32} {function}")
        n_files = len({path for path, _ in visits})
        print(
            f"{name}: {n_files} files, {len(visits)} functions, {changes(visits)} "
            "changes of file\n"
        )
