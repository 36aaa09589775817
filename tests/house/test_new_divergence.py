"""A new f is one line: registered for a moment here, it passes every check that is written per divergence.

Only the oracles are told what the generator is. Le Cam's is registered with a slope at t = 1, so that its
three forms differ; Jeffreys' is the sum of the two KLs; both are their own duals, and the third is not.
"""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import sympy
import torch
from sympy import Rational, log

from kl_companion import audit
from kl_companion.auditing import audit as audit_function
from kl_companion.auditing.objectives import OBJECTIVES, objectives
from kl_companion.divergences import DIVERGENCES, T, W, inverse_slope, register_divergence
from kl_companion.estimators import ESTIMATORS, get_estimator
from kl_companion.estimators.sampled import FORMS
from kl_companion.theory import calculus
from tests.auditing import test_auditor, test_objectives
from tests.divergences import test_compiled
from tests.divergences import test_registry as test_generators
from tests.estimators import test_registry_placements as test_registry
from tests.estimators import test_sampled, test_top_k, test_top_k_edges, test_vocabulary
from tests.estimators import test_sampled_forms as test_forms
from tests.oracles import top_k as top_k_oracle
from tests.oracles import worlds
from tests.support import expected_verdicts
from tests.theory import test_top_k_split


class New(NamedTuple):
    """What is registered, and what the oracles know: by hand."""

    f: sympy.Expr
    generator: object  # the same, for tensors
    normalized: object  # with f'(1) = 0
    slope: float  # f'(1) as registered
    at_two: sympy.Expr  # normalized, at t = 2
    value: sympy.Expr  # w f(1/w) normalized
    weight: sympy.Expr  # f'(1/w) normalized


