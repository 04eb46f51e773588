"""What the estimators share: warnings at the user's line, and their parameters."""

import email.message
import importlib.metadata
import inspect
import re
import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
    _estimator,
)
from sklearn_mm._estimator import warn_user

SHORT = {
    "robust": HalfQuadraticRobustRegressor(max_iter=1, random_state=0),
    "network": ContrastiveHebbianRegressor((4,), max_iter=1, random_state=0),
    "full batch": ContrastiveHebbianRegressor(
        (4,), max_iter=1, random_state=0, criterion="regemm"
    ),
}


def line():
    """The line of the caller."""
    return inspect.currentframe().f_back.f_lineno


def caught_by(call):
    """Places of the warnings of a call, as (file, line)."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert caught and all(w.category is ConvergenceWarning for w in caught)
    return {(w.filename, w.lineno) for w in caught}


class TestWarnings:
    def test_of_a_plain_call(self):
        with pytest.warns(ConvergenceWarning, match="hello") as caught:
            before = line()
            warn_user("hello")
        assert (caught[0].filename, caught[0].lineno) == (__file__, before + 1)

    @pytest.mark.parametrize("name", SHORT)
    def test_of_a_fit(self, contaminated, name):
        X, y = contaminated
        model = SHORT[name]
        places = caught_by(lambda: model.fit(X, y))
        assert {file for file, _ in places} == {__file__}

    @pytest.mark.parametrize("name", SHORT)
    def test_of_a_pipeline(self, contaminated, name):
        X, y = contaminated
        model = make_pipeline(StandardScaler(), SHORT[name])
        places = caught_by(lambda: model.fit(X, y))
        assert {file for file, _ in places} == {__file__}

    @pytest.mark.parametrize("name", SHORT)
    def test_of_a_grid_search(self, contaminated, name):
        X, y = contaminated
        search = GridSearchCV(SHORT[name], {"tol": [1e-12, 1e-11]}, cv=2)

        def go():
            search.fit(X, y)

        first = inspect.getsourcelines(go)[1]
        assert caught_by(go) == {(__file__, first + 1)}

    def test_of_a_subclass(self, contaminated):
        """A class of the user's is the user's code, not the package's."""
        X, y = contaminated

        class Mine(HalfQuadraticRobustRegressor):
            def fit(self, X, y):
                return super().fit(X, y)

        places = caught_by(lambda: Mine(max_iter=1, random_state=0).fit(X, y))
        inside = inspect.getsourcelines(Mine.fit)[1] + 1
        assert places == {(__file__, inside)}

    def test_of_too_few_rows(self, rng):
        X, y = rng.normal(size=(2, 5)), rng.normal(size=2)
        places = caught_by(lambda: HalfQuadraticRobustRegressor().fit(X, y))
        assert {file for file, _ in places} == {__file__}


@pytest.mark.parametrize(
    "cls",
    [
        HalfQuadraticRobustRegressor,
        ContrastiveHebbianRegressor,
        ContrastiveHebbianClassifier,
    ],
)
class TestNumberOfJobs:
    X, y = np.arange(46.0).reshape(23, 2), np.arange(23) % 2

    def test_none_at_all_is_an_error(self, cls):
        model = cls(n_jobs=0)
        before = dict(vars(model))
        with pytest.raises(ValueError, match=r"'n_jobs' parameter of .* Got 0 instead"):
            model.fit(self.X, self.y)
        assert vars(model) == before

    @pytest.mark.parametrize("n_jobs", [None, 1, 2, -1, -2, np.int64(2)])
    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    def test_all_others_are_joblibs(self, cls, n_jobs):
        cls(n_jobs=n_jobs, max_iter=1, random_state=0).fit(self.X, self.y)


class TestLinks:
    """Views in notebooks."""

    @pytest.fixture(autouse=True)
    def fresh_metadata(self):
        _estimator._doc_link_template.cache_clear()
        yield
        _estimator._doc_link_template.cache_clear()

    def addresses(self, monkeypatch, *urls):
        metadata = email.message.Message()
        for url in urls:
            metadata["Project-URL"] = url
        monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata)

    def test_without_an_address_there_are_none(self, monkeypatch):
        self.addresses(monkeypatch, "Source, https://example.org/source")
        model = SHORT["robust"]
        before = dict(vars(model))
        html = model._repr_html_()
        assert "<a" in html or "param-doc-link" not in html  # texts are kept
        assert "href" not in html
        assert "Documentation for" not in html
        assert vars(model) == before
        pipeline = make_pipeline(StandardScaler(), model)._repr_html_()
        links = re.findall(r'href="([^"]*)"', pipeline)
        assert all(link.startswith("https://scikit-learn.org") for link in links)

    def test_lead_to_the_pages_of_the_site(self, monkeypatch):
        self.addresses(monkeypatch, "Documentation, https://example.org/docs/")
        page = "https://example.org/docs/reference/sklearn_mm."
        for name, estimator in SHORT.items():
            html = estimator._repr_html_()
            assert f'href="{page}{type(estimator).__name__}.html"' in html, name

    def test_of_a_folder_that_is_not_installed(self, monkeypatch):
        def missing(name):
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "metadata", missing)
        assert SHORT["robust"]._get_doc_link() == ""
