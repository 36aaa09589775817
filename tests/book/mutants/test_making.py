"""Mutants differ from their loss by one symbol, run, and are the same every time."""

import inspect

import pytest
import torch

from kl_book.mutants import FORMULAS, LOSSES
from kl_book.mutants.making import mutants_of
from tests.support.data import data


def small(logprobs, ref_logprobs, response_mask):
    """A loss with one of each."""
    apart = (logprobs - ref_logprobs).detach()
    kl = torch.where(apart < 0.5, -apart.exp() * 2, torch.max(apart, apart**2))
    return (kl * response_mask).sum(-1) / response_mask.mean()


CHANGES = {(change, after) for change, after in data(__file__)}


def test_every_change_of_a_small_loss_is_made():
    found = mutants_of(small)
    assert {(m.change, m.after) for m in found} == CHANGES
    assert len(found) == len(CHANGES)
    assert [m.number for m in found] == list(range(1, len(found) + 1))


def test_a_mutant_has_the_line_before_and_computes_the_line_after():
    (dropped,) = [m for m in mutants_of(small) if m.change == "a sign dropped"]
    assert dropped.before == "kl = torch.where(apart < 0.5, -apart.exp() * 2, torch.max(apart, apart ** 2))"
    logp, mask = torch.tensor([[-1.0]]), torch.ones(1, 1)
    assert dropped.function(logp, logp, mask).item() == pytest.approx(2)
    assert small(logp, logp, mask).item() == pytest.approx(-2)


@pytest.mark.parametrize("name", LOSSES)
def test_no_two_mutants_of_a_loss_are_alike_and_all_change_one_line(name):
    found = mutants_of(LOSSES[name])
    assert len({(m.before, m.after) for m in found}) == len(found) >= 20
    assert all(m.before != m.after for m in found)
    assert [m[:4] for m in mutants_of(LOSSES[name])] == [m[:4] for m in found]
    assert list(inspect.signature(found[0].function).parameters) == [
        "logprobs",
        "old_logprobs",
        "ref_logprobs",
        "advantages",
        "response_mask",
    ]


def test_every_loss_has_a_formula():
    assert LOSSES.keys() == FORMULAS.keys()