NEW = {
    # normalized: (t - 1)^2 / (2 (t + 1)), with slope 1/2 - 2/(1 + t)^2
    "le_cam": New(
        (1 - T) / (1 + T),
        lambda t: 2 / (1 + t) - 1,
        lambda t: (t - 1) ** 2 / (2 + 2 * t),
        -0.5,
        Rational(1, 6),
        (1 - W) ** 2 / (2 * (1 + W)),
        Rational(1, 2) - 2 * W**2 / (1 + W) ** 2,
    ),
    # slope log t + 1 - 1/t
    "jeffreys": New(
        (T - 1) * log(T),
        lambda t: t * torch.log(t) - torch.log(t),
        lambda t: (t - 1) * torch.log(t),
        0.0,
        log(2),
        (W - 1) * log(W),
        1 - W - log(W),
    ),
    # (t - 1)^2 / (t + 3), with slope 1 - 16/(t + 3)^2; its dual (t - 1)^2 / (3 t + 1) is another
    "skew_le_cam": New(
        (T - 1) ** 2 / (T + 3),
        lambda t: t - 5 + 16 / (t + 3),
        lambda t: (t - 1) ** 2 / (t + 3),
        0.0,
        Rational(1, 5),
        (1 - W) ** 2 / (3 * W + 1),
        1 - 16 * W**2 / (3 * W + 1) ** 2,
    ),
}
REGISTRIES = (DIVERGENCES, ESTIMATORS, OBJECTIVES)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Both are there during a test, and nothing remembers them after it."""
    before = [dict(r) for r in REGISTRIES]
    for name, new in NEW.items():
        monkeypatch.setitem(worlds.GENERATORS, name, new.generator)
        monkeypatch.setitem(top_k_oracle.NORMALIZED, name, new.normalized)
        monkeypatch.setitem(expected_verdicts.F_AT_TWO, name, new.at_two)
        if new.slope:
            monkeypatch.setitem(top_k_oracle.SLOPE, name, new.slope)
        verdict = (new.value, new.weight, {name: 1}, None)
        monkeypatch.setitem(expected_verdicts.EXPECTED, f"kf_plus_plus({name})", verdict)
        register_divergence(name, new.f, source="test")
        ESTIMATORS[f"kf_plus_plus({name})"] = get_estimator(f"kf_plus_plus({name})")
    objectives(off_policy=True)
    forget()
    yield
    for registry, kept in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(kept)
    forget()


def forget():
    """Sums of divergences that were found, and fields of objectives, are cached."""
    module = inspect.getmodule(audit_function)
    for function in (calculus.implied_f, module._known):
        inspect.unwrap(function, stop=lambda f: hasattr(f, "cache_clear")).cache_clear()


# every check that takes the name of a divergence, by what it is about
CHECKS = {
    "generator": [
        test_registry.test_divergence,
        test_registry.test_weights_of_the_two_directions_are_dual,
        test_registry.test_inverse_slope_inverts,
        *(
            lambda n, d=d: test_registry.test_generator_in_log_is_accurate_near_one(n, d)
            for d in (torch.float32, torch.float64)
        ),
        test_generators.test_normalization_at_one,
        test_generators.test_dual_of_dual_is_itself_and_exchanges_the_edges,
        *(
            lambda n, d=d: test_compiled.test_the_stable_form_is_the_generator_and_overflows_to_infinity(n, d)
            for d in (False, True)
        ),
        *(
            lambda n, d=d: (
                test_compiled.test_generator_of_the_log_ratio_and_its_gradient_are_accurate_near_one(n, d)
            )
            for d in (False, True)
        ),
    ],
    "exact": [
        test_vocabulary.test_gradients_are_those_of_the_explicit_sum,
        test_vocabulary.test_gradient_with_respect_to_the_reference,
        test_vocabulary.test_a_token_masked_on_both_sides_is_a_token_deleted,
        test_vocabulary.test_very_different_policies_stay_finite,
        test_vocabulary.test_float32_keeps_its_digits_near_equality,
    ],
}
SAMPLED_CHECKS = [
    test_registry.test_symbols_agree_with_the_hand_derivation,
    test_registry.test_tensor_value_is_the_symbolic_value,
    lambda n: test_registry.test_enumerated_gradient_is_that_of_the_implied_divergence(n, "loss"),
    lambda n: test_registry.test_enumerated_gradient_is_that_of_the_implied_divergence(n, "reward"),
    test_registry.test_value_is_unbiased_exactly_when_the_enumeration_says_so,
    test_registry.test_estimators_are_targeted_and_sourced,
    test_sampled.test_equal_policies_give_zero,
    test_sampled.test_probabilities_that_underflow_keep_value_and_gradient_finite,
    test_sampled.test_a_policy_that_has_lost_the_token_never_gives_nan,
    test_sampled.test_gradient_near_one_in_float32,
]


@pytest.mark.parametrize("about", list(CHECKS))
@pytest.mark.parametrize("name", list(NEW))
def test_the_divergence(name, about):
    for check in CHECKS[about]:
        check(name)


@pytest.mark.parametrize("name", list(NEW))
def test_the_sampled_estimator(name):
    for check in SAMPLED_CHECKS:
        check(f"kf_plus_plus({name})")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", list(NEW))
def test_its_forms_and_heads(name, form):
    test_forms.check_form(name, form)
    test_forms.check_form_in_symbols(name, form)
    test_top_k.check_every_sample(name, form)
    test_top_k.check_any_set(name, form)
    test_top_k.check_ends(name, form)
    test_top_k.check_truncated(name, form)
    test_top_k_edges.check_holes(name, form)
    for head_from in test_top_k.HEADS:
        test_top_k.check_expectation(name, form, head_from)


@pytest.mark.parametrize("name", list(NEW))
def test_what_its_splits_leave_behind(name):
    test_top_k_split.check_split(name)
    test_top_k.check_equal_policies(name)
    test_top_k_edges.test_a_head_may_hold_what_one_side_has_lost_where_the_cost_is_finite(name)


@pytest.mark.parametrize("name", ["le_cam", "jeffreys"])
def test_its_objectives_and_audits(name):
    for level in ("token", "sequence", "policy_token"):
        for off_policy in (False, True):
            test_objectives.test_objective(f"{level}_{name}", eos=True, off_policy=off_policy)
    test_auditor.test_kf_plus_plus_descends_its_divergence(name)
    test_auditor.test_every_remedy_passes_the_audit_that_prints_it(name, "token")
    found = audit(f"top_k_f_divergence({name}, 1)", off_policy=False, scale=4.0)
    assert found.matches == {f"token_{name}": 1.0}
    biased = audit(f"top_k_f_divergence({name}, 1, published)", off_policy=False, scale=4.0)
    mass = {"token_top_1_mass": NEW[name].slope} if NEW[name].slope else {}
    assert biased.matches == pytest.approx({f"token_{name}": 1.0} | mass)


def test_what_was_typed_in_is_what_is_registered():
    le_cam, jeffreys, skew = (DIVERGENCES[n] for n in NEW)
    assert le_cam.slope == Rational(-1, 2)
    assert sympy.simplify(le_cam.as_given.f - (1 - T) / (1 + T)) == 0
    assert jeffreys.slope == 0
    assert jeffreys.as_given is jeffreys
    assert (le_cam.curvature, jeffreys.curvature, skew.curvature) == (Rational(1, 2), 2, Rational(1, 2))
    assert calculus.match_divergence(jeffreys.f, max_terms=2) == {"jeffreys": 1}
    s = sympy.Symbol("s", real=True)
    assert sympy.simplify(inverse_slope(le_cam).subs(s, Rational(3, 8)) - 3) == 0  # 1/2 - 2/16


def test_a_wrong_oracle_is_noticed(monkeypatch):
    """The checks above do compare: a generator that is off by one part in a million fails every group."""
    name, new = "le_cam", NEW["le_cam"]
    scale = 1 + 1e-6
    monkeypatch.setitem(worlds.GENERATORS, name, lambda t: scale * new.generator(t))
    monkeypatch.setitem(top_k_oracle.NORMALIZED, name, lambda t: scale * new.normalized(t))
    for check in (
        lambda: test_vocabulary.test_gradients_are_those_of_the_explicit_sum(name),
        lambda: test_registry.test_value_is_unbiased_exactly_when_the_enumeration_says_so(
            f"kf_plus_plus({name})"
        ),
        lambda: test_top_k.check_every_sample(name, "bregman"),
        lambda: test_top_k.check_any_set(name, "published"),
        lambda: test_forms.check_form(name, "generic"),
        lambda: test_objectives.test_objective(f"token_{name}", eos=True, off_policy=True),
    ):
        with pytest.raises(AssertionError):
            check()


@pytest.fixture
def package_with_one_more_line(tmp_path):
    """A copy of the package in which Le Cam's divergence has its line."""
    import kl_companion

    source = Path(kl_companion.__file__).parent
    shutil.copytree(source, tmp_path / "kl_companion", ignore=shutil.ignore_patterns("__pycache__", "claims"))
    path = tmp_path / "kl_companion/divergences/registry.py"
    text, last = path.read_text(), 'DIVERGENCES["amari_alpha(0.5)"]'
    line = 'register_divergence("le_cam", (1 - T) / (1 + T), source="a line")\n'
    assert text.count(last) == 1
    path.write_text(text.replace(last, line + last))
    return tmp_path


def test_one_line_in_the_module_is_all(package_with_one_more_line):
    code = """
from kl_companion import ESTIMATORS, audit
from kl_companion.auditing.objectives import OBJECTIVES
assert ESTIMATORS["kf_plus_plus(le_cam)"].target == "le_cam"
assert {"token_le_cam", "sequence_le_cam", "policy_token_le_cam"} <= set(OBJECTIVES)
for name in ("kf_plus_plus(le_cam)", "kf_plus_plus(le_cam, generic)", "top_k_f_divergence(le_cam, 2)"):
    found = audit(name, off_policy=False, scale=1.0, want="le_cam")
    assert found.matches == {"token_le_cam": 1.0} and found.met, (name, found.matches)
print("done")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=package_with_one_more_line, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
