"""Losses as trainers write them run unchanged, and get the verdicts that were derived by hand."""

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.fit.explanations import COMMON
from kl_companion.auditing.judgment.card import HEIGHT, WIDTH
from tests.support.corpus import corpus, load

pytestmark = pytest.mark.slow

LOSSES = {f"{path.stem}.{name}": (path, name, hand) for path, name, hand in corpus()}
UNITS = {
    "": "",
    "answers": "",
    "tokens": "tokens",
    "width": "positions",
    "tokens_deviation": "tokens_deviation",
    "batch": COMMON,
    "deviation": "deviation",
}


def found_in(path, name):
    """The loss itself, a function or a method of a class."""
    found = load(path)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def agrees(finding, wanted, per):
    """Whether a finding has exactly these objectives, coefficients and unit."""
    if wanted is None:
        return not finding.matches and not finding.zero
    if wanted == {}:
        return finding.zero
    return finding.sums == (per == "answers") and any(
        match.keys() == wanted.keys()
        and all(unit == UNITS[per] for unit in units.values())
        and match == pytest.approx(wanted, rel=1e-6)
        for match, units in zip(finding.matches, finding.units, strict=True)
    )


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_of_the_corpus_runs_unchanged_and_has_its_verdict(loss):
    path, name, hand = LOSSES[loss]
    with torch.random.fork_rng():
        found = audit(found_in(path, name), scale=1.0, options=hand.options, roles=hand.map)
    for off_policy, wanted in ((False, hand.fresh), (True, hand.stale)):
        finding = next(f for f in found.findings if f.condition == (off_policy, True, 1.0, False))
        assert agrees(finding, wanted, hand.per), (off_policy, wanted, finding)
    if hand.tool is not None:
        assert found.tool.same is hand.tool
    lines = str(found).splitlines()
    assert len(lines) <= HEIGHT, lines
    in_full = ("  + ", "  - ")  # lines of a patch, which are the reader's own
    assert max(len(x) for x in lines if not x.startswith(in_full)) <= WIDTH, lines
    assert lines[0].startswith("Read: ")


def test_the_corpus_is_of_many_frameworks_and_few_losses_need_a_map():
    assert len({path.stem for path, _, _ in LOSSES.values()}) >= 17
    assert sum(bool(hand.map) for _, _, hand in LOSSES.values()) <= len(LOSSES) / 8
