"""The oracle against loops written by hand, and every registered estimator against the audit's words."""

import itertools
import math

import pytest
import torch

from kl_book.lab import oracle_check
from kl_book.lab.oracle import (
    between,
    enumerate_completions,
    expected_gradient,
    gradient_moments,
    objective_gradient,
    oracle_model,
)
from kl_book.lab.oracle_check import Place, audited, audited_loss, places, residual, words
from kl_companion import kl_loss
from kl_companion.auditing import Finding
from kl_companion.auditing.reading.subject import as_loss
from kl_companion.estimators import ESTIMATORS
from kl_companion.llm.objective import kl_term
from kl_companion.llm.settings import Settings
from kl_companion.tabular import expected_gradient as tabular_gradient
from tests.support.expected_verdicts import EXPECTED
from tests.support.llm.by_hand import (
    LENGTH,
    VOCAB,
    by_hand,
    cumulative_term,
    exact_term,
    k1_term,
    k2_term,
    k3_reward_term,
    k3_sequence_term,
    k3_term,
    next_logp,
)

HAND = {
    "k1": (k1_term, as_loss("k1")),
    "k2": (k2_term, as_loss("k2")),
    "k3": (k3_term, as_loss("k3")),
    "k3 in the reward": (k3_reward_term, as_loss("k3", "reward")),
    "k3 of sequences": (k3_sequence_term, as_loss("k3", level="sequence")),
    "cumulative": (cumulative_term, lambda ro: kl_loss(ro, "k1", credit=1.0, importance=None)),
    "exact": (exact_term, as_loss("exact_kl")),
}


@pytest.mark.parametrize("name", HAND)
def test_expected_gradient_is_that_of_loops_written_by_hand(name, models, off_policy):
    term, loss = HAND[name]
    expected = by_hand(term, *models, 2)
    got = expected_gradient(off_policy, loss)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11 * expected.norm().item())
    assert expected.norm() > 1e-3


def test_completions_are_all_there_and_their_probabilities_are_the_models(models, on_policy, off_policy):
    assert on_policy.problem.sequences.tolist() == [
        list(y) for y in itertools.product(range(VOCAB), repeat=LENGTH)
    ]
    for oracle, sampler in ((on_policy, models[0]), (off_policy, models[2])):
        assert oracle.probability.sum().item() == pytest.approx(1, abs=1e-13)
        y = oracle.problem.sequences[11].tolist()
        logp = sum(next_logp(sampler, y[:t])[y[t]].item() for t in range(len(y)))
        assert oracle.probability[11].item() == pytest.approx(math.exp(logp), rel=1e-12)
    far = on_policy.problem.logits.softmax(-1).max(-1).values
    assert far.mean() > 1.5 / VOCAB


def test_the_model_computes_in_float64():
    """Central differences with a small step: a float32 anywhere would drown them in rounding."""
    policy = oracle_model(VOCAB)
    weight = policy.model.layers[0].self_attn.q_proj.weight
    value = next_logp(policy, (1, 2))[3]
    slope = torch.autograd.grad(value, weight)[0][2, 1].item()
    moved = []
    with torch.no_grad():
        for step in (1e-6, -1e-6):
            weight[2, 1] += step
            moved.append(next_logp(policy, (1, 2))[3].item())
            weight[2, 1] -= step
    assert (moved[0] - moved[1]) / 2e-6 == pytest.approx(slope, rel=1e-5)
    assert abs(slope) > 1e-4


def test_every_parameter_has_an_effect_and_all_randomness_is_the_seeds(on_policy):
    # but for the output of the token that begins, which is never sampled
    without = (on_policy.jacobian.norm(dim=0) < 1e-12).sum()
    assert without == on_policy.policy.config.hidden_size
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    again = oracle_model(VOCAB, seed=0)
    assert torch.equal(before, torch.random.get_rng_state())
    for a, b in zip(again.parameters(), on_policy.policy.parameters(), strict=True):
        assert torch.equal(a, b)


def test_jacobian_and_backward_pass_agree(on_policy):
    field = torch.randn(on_policy.scores.shape, generator=torch.Generator().manual_seed(0)).double()
    rows = on_policy.on_rows(field).sum(0)
    assert (on_policy.back(field) - on_policy.pull_back(rows)).norm() < 1e-11 * rows.norm()


# The audit's word.


