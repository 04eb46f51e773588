"""Every estimator in every mode, on small data: for tests that go through them all."""

import numpy as np
from sklearn.base import clone, is_classifier

from sklearn_mm import (
    ContrastiveHebbianClassifier,
    ContrastiveHebbianRegressor,
    HalfQuadraticRobustRegressor,
)
from sklearn_mm.criteria import Graduated, RelaxedGeneralized, SufficientDescent
from sklearn_mm.kernels import KERNELS, Tukey

# Chunks smaller than the data: there is work to share out.
_ROBUST = {"chunk_size": 64}
_HEBBIAN = {"hidden_layer_sizes": (5, 4), "max_iter": 4, "chunk_size": 64}
_HEBBIAN_MODES = {
    "mini-batch": {"batch_size": 50},
    "fixed": {"criterion": "fixed", "solver": "sgd"},
    "full-batch": {"batch_size": None},
    "gd": {"solver": "gd"},
    "regemm": {"criterion": "regemm", "solver": "gd"},
    "alternating": {"criterion": "alternating"},
    "coordinate": {"inference": "coordinate", "feedback": 1.0},
    "early stopping": {"early_stopping": True},
    "invscaling": {"solver": "sgd", "learning_rate": "invscaling", "momentum": 0.0},
    "object": {"criterion": SufficientDescent(0.2)},
}

MODES = {
    **{
        f"robust {name}": HalfQuadraticRobustRegressor(**_ROBUST, **mode)
        for name, mode in {
            "regemm": {},
            "sudemm": {"criterion": "sudemm"},
            "fixed": {"criterion": "fixed", "alpha": 1.0},
            "ols": {"init": "ols", "fit_intercept": False},
            "objects": {"kernel": Tukey(), "criterion": Graduated(n_levels=3)},
            "window": {"criterion": RelaxedGeneralized(0.25, 0.5), "scale": 0.1},
            **{name: {"kernel": name} for name in sorted(KERNELS)},
        }.items()
    },
    **{
        f"{cls.__name__} {name}": cls(**_HEBBIAN, **mode)
        for cls in (ContrastiveHebbianRegressor, ContrastiveHebbianClassifier)
        for name, mode in _HEBBIAN_MODES.items()
    },
}


def data_for(model, n_rows=200, dtype=np.float64):
    """Rows on a plane, a third of them moved away from it; classes for classifiers."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 3))
    y = X @ [1.0, -2.0, 0.5] + 3.0 + 0.1 * rng.normal(size=n_rows)
    y[: n_rows // 3] += 20.0
    if is_classifier(model):
        return X.astype(dtype), np.where(X[:, 0] * X[:, 1] > 0, "same", "other")
    return X.astype(dtype), y.astype(dtype)


def fit(model, method="fit", n_calls=1, **params):
    """A fitted copy with a seed; a few epochs give a ConvergenceWarning."""
    model = clone(model).set_params(**{"random_state": 0, **params})
    X, y = data_for(model)
    first = {}
    if method == "partial_fit" and is_classifier(model):
        first = {"classes": np.unique(y)}
    for _ in range(n_calls):
        getattr(model, method)(X, y, **first)
    return model


def results(model):
    """All that a fitted estimator answers with, and all that it has learnt."""
    X, y = data_for(model)
    answers = {"predict": model.predict(X)}
    if hasattr(model, "bounds"):
        answers["bounds"] = np.array(model.bounds(X, y))
    if hasattr(model, "predict_proba"):
        answers["predict_proba"] = model.predict_proba(X)
    for name, value in vars(model).items():
        if not name.endswith("_") or name == "history_":
            continue
        parts = value if isinstance(value, list) else [value]
        answers |= {f"{name}[{i}]": np.asarray(part) for i, part in enumerate(parts)}
    for name, column in model.history_.items():
        if name != "time":
            answers[f"history_.{name}"] = column
    return answers


def assert_same(found, expected):
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(found[name], value, equal_nan=value.dtype.kind == "f"), (
            name
        )
