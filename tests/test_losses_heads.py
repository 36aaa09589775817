"""Top-k estimators inside a rollout and a loss: masks, padding, and a ratio that weights the tail only."""

import pytest
import torch

from kl_companion import kl_loss, kl_reward
from kl_companion.divergences import get_divergence
from kl_companion.estimators import Estimator, get_estimator
from kl_companion.estimators.top_k import TopK
from kl_companion.losses import kl_terms
from kl_companion.rollout import Rollout, per_token
from tests.oracles import top_k as oracle

NAN, INF = float("nan"), float("inf")
MASK = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])
INSIDE = [(0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)]
TOKENS = torch.tensor([[-100, 3, 0, 7], [2, 1, 0, 4]])
generator = torch.Generator().manual_seed(3)
LOGITS, REF, MU = torch.randn(3, 2, 4, 5, generator=generator, dtype=torch.float64)
NAMES = ["top_k_reverse_kl(2)", "top_k_forward_kl(3, published)", "top_k_f_divergence(pearson, 1, generic)"]


def rollout(outside=0.0, behavior=None, **changes):
    """Two sequences with padding; every row outside the mask is filled with one number."""

    def filled(x):
        return x.where(MASK.bool().unsqueeze(-1), torch.tensor(outside, dtype=torch.float64))

    leaf = filled(LOGITS).requires_grad_()
    scores = {"behavior_logits": None if behavior is None else filled(behavior), **changes}
    return leaf, Rollout.from_logits(TOKENS, MASK, leaf, filled(REF), **scores)


def explicit(name, x, *, behavior=None, clip=(0.0, INF)):
    """The estimate of every token under the mask, with loops: {(row, column): scalar}."""
    entry = get_estimator(name)
    out = {}
    for i, t in INSIDE:
        p, q = oracle.probabilities(x[i, t]), oracle.probabilities(REF[i, t])
        scores = {"policy": LOGITS, "reference": REF, "sampler": MU}[entry.fn.head_from][i, t]
        token, weight = TOKENS[i, t].item(), 1.0
        if behavior is not None:
            ratio = p[token].item() / oracle.probabilities(behavior[i, t])[token].item()
            weight = min(max(ratio, clip[0]), clip[1])
        head = oracle.likeliest(scores, entry.fn.k)
        out[i, t] = oracle.estimate(entry.target, entry.fn.form, p, q, token, head, weight)
    return out


def sampled_outside_the_head(name):
    """How many tokens of the batch are in a tail, so that a test of tails is not empty."""
    entry = get_estimator(name)
    scores = {"policy": LOGITS, "reference": REF}[entry.fn.head_from]
    return sum(TOKENS[i, t].item() not in oracle.likeliest(scores[i, t], entry.fn.k) for i, t in INSIDE)


@pytest.mark.parametrize("outside", [0.0, 1e6, -INF, INF, NAN])
@pytest.mark.parametrize("name", NAMES)
def test_rows_outside_the_mask_have_no_value_and_no_gradient(name, outside):
    assert 0 < sampled_outside_the_head(name) < 6
    leaf, ro = rollout(outside)
    found = per_token(name, ro)
    assert found.shape == MASK.shape
    assert found[~MASK.bool()].tolist() == [0.0, 0.0]
    x = LOGITS.clone().requires_grad_()
    wanted = explicit(name, x)
    for (i, t), each in wanted.items():
        assert found[i, t].item() == pytest.approx(each.item(), rel=1e-12, abs=1e-15)
    (slope,) = torch.autograd.grad(found.sum(), leaf)
    (theirs,) = torch.autograd.grad(sum(wanted.values()), x)
    torch.testing.assert_close(slope, theirs, rtol=1e-11, atol=1e-14)
    assert slope[~MASK.bool()].abs().max() == 0