def test_every_registered_estimator_stands_somewhere():
    stands = {p.estimator.partition("(")[0] if "top_k" in p.estimator else p.estimator for p in places()}
    assert stands == {n.partition("(")[0] if "top_k" in n else n for n in ESTIMATORS}
    assert len(set(places())) == len(places())
    levels = {(p.placement, p.level) for p in places() if p.estimator == "k5"}
    assert levels == set(itertools.product(("loss", "reward"), ("token", "sequence")))
    for form in ("", ", generic", ", published"):
        assert Place(f"top_k_forward_kl(1{form})", "reward", "sequence") in places(k=1)
    for p in places():
        as_loss(*p)


def distance(oracle, place, named, zero=False):
    """Of an estimator's expected gradient from a name's, or from the table's, over its size."""
    loss = as_loss(*place)
    gradient = expected_gradient(oracle, loss)
    size = gradient_moments(oracle, loss).noise if zero else gradient.norm()
    if named is None:
        expected = oracle.pull_back(tabular_gradient(loss, oracle.problem))
    else:
        expected = objective_gradient(oracle, named)
    return float((gradient - expected).norm() / size)


def by_derivation(place):
    """Objectives that were derived by hand, or None."""
    _, _, in_loss, in_reward = EXPECTED.get(place.estimator, (None,) * 4)
    by_hand = in_loss if place.placement == "loss" else in_reward
    if by_hand is None or place[1:] == ("reward", "sequence"):
        return None
    return {f"{place.level}_{d}": float(c) for d, c in by_hand.items()}


@pytest.mark.parametrize(
    "place", [p for p in places() if p.placement == "loss" or "top_k" not in p.estimator], ids="-".join
)
def test_on_policy_the_transformer_does_what_the_derivation_says(place, nine):
    """Without the audit: verdicts derived by hand where there are some, the table's gradient elsewhere."""
    assert distance(nine, place, by_derivation(place), zero=place in ZERO) < 1e-8


ZERO = [("k1", "loss", "token"), ("k1", "loss", "sequence")]
ZERO += [(name, "reward", "token") for name in ("exact_kl", "exact_forward_kl")]


def test_what_has_no_gradient_has_none(nine):
    for place in ZERO:
        gradient, noise = gradient_moments(nine, as_loss(*place))
        assert gradient.norm() < 1e-12 * noise
        assert noise > 0.1


AUDITED = [
    *(Place(n, "loss", "token") for n in ("k1", "k2", "k3", "exact_kl")),
    *(p for p in places() if p.placement == "loss" and "top_k_reverse" in p.estimator),
    Place("top_k_forward_kl(2, published)", "loss", "token"),
    *(Place(n, "reward", "sequence") for n in ("k1", "k3")),
    Place("k3", "loss", "sequence"),
]
OFF_POLICY = [
    *(Place(n, "loss", "token") for n in ("k1", "k3", "exact_kl")),
    Place("k3", "reward", "sequence"),
]


@pytest.mark.parametrize("place", AUDITED, ids="-".join)
def test_on_policy_the_transformer_does_what_the_audit_says(place, on_policy):
    """The audit looks at tables of two tokens; here are three, and parameters that all of them share."""
    case = audited(place)
    gradient, noise = gradient_moments(on_policy, as_loss(*place))
    assert residual(on_policy, gradient, case, noise) < 1e-8


@pytest.mark.parametrize("place", OFF_POLICY, ids="-".join)
def test_off_policy_the_transformer_does_what_the_audit_says(place, off_policy):
    case = audited(place, True)
    assert distance(off_policy, place, None) < 1e-8
    gradient, noise = gradient_moments(off_policy, as_loss(*place))
    found = residual(off_policy, gradient, case, noise)
    assert math.isnan(found) == (not case.matches)
    assert not found >= 1e-8


def test_where_completions_end_early_too(models):
    oracle = enumerate_completions(*models[:2], 2, eos=True)
    assert oracle.problem.completion_mask.sum() < oracle.problem.completion_mask.numel()
    for place in (Place("k3", "loss", "token"), Place("k3", "reward", "sequence")):
        named = audited(place, eos=True).matches[0]
        assert distance(oracle, place, named) < 1e-8


def test_an_audit_of_two_tokens_says_too_much_of_a_discount(on_policy):
    """With two tokens there is one lag, and any discount mixes two objectives; the transformer has three."""

    def discounted(rollout):
        return kl_loss(rollout, "k1", credit=0.5)

    said = audited_loss(discounted, length=2)
    assert words(said) == "1/2 sequence_reverse_kl + 1/2 token_reverse_kl"
    gradient, noise = gradient_moments(on_policy, discounted)
    assert residual(on_policy, gradient, said, noise) > 0.001
    assert words(audited_loss(discounted)) == "unnamed"


