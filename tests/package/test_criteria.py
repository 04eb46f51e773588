"""What criteria say of given bounds, whatever the problem."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from sklearn_mm import HalfQuadraticRobustRegressor, criteria
from sklearn_mm._solver import roles
from sklearn_mm.baselines import Alternating, Joint
from sklearn_mm.criteria import (
    CRITERIA,
    Bounds,
    Criterion,
    Fixed,
    Graduated,
    Memory,
    Moved,
    RelaxedGeneralized,
    SufficientDescent,
    Trial,
    get_criterion,
)
from sklearn_mm.kernels import Tukey

COMPARING = [
    RelaxedGeneralized(),
    RelaxedGeneralized(0.1, 0.2),
    SufficientDescent(),
    SufficientDescent(0.9, power_t=1.2),
]
TOL = 1e-3


def trial_of(upper, lower, decrease=0.0, gap_curvature=0.0):
    bounds = Bounds(upper, lower, gap_curvature=gap_curvature)
    return Trial(bounds, 1.0, propose=lambda trial: roles.Proposal(decrease))


def verdicts(criterion, trial, memory, moved):
    return (
        criterion.satisfied(trial, memory),
        criterion.attainable(trial, memory),
        criterion.excessive(trial, memory),
        criterion.converged(trial, moved, memory, TOL),
    )


@pytest.mark.parametrize("criterion", [*COMPARING, Fixed(3), Graduated(2, 3), Joint()])
def test_units_of_the_objective_do_not_matter(criterion, rng):
    for _ in range(500):
        # Numbers of any size, zero among them; powers of two, which round nothing.
        numbers = 10.0 ** rng.uniform(-14, 2, size=6) * (rng.random(6) < 0.8)
        lower, gap, previous, first, decrease, change = numbers
        iteration = int(rng.integers(8))
        found = [
            verdicts(
                criterion,
                trial_of(unit * (lower + gap), unit * lower, unit * decrease),
                Memory(unit * previous, unit * first, iteration),
                Moved(np.zeros(1), change),
            )
            for unit in (1.0, 2.0**-70, 2.0**30)
        ]
        assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("criterion", COMPARING)
def test_a_model_that_fits_exactly(criterion):
    """Every number is zero: nothing is left to infer, and the run ends."""
    memory = Memory(0.0, 0.0, iteration=1)
    moved = Moved(np.zeros(1), change=1.0)
    trial = trial_of(0.0, 0.0)
    assert verdicts(criterion, trial, memory, moved) == (True, False, False, True)
    refused = replace(moved, accepted=False)
    assert not criterion.converged(trial, refused, memory, TOL)


@pytest.mark.parametrize("eta", [0.2, 0.5, 0.9])
@given(lower=st.floats(0.0, 2.0), gap=st.floats(0.0, 2.0), previous=st.floats(0.0, 2.0))
def test_regemm_is_the_inequality_of_the_paper(eta, lower, gap, previous):
    criterion = RelaxedGeneralized(eta, 1.0)
    trial, memory = trial_of(lower + gap, lower), Memory.start(previous)
    c = previous - lower
    # The fall of the upper bound is a fraction of c; where c is negative, the gap is
    # one of its size.
    excess = lower + gap - (previous - eta * c) if c >= 0 else gap + (1 - eta) * c
    if abs(excess) > 1e-12:
        assert criterion.satisfied(trial, memory) == (excess < 0)


def test_regemm_compares_from_the_second_round_on():
    criterion, moved = RelaxedGeneralized(), Moved(np.zeros(1), 1.0)
    trial, memory = trial_of(1.0, 1.0), Memory.start(1.0)
    assert not criterion.converged(trial, moved, memory, TOL)
    memory = memory.after(trial, accepted=True)
    assert criterion.converged(trial, moved, memory, TOL)
    # A step that has raised J by much is no convergence.
    raised = trial_of(3.0, 3.0)
    assert not criterion.converged(raised, moved, memory, TOL)


def test_sudemm_goes_on_where_a_tiny_gap_spoils_the_gradient():
    criterion, memory = SufficientDescent(), Memory.start(1.0)
    tiny = 1.0 + 1e-14
    assert criterion.attainable(trial_of(tiny, 1.0, 1e-20, 1.0), memory)
    assert not criterion.attainable(trial_of(tiny, 1.0, 1e-20, 0.0), memory)
    assert not criterion.attainable(trial_of(tiny, 1.0, 0.0, 1.0), memory)
    assert criterion.attainable(trial_of(1.1, 1.0), memory)


def test_sudemm_stops_when_theta_stands_or_nothing_is_gained():
    criterion, memory = SufficientDescent(), Memory.start(1.0)
    still, moving = Moved(np.zeros(1), TOL / 2), Moved(np.zeros(1), 1.0)
    little, much = trial_of(1.0, 1.0, TOL / 2), trial_of(1.0, 1.0, 2 * TOL)
    assert criterion.converged(little, moving, memory, TOL)
    assert criterion.converged(much, still, memory, TOL)
    assert not criterion.converged(much, moving, memory, TOL)


def test_defaults_are_those_that_the_proofs_allow():
    assert SufficientDescent().rho < 1.0
    criterion = RelaxedGeneralized()
    assert 0.0 < criterion.eta < criterion.eta_prime < 1.0


def test_only_regemm_compares_rounds():
    known = (*COMPARING, Fixed(), Graduated(), Joint())
    assert [c for c in known if c.needs_full_batch] == COMPARING[:2]
    # Which the baseline that keeps latents does not, but it needs all rows as well.
    assert Alternating.needs_full_batch


def test_base_class():
    criterion, memory = Criterion(), Memory.start(1.0)
    trial, moved = trial_of(2.0, 1.0), Moved(np.zeros(1), TOL)
    with pytest.raises(NotImplementedError):
        criterion.satisfied(trial, memory)
    assert criterion.attainable(trial, memory)
    assert not criterion.excessive(trial, memory)
    assert criterion.prescribe(memory) is None
    assert criterion.converged(trial, moved, memory, TOL)
    assert not criterion.converged(trial, replace(moved, change=2 * TOL), memory, TOL)
    assert not criterion.converged(trial, replace(moved, accepted=False), memory, TOL)


@pytest.mark.parametrize(
    ("criterion", "effort"),
    [
        (Fixed(), None),
        (Fixed(7), 7),
        (Joint(), 0.0),
        (Alternating(), None),
        (Alternating(7), None),
    ],
)
def test_criteria_that_look_at_no_bounds(criterion, effort):
    memory = Memory.start(1.0)
    assert criterion.satisfied(trial_of(2.0, 1.0), memory) is True
    assert criterion.prescribe(memory) == effort


class TestNames:
    """The one registry of names."""

    def test_each_name_is_a_criterion(self):
        for name, cls in CRITERIA.items():
            assert type(get_criterion(name)) is cls

    def test_constants(self):
        assert get_criterion("regemm", eta=0.2, eta_prime=0.3) == RelaxedGeneralized(
            0.2, 0.3
        )
        assert get_criterion("sudemm", rho=0.1, power_t=2.0) == SufficientDescent(
            0.1, 2.0
        )
        assert get_criterion("fixed", effort=3.0) == Fixed(3.0)
        found = get_criterion("graduated", n_iter_per_level=8)
        assert found == Graduated(n_iter_per_level=8)

    def test_defaults_are_those_of_the_classes(self):
        for name, cls in CRITERIA.items():
            assert get_criterion(name) == cls()

    def test_objects_stay_what_they_are(self):
        for criterion in (*COMPARING, Fixed(7), Graduated(2, 3), Joint()):
            found = get_criterion(criterion, eta=0.1, rho=0.1, effort=5.0)
            assert found is criterion

    def test_an_effort_that_is_left_open_is_filled_in(self):
        assert get_criterion(Fixed(), effort=4.0) == Fixed(4.0)
        assert get_criterion(Fixed(0.0), effort=4.0) == Fixed(0.0)

    @pytest.mark.parametrize("name", ["", "ReGeMM", "irls", "joint"])
    def test_unknown_names(self, name):
        with pytest.raises(ValueError, match="criterion must be one of") as told:
            get_criterion(name)
        assert all(known in str(told.value) for known in CRITERIA)

    def test_classes(self):
        with pytest.raises(ValueError, match=r"pass Graduated\(\) instead"):
            get_criterion(Graduated)

    def test_what_criteria_of_users_need_is_public(self):
        for name in ("Bounds", "Memory", "Moved", "Trial"):
            assert name in criteria.__all__
            assert getattr(criteria, name) is getattr(roles, name)


class TestCriteria:
    def test_schedule_of_rho(self):
        criterion = SufficientDescent(0.4, power_t=2.0)
        assert criterion.rho_at(0) == 0.4
        assert criterion.rho_at(1) == pytest.approx(0.1)

    def test_graduated_halves_the_width_down_to_the_given_one(self):
        criterion = Graduated(n_levels=3, n_iter_per_level=2)
        efforts = [criterion.prescribe(Memory(1.0, 1.0, i)) for i in range(10)]
        widths = 1.0 / np.array(efforts)
        assert_array_equal(widths, [8.0, 8.0, 4.0, 4.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0])
        # No bound is asked for.
        loose = Trial(Bounds(1.0, 0.0, None), efforts[0])
        assert criterion.satisfied(loose, Memory(1.0, 1.0, 0)) is True

    def test_graduated_does_not_stop_early(self):
        criterion = Graduated(n_levels=2, n_iter_per_level=3)
        moved = Moved(np.zeros(1), change=0.0)
        assert not criterion.converged(None, moved, Memory(1.0, 1.0, 5), 1e-3)
        assert criterion.converged(None, moved, Memory(1.0, 1.0, 6), 1e-3)

    @pytest.mark.parametrize(
        ("cls", "params", "name"),
        [
            (RelaxedGeneralized, {"eta": 5}, "eta"),
            (RelaxedGeneralized, {"eta": 0.0}, "eta"),
            (RelaxedGeneralized, {"eta": 1.0}, "eta"),
            (RelaxedGeneralized, {"eta": np.nan}, "eta"),
            (RelaxedGeneralized, {"eta": "half"}, "eta"),
            (RelaxedGeneralized, {"eta": 0.5, "eta_prime": 0.5}, "eta_prime"),
            (RelaxedGeneralized, {"eta_prime": 1.1}, "eta_prime"),
            (SufficientDescent, {"rho": -1}, "rho"),
            (SufficientDescent, {"rho": 0.0}, "rho"),
            (SufficientDescent, {"rho": np.inf}, "rho"),
            (SufficientDescent, {"power_t": -0.5}, "power_t"),
            (SufficientDescent, {"power_t": None}, "power_t"),
            (Fixed, {"effort": -1}, "effort"),
            (Fixed, {"effort": np.nan}, "effort"),
            (Fixed, {"effort": "all"}, "effort"),
            (Graduated, {"n_iter_per_level": 0}, "n_iter_per_level"),
            (Graduated, {"n_iter_per_level": 2.0}, "n_iter_per_level"),
            (Graduated, {"n_levels": -1}, "n_levels"),
        ],
    )
    def test_parameters_are_checked(self, cls, params, name):
        value = params[name]
        with pytest.raises(ValueError, match=f"{cls.__name__}: {name} must be") as told:
            cls(**params)
        assert str(told.value).endswith(f"got {value!r}.")

    def test_classes_are_not_objects(self):
        for params in ({"criterion": Fixed}, {"kernel": Tukey}):
            (cls,) = params.values()
            with pytest.raises(ValueError, match=rf"pass {cls.__name__}\(\) instead"):
                HalfQuadraticRobustRegressor(**params).fit([[1.0], [2.0]], [1.0, 2.0])

    def test_ends_of_the_ranges(self):
        RelaxedGeneralized(np.float32(0.5), 1.0)
        SufficientDescent(2, 0)
        Fixed(0)
        Fixed(np.inf)
        Graduated(np.int64(0), np.int64(1))

    @pytest.mark.filterwarnings("ignore:.*(rows per parameter|lie exactly)")
    @pytest.mark.parametrize("effort", [-0.5, 1.5, 8.0])
    def test_half_quadratic_effort_is_checked_when_used(self, effort):
        class Prescribing(Fixed):
            def prescribe(self, memory):
                return effort

        model = HalfQuadraticRobustRegressor(criterion=Prescribing(), init="ols")
        X = np.arange(12.0).reshape(6, 2) % 5
        with pytest.raises(ValueError, match=r"Prescribing prescribes.* in \[0, 1\]"):
            model.fit(X, X[:, 0])
        assert not hasattr(model, "coef_")
