"""numpydoc's rules for everything public."""

import inspect
import math
import re

import numpy as np
import pytest

import sklearn_mm
from sklearn_mm import criteria, kernels, metrics

numpydoc = pytest.importorskip("numpydoc.validate")
docscrape = pytest.importorskip("numpydoc.docscrape")

# What the style leaves open: extended summaries, examples on small objects, final
# periods of types, and the order of sections that scikit-learn uses as well.
IGNORED = {"ES01", "SA01", "EX01", "GL01", "GL02", "GL03", "RT02", "SA04", "PR01"}
METHODS = (
    "fit",
    "predict",
    "partial_fit",
    "from_estimator",
    "plot",
    "conf_int",
    "predict_interval",
    "summary",
    "confidence",
    "inlier_mask",
)


def _is_ours(base):
    return base.__module__.startswith("sklearn_mm")


def public():
    for module in (sklearn_mm, criteria, kernels, metrics):
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                yield f"{thing.__module__}.{thing.__qualname__}"
                if inspect.isclass(thing):
                    own = set().union(
                        *(vars(base) for base in thing.__mro__ if _is_ours(base))
                    )
                    for method in METHODS:
                        if method in own:
                            yield f"{thing.__module__}.{thing.__qualname__}.{method}"


@pytest.mark.parametrize("name", sorted(set(public())))
def test_numpydoc(name):
    errors = numpydoc.validate(name)["errors"]
    assert [error for error in errors if error[0] not in IGNORED] == []


@pytest.mark.parametrize(
    "name", sorted({*public(), "sklearn_mm.kernels.Kernel.tuning_constant"})
)
def test_defaults_are_the_documented_ones(name):
    thing = numpydoc.Validator._load_obj(name)
    parameters = inspect.signature(thing).parameters
    for names, kind, _ in docscrape.get_doc_object(thing)["Parameters"]:
        told = re.search(r"default=(.+)", kind)
        if told:
            values = [
                eval(value, {"inf": math.inf}) for value in told[1].split(" and ")
            ]
            found = [parameters[each].default for each in names.split(", ")]
            # One value may be that of all.
            assert found == values * (len(found) // len(values))


@pytest.mark.parametrize("kernel", kernels.KERNELS.values(), ids=lambda k: k.name)
def test_formulas_of_kernels_are_documented(kernel):
    for name, method in vars(type(kernel)).items():
        if inspect.isfunction(method) and not name.startswith("__"):
            assert method.__doc__, name
    # Formulas between ticks are those of the code.
    z, u = np.linspace(0.0, 1.0, 5), np.linspace(0.1, 1.0, 5)
    for name in ("loss", "weight", "penalty", "penalty_slope"):
        method = vars(type(kernel)).get(name)
        formula = re.match(r"``(.+?)``", method.__doc__) if method else None
        if formula:
            names = {"sqrt": np.sqrt, "exp": np.exp, "log": np.log, "z": z, "u": u}
            value = getattr(kernel, name)(u if name.startswith("penalty") else z)
            np.testing.assert_allclose(value, eval(formula[1], names), atol=1e-15)


def test_help_opens_with_what_the_package_offers():
    text = sklearn_mm.__doc__
    offered = [name for name in sklearn_mm.__all__ if name != "__version__"]
    assert all(f"`{name}`" in text for name in offered)
    assert text.index("HalfQuadraticRobustRegressor") < text.index("pickle")
