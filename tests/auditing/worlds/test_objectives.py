"""Every named objective, value and gradient, against the same thing written prefix by prefix."""

from functools import cache, partial

import pytest
import torch

from kl_companion import audit, prefix_tree
from kl_companion.auditing.worlds import objective as record
from kl_companion.auditing.worlds import objectives as module
from kl_companion.auditing.worlds.objectives import (
    FORWARD_TO_SAMPLER,
    OBJECTIVES,
    field,
    get_objective,
    objectives,
    register_objective,
    value,
)
from kl_companion.divergences import DIVERGENCES, T, get_divergence, make_divergence
from tests.oracles import worlds
from tests.oracles.numeric import finite_difference
from tests.support.objectives import oracle, world_of

NAMES = [*objectives(off_policy=True), FORWARD_TO_SAMPLER]  # those that are cut: test_truncations.py
ONE = {"off_policy": False, "scale": 1.0}


@pytest.mark.parametrize("off_policy", [False, True])
@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_objective(name, eos, off_policy):
    problem = prefix_tree(3, 2, seed=5, eos=eos, off_policy=off_policy)
    theta = problem.logits.clone().requires_grad_()
    truth = oracle(name, problem, theta)
    (gradient,) = torch.autograd.grad(truth, theta)
    assert value(OBJECTIVES[name], problem) == pytest.approx(truth.item(), rel=1e-10)
    torch.testing.assert_close(field(OBJECTIVES[name], problem), gradient, rtol=1e-9, atol=1e-12)


def test_objectives_that_coincide_on_policy_are_tried_off_policy_only():
    assert "behavior_squared_log_ratio" not in objectives(off_policy=False)
    assert "behavior_squared_log_ratio" in objectives(off_policy=True)


def test_objectives_of_lengths_are_tried_where_lengths_vary():
    fixed = objectives(off_policy=False, lengths=False)
    varying = objectives(off_policy=False, lengths=True)
    assert set(varying) - set(fixed) == {
        "expected_inverse_length",
        "expected_reward_per_token",
        "expected_centered_reward_per_token",
        "sequence_mean_reverse_kl",
        "sampled_mean_squared_log_ratio",
        "sampled_mean_reference_ratio",
    }
    both = objectives(off_policy=True, lengths=True)
    assert {*both, FORWARD_TO_SAMPLER} == {n for n, o in OBJECTIVES.items() if not o.cut}
    of_both = {
        "sampled_mean_log_likelihood",
        "behavior_reward_per_token",
        "behavior_centered_reward_per_token",
        "surrogate_reward_per_token",
        "surrogate_centered_reward_per_token",
    }
    assert of_both.isdisjoint({*varying, *objectives(off_policy=True, lengths=False)})
    assert objectives(off_policy=True) == both


@cache
def field_of(name, off_policy, lengths):
    problems = [prefix_tree(2, 2, seed=s, eos=lengths, off_policy=off_policy) for s in (1, 2)]
    return torch.cat([field(OBJECTIVES[name], p).flatten() for p in problems])


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_out_would_find_nothing_new(name):
    """On-policy it is another objective's field; with one length for all, constant or a multiple of one."""
    for off_policy, lengths in ((False, True), (False, False), (True, False)):
        known = objectives(off_policy=off_policy, lengths=lengths)
        if name in known:
            continue
        mine = field_of(name, off_policy, lengths)
        multiples = [mine.norm() < 1e-14]
        for key in known:
            other = field_of(key, off_policy, lengths)
            factor = (mine @ other) / (other @ other).clamp(min=1e-30)
            multiples.append((mine - factor * other).norm() < 1e-12 * mine.norm())
        assert any(multiples), (name, off_policy, lengths)


