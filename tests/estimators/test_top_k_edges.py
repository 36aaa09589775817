"""Top-k divergences at the edges: zero probabilities, what is refused and how, names."""

import numpy
import pytest
import torch

from kl_companion.divergences import DIVERGENCES, get_divergence
from kl_companion.estimators import get_estimator
from kl_companion.estimators.sampled import FORMS
from kl_companion.estimators.top_k import (
    TopK,
    top_k_f_divergence,
    top_k_reverse_kl,
    truncated_f_divergence,
)
from kl_companion.estimators.vocabulary import f_divergence
from tests.oracles import top_k as oracle
from tests.oracles.numeric import gradient
from tests.support.data import data
from tests.support.heads import every_sample, world

DATA = data(__file__)


NAMES = list(DIVERGENCES)
INF = float("inf")


# Zero probabilities.


def with_hole(x, where):
    """A row of logits with a token of probability zero put in."""
    return torch.cat([x[:where], torch.tensor([-INF], dtype=x.dtype), x[where:]])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_a_token_masked_on_both_sides_is_a_token_deleted(name, form):
    """A token that has no probability on either side is as good as deleted."""
    theta, ref, _ = world(3, 5)
    wide, wide_ref = with_hole(theta, 2), with_hole(ref, 2)
    kept = [0, 1, 3, 4, 5]
    for head in ([], [2], [0, 2, 5]):  # the masked token inside the head and outside it
        for token in kept:
            fewer, place = [kept.index(j) for j in head if j != 2], kept.index(token)

            def estimate(x, other, token, ids):
                rows = (y.log_softmax(-1) for y in (x, other))
                indices = torch.tensor(ids, dtype=torch.int64)
                return top_k_f_divergence(name, *rows, torch.tensor(token), indices=indices, form=form)

            def ours(x, token=token, head=head):
                return estimate(x, wide_ref, token, head)

            def deleted(x, place=place, fewer=fewer):
                return estimate(x, ref, place, fewer)

            torch.testing.assert_close(ours(wide), deleted(theta), rtol=1e-12, atol=1e-14)
            slope = gradient(ours, wide)
            assert slope[2].item() == 0.0
            torch.testing.assert_close(slope[kept], gradient(deleted, theta), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_a_head_may_hold_what_one_side_has_lost_where_the_cost_is_finite(name):
    theta, ref, _ = world(5, 4)
    d = get_divergence(name)
    for lost, cost, place in (("policy", d.at_zero, "policy has none"), ("reference", d.at_infinity, "has")):
        p, q = (
            with_hole(x, 0) if lost == y else torch.cat([x[:1], x])
            for x, y in ((theta, "policy"), (ref, "reference"))
        )
        for form in FORMS:
            if not cost.is_finite:
                with pytest.raises(ValueError, match=rf"^{name.split('(')[0]}.* is infinite at .*{place}"):
                    every_sample(name, form, p, q, indices=torch.tensor([0]), validate=True)
                assert every_sample(name, form, p, q, indices=torch.tensor([0]))[1:].tolist() == [INF] * 4
                continue
            x = p.clone().requires_grad_()
            tokens = torch.tensor([1, 2, 3, 4])
            out = every_sample(name, form, x, q, indices=torch.tensor([0]))[tokens]
            assert out.isfinite().all()
            assert torch.autograd.grad(out.sum(), x)[0].isfinite().all()
            # the lost token costs Q f(0), or P lim f(t)/t, of the generator that the head writes
            slope = 0.0 if form == "bregman" else oracle.SLOPE.get(name, 0.0)
            lone = truncated_f_divergence(
                name, p.log_softmax(-1), q.log_softmax(-1), indices=torch.tensor([0]), form=form
            )
            mass = (q if lost == "policy" else p).softmax(-1)[0]
            wanted = mass * (float(cost) + (-slope if lost == "policy" else slope))
            torch.testing.assert_close(lone, wanted, rtol=1e-12, atol=1e-15)


def test_what_no_sample_can_see_is_missing_from_a_tail():
    """A token that the policy has lost is never sampled: outside the head its cost Q f(0) is not counted."""
    theta, ref, _ = world(6, 4)
    p, q = with_hole(theta, 0), torch.cat([ref[:1], ref])
    seen = torch.arange(1, 5)
    exact = f_divergence("reverse_kl", p.log_softmax(-1), q.log_softmax(-1))
    for form, cost in (("bregman", 1.0), ("generic", 0.0), ("published", 0.0)):  # f(0) as the form writes f
        got = top_k_reverse_kl(
            p.log_softmax(-1).expand(4, -1), q.log_softmax(-1).expand(4, -1), seen, k=2, form=form
        )
        mean = (p.softmax(-1)[seen] * got).sum()
        torch.testing.assert_close(mean, exact - cost * q.softmax(-1)[0], rtol=1e-12, atol=1e-14)


P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
Q = torch.tensor([[0.2, 0.3, 0.5], [0.3, 0.4, 0.3]], dtype=torch.float64).log()
TOKENS = torch.tensor([0, 2])


def test_weights_of_zero_and_of_infinity_are_let_through_as_they_are():
    out = top_k_reverse_kl(P, Q, TOKENS, k=0, tail_weight=torch.tensor([0.0, 2.0], dtype=torch.float64))
    plain = top_k_reverse_kl(P, Q, TOKENS, k=0)
    assert out.tolist() == [0.0, 2 * plain[1].item()]


def test_the_size_may_be_any_whole_number(as_installed):
    assert TopK(get_divergence("pearson"), numpy.int64(3)).k == 3


# Names.


@pytest.mark.parametrize(
    ("name", "written", "target", "form", "k", "head_from", "tail"), DATA["members_by_name"]
)
def test_members_by_name(name, written, target, form, k, head_from, tail):
    entry = get_estimator(name)
    assert (entry.name, entry.target, entry.inputs) == (written or name, target, "top_k")
    choices = entry.fn
    assert (choices.divergence.name, choices.form, choices.k) == (target, form, k)
    assert (choices.head_from, choices.tail, choices.indices) == (head_from, tail, None)
    assert get_estimator(entry.name).name == entry.name