@pytest.mark.parametrize(
    ("how", "length", "parts"),
    [
        ("sum", None, (1 / 2, 1 / 2)),
        ("sequence_mean", None, (1 / 4, 1 / 8)),
        ("token_mean", None, (1 / 6, 1 / 6)),
        ("constant", 8.0, (1 / 16, 1 / 16)),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_losses_add_the_estimates_up(name, how, length, parts):
    leaf, ro = rollout(NAN)
    loss = kl_loss(ro, name, beta=0.3, how=how, length=length)
    x = LOGITS.clone().requires_grad_()
    wanted = 0.3 * sum(parts[i] * each for (i, _), each in explicit(name, x).items())
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)
    pairs = torch.autograd.grad(loss, leaf)[0], torch.autograd.grad(wanted, x)[0]
    torch.testing.assert_close(*pairs, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("clip", [None, (0.8, 1.2), (0.0, 0.5)])
@pytest.mark.parametrize("name", NAMES)
def test_the_ratio_of_a_token_weights_its_tail_and_not_its_head(name, clip):
    leaf, ro = rollout(NAN, MU)
    loss = kl_loss(ro, name, importance="token", clip=clip)
    x = LOGITS.clone().requires_grad_()
    wanted = sum(explicit(name, x, behavior=MU, clip=clip or (0.0, INF)).values()) / 2
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-12)
    pairs = torch.autograd.grad(loss, leaf)[0], torch.autograd.grad(wanted, x)[0]
    torch.testing.assert_close(*pairs, rtol=1e-11, atol=1e-14)
    assert loss.item() != pytest.approx(kl_loss(ro, name, importance=None).item(), rel=1e-6)
    terms = kl_terms(ro, name, importance="token", clip=clip)
    assert terms.mean().item() == pytest.approx(loss.item(), rel=1e-13)


def test_a_full_head_is_exact_whatever_the_ratio():
    _, ro = rollout(NAN, MU)
    full = kl_loss(ro, "top_k_reverse_kl(5)", importance="token", clip=(0.9, 1.1))
    _, on_policy = rollout(0.0)
    assert full.item() == pytest.approx(kl_loss(on_policy, "exact_kl").item(), rel=1e-12)


def test_on_policy_the_ratio_is_one():
    _, ro = rollout(NAN)
    with_ratio = kl_loss(ro, NAMES[0], importance="token").item()
    assert with_ratio == pytest.approx(kl_loss(ro, NAMES[0], importance=None).item(), rel=1e-14)


@pytest.mark.parametrize("level", ["sequence", "token"])
def test_as_a_penalty_they_are_detached_and_zero_outside(level):
    _, ro = rollout(NAN)
    found = kl_reward(ro, NAMES[0], beta=2.0, level=level, credit=None)
    wanted = explicit(NAMES[0], LOGITS)
    if level == "sequence":
        rows = [2 * sum(x.item() for (i, _), x in wanted.items() if i == row) for row in (0, 1)]
        assert found.tolist() == pytest.approx(rows, rel=1e-12)
    else:
        assert found[0, [0, 3]].tolist() == [0.0, 0.0]
        assert found[1, 2].item() == pytest.approx(2 * wanted[1, 2].item(), rel=1e-12)
    assert not found.requires_grad


def with_head_of(whose, form="bregman"):
    choices = TopK(get_divergence("reverse_kl"), 2, None, whose, form)
    return Estimator(f"top 2 of the {whose}", choices, "reverse_kl", "top_k", "test")


def test_the_head_may_be_the_samplers():
    _, ro = rollout(NAN, MU)
    found = per_token(with_head_of("sampler"), ro)
    for (i, t), each in explicit(with_head_of("sampler"), LOGITS).items():
        assert found[i, t].item() == pytest.approx(each.item(), rel=1e-12, abs=1e-15)
    reference = per_token(with_head_of("reference"), ro)
    assert not torch.allclose(found, reference)


def test_the_samplers_distributions_are_read_for_its_own_head_only(monkeypatch):
    handed = []
    monkeypatch.setattr(TopK, "__call__", lambda self, p, q, tokens, **more: handed.append(more) or p[..., 0])
    _, ro = rollout(0.0, MU)
    for whose in ("policy", "reference", "sampler"):
        per_token(with_head_of(whose), ro)
    assert [set(more) for more in handed] == [set(), set(), {"behavior_logp_all"}]


def test_on_policy_the_sampler_is_the_policy():
    leaf, ro = rollout(NAN)
    found = per_token(with_head_of("sampler"), ro)
    assert torch.equal(found, per_token(with_head_of("policy"), ro))
    (gradient,) = torch.autograd.grad(found.sum(), leaf, retain_graph=True)
    (wanted,) = torch.autograd.grad(per_token(with_head_of("policy"), ro).sum(), leaf)
    assert torch.equal(gradient[MASK.bool()], wanted[MASK.bool()])


def test_what_is_missing_or_does_not_fit_is_named(as_installed):
    _, ro = rollout()
    weight = torch.full((2, 4), NAN, dtype=torch.float64).masked_fill(MASK.bool(), 1.0)
    assert torch.equal(per_token(NAMES[0], ro, tail_weight=weight), per_token(NAMES[0], ro))


@pytest.mark.parametrize("name", ["exact_kl", *NAMES])
def test_who_asks_first_without_gradients_takes_none_away(name):
    leaf, ro = rollout()
    with torch.no_grad():
        logged = per_token(name, ro)
        assert not logged.requires_grad
        assert ro.ref_logp_all.requires_grad is False
    (slope,) = torch.autograd.grad(per_token(name, ro).sum(), leaf)
    fresh, other = rollout()
    (wanted,) = torch.autograd.grad(per_token(name, other).sum(), fresh)
    assert torch.equal(slope, wanted)
    assert slope.abs().max() > 0