@pytest.mark.parametrize("name", NAMES)
def test_fields_by_differences(name):
    """Visits are held fixed by hand: the sampler stays where it is while the policy moves."""
    problem = prefix_tree(2, 2, seed=6, eos=True, off_policy=True)
    world, ref = world_of(problem), problem.ref_logits
    level, _, rest = name.removeprefix("policy_").partition("_")
    frozen = problem.logits.clone() if name.startswith("policy_") else problem.behavior_logits

    def scalar(x):
        if level == "sequence" and rest in DIVERGENCES:
            return worlds.sequence_level(world, x, ref, rest)
        if level == "token" and rest in DIVERGENCES:
            return worlds.token_level(world, x, ref, frozen, rest)
        if name in worlds.of_sampler(world, x, frozen):
            return worlds.of_sampler(world, x, frozen)[name]
        key = name.removeprefix("policy_") if name.startswith("policy_") else name
        return worlds.others(world, x, ref, frozen)[key]

    wanted = finite_difference(scalar, problem.logits)
    torch.testing.assert_close(field(OBJECTIVES[name], problem), wanted, rtol=1e-5, atol=1e-8)


def test_other_functions_and_words_are_other_objectives(monkeypatch):
    monkeypatch.setattr(record, "OBJECTIVES", dict(OBJECTIVES))

    def scaled(factor):
        return lambda rollout: factor * rollout.logp.sum()

    registered = partial(register_objective, "mine", source="test")
    registered(words="one")(scaled(1.0))
    registered(words="one")(scaled(1.0))  # a cell of a notebook that is run again
    for words, factor in (("one", 2.0), ("another", 1.0)):
        with pytest.raises(ValueError, match=r"^objective 'mine' is registered already \(one\)"):
            registered(words=words)(scaled(factor))
    replaced = registered(words="two", overwrite=True)(scaled(2.0))
    assert record.OBJECTIVES["mine"].scalar is replaced


def test_a_divergence_that_is_registered_later_is_an_objective(monkeypatch):
    late = make_divergence("late", (T - 1) ** 4, source="test")
    monkeypatch.setattr(module, "DIVERGENCES", {**DIVERGENCES, "late": late})
    names = objectives(off_policy=False).keys()
    assert {"token_late", "sequence_late"} <= names
    assert "token_late" not in OBJECTIVES


def test_what_is_tried_is_made_for_each_audit_and_nothing_is_left_behind():
    before = dict(OBJECTIVES)
    member = get_divergence("generalized_jensen_shannon(0.3)")
    name = "token_generalized_jensen_shannon(0.3)"
    assert name in objectives(off_policy=False, members=[member])
    assert name not in objectives(off_policy=False)

    def distilled(logits, ref_logits, mask, alpha=0.3, T=2.0):
        p, q = (x.log_softmax(-1) for x in (logits, ref_logits))
        m = (alpha * q.exp() + (1 - alpha) * p.exp()).log()
        each = alpha * (q.exp() * (q - m)).sum(-1) + (1 - alpha) * (p.exp() * (p - m)).sum(-1)
        return (each * mask).sum(-1).mean()

    found = [
        audit(distilled, want=w, **ONE).met for w in (name[6:], name[6:-2] + "4)", "jensen_shannon", name)
    ]
    assert found == [True, False, False, True]
    assert audit(distilled, **ONE).matches == {name: pytest.approx(1.0)}
    assert dict(OBJECTIVES) == before


@pytest.mark.parametrize("name", ["token_late", "token_top_0", "token_bucketed_jensen_shannon", "reverse_kl"])
def test_an_unknown_name_is_no_objective(name):
    assert name not in OBJECTIVES
    with pytest.raises(KeyError):
        OBJECTIVES[name]
    with pytest.raises(ValueError, match=f"unknown objective '{name}'"):
        get_objective(name)


@pytest.mark.parametrize("exponents", [("1/3", "0.333333"), ("0.333333", "1/3")])
def test_members_that_print_alike_in_six_digits_are_two(exponents):
    for exponent in exponents:
        name = f"power_divergence({exponent})"
        for other in exponents:
            found = audit(
                f"kf_plus_plus({name})", want=f"power_divergence({other})", off_policy=False, scale=1.0
            )
            assert found.met is (exponent == other)