def test_a_wrong_word_is_noticed(on_policy, monkeypatch):
    place = Place("k3", "loss", "token")
    gradient, noise = gradient_moments(on_policy, as_loss(*place))
    assert residual(on_policy, gradient, audited(Place("k2", "loss", "token")), noise) > 0.01
    monkeypatch.setattr(oracle_check, "as_fractions", lambda matches: {n: -c for n, c in matches.items()})
    assert residual(on_policy, gradient, audited(place), noise) == pytest.approx(2, rel=1e-9)


def said(*matches, zero=False):
    return Finding(None, matches, 0.0, zero, dict, lambda: 0.0)


def test_words():
    assert words(said(zero=True)) == "zero"
    assert words(said()) == "unnamed"
    assert words(said({"b": -1.0, "a": 1.0}, {"c": 2.0})) == "a - b"
    assert words(said({"b": -1.33333333, "a": 1.33333333})) == "4/3 a - 4/3 b"
    assert oracle_check.as_fractions({"a": -1.33333333, "b": 0.123456789}) == {"a": -4 / 3, "b": 0.123456789}


def test_every_explanation_has_to_hold(on_policy):
    place = Place("k3", "loss", "token")
    gradient, noise = gradient_moments(on_policy, as_loss(*place))
    right, wrong = {"token_forward_kl": 1.0}, {"token_reverse_kl": 1.0}
    assert residual(on_policy, gradient, said(right), noise) < 1e-8
    assert residual(on_policy, gradient, said(right, wrong), noise) > 0.01
    assert math.isnan(residual(on_policy, gradient, said(), noise))
    assert residual(on_policy, gradient, said(zero=True), noise) > 0.01


def test_between_moves_a_copy_by_the_share():
    start, end = oracle_model(3, hidden=4, heads=1), oracle_model(3, seed=1, hidden=4, heads=1)
    moved = between(start, end, 0.25)
    for a, b, c in zip(start.parameters(), end.parameters(), moved.parameters(), strict=True):
        torch.testing.assert_close(c, 0.75 * a + 0.25 * b, rtol=1e-14, atol=1e-14)
        assert not torch.equal(a, c)


@pytest.mark.parametrize("name", ["k2", "k3", "k5"])
def test_loss_and_reward_together_are_the_gradient_of_the_expected_value(name, nine):
    """The product rule: with K3, whose value is unbiased, the sum is the gradient of the sequence KL."""
    both = sum(expected_gradient(nine, as_loss(name, placement)) for placement in ("loss", "reward"))
    leaf = nine.scores.detach().requires_grad_()
    rollout = nine.rollout(leaf)
    value = rollout.logp.sum(-1).exp() @ ESTIMATORS[name].fn(rollout.logp, rollout.ref_logp).sum(-1)
    expected = nine.back(torch.autograd.grad(value, leaf)[0])
    assert (both - expected).norm() < 1e-11 * expected.norm()
    sequence = objective_gradient(nine, {"sequence_reverse_kl": 1.0})
    assert ((both - sequence).norm() < 1e-11 * sequence.norm()) == (name == "k3")


@pytest.mark.parametrize(
    ("settings", "objective"),
    [
        ({"estimator": "k2"}, {"token_reverse_kl": 0.3}),
        ({"estimator": "k3", "level": "sequence"}, {"sequence_forward_kl": 0.3}),
        ({"estimator": "exact_kl"}, {"token_reverse_kl": 0.3}),
        ({"estimator": "top_k_reverse_kl", "k": 2}, {"token_reverse_kl": 0.3}),
        (
            {"estimator": "top_k_reverse_kl", "k": 2, "form": "published"},
            {"token_reverse_kl": 0.3, "token_top_2_mass": 0.3},
        ),
    ],
    ids=lambda x: "-".join(map(str, x.values())),
)
def test_the_training_loop_differentiates_what_the_audit_names(settings, objective, nine):
    chosen = Settings(beta=0.3, **settings)
    got = expected_gradient(nine, lambda rollout: kl_term(rollout, chosen))
    expected = objective_gradient(nine, objective)
    assert (got - expected).norm() < 1e-8 * expected.norm()
