"""The small world: its layout by hand, which answers share a row, and what its arguments move."""

import pytest
import torch

from kl_companion.monitor.doctor.world import REWARDS, Ids, SmallWorld, world
from kl_companion.rollout import Rollout

IDS = Ids(pad=9, live=(2, 11, 12, 13), digits=(20, 21, 22))
ANSWERS = [[11, 2], [13, 2], [12, 11, 2], [13, 11, 12, 2], [11, 13, 13, 12], [12, 13, 2]]


def test_ids_fit_into_their_vocabulary_and_are_apart():
    assert IDS.size == 23
    assert Ids().size == 8
    assert Ids(pad=40).size == 41
    assert not {*Ids().live} & {*Ids().digits}


def test_the_layout_of_its_answers():
    layout = world(IDS).layout()
    # one to six in binary digits, and the sign that ends a prompt; padded on the left
    assert layout.prompt_ids.tolist() == [
        [9, 9, 21, 22],
        [9, 21, 20, 22],
        [9, 21, 21, 22],
        [21, 20, 20, 22],
        [21, 20, 21, 22],
        [21, 21, 20, 22],
    ]
    assert layout.prompt_mask.tolist() == [[int(x != 9) for x in row] for row in layout.prompt_ids.tolist()]
    assert layout.completion_ids.tolist() == [x + [9] * (4 - len(x)) for x in ANSWERS]
    assert layout.completion_mask.sum(-1).tolist() == [2, 2, 3, 4, 4, 3]
    assert layout.input_ids[2].tolist() == [9, 21, 21, 22, 12, 11, 2, 9]
    assert layout.attention_mask[2].tolist() == [0, 1, 1, 1, 1, 1, 1, 0]


def test_its_rewards_act_with_a_baseline_and_without_one():
    assert REWARDS.abs().min() > 0
    assert (REWARDS - REWARDS.mean()).abs().min() > 1e-3
    assert (REWARDS[:3] - REWARDS[:3].mean()).abs().min() > 1e-3
    assert world(rewards=REWARDS).rollout.rewards.equal(REWARDS)
    assert world(rewards=0.5).rollout.rewards.tolist() == [0.5] * 6


def test_policies_are_apart_by_what_is_asked():
    same = world(apart=0.0).rollout
    assert same.logits.equal(same.ref_logits)
    one, two = world(apart=0.6).rollout, world(apart=-0.9).rollout
    assert one.logits.equal(two.logits)
    torch.testing.assert_close((one.ref_logits - one.logits) / 0.6, (two.ref_logits - two.logits) / -0.9)
    assert world().rollout.behavior_logits is None
    stale = world(stale=0.1).rollout
    assert (stale.behavior_logits - stale.logits).abs().max() == pytest.approx(0.1, rel=0.05)


@pytest.mark.parametrize(
    ("by", "reference", "policy"), [(1.5, 1.5, 0.0), (-3.0, -3.0, 0.0), (2.0, 2.0, 0.0), (6.0, 2.0, -4.0)]
)
def test_one_log_ratio_is_moved(by, reference, policy):
    plain, moved = world().rollout, world(bumped=(3, 1, by)).rollout
    changed = torch.zeros_like(plain.logits)
    changed[3, 1, 1] = 1.0  # answer 3 is the tokens 3, 1, 2, 0
    torch.testing.assert_close(moved.ref_logits, plain.ref_logits + reference * changed)
    torch.testing.assert_close(moved.logits, plain.logits + policy * changed)
    both = world(bumped=(3, 1, by), both=True).rollout
    torch.testing.assert_close(both.ref_logits, plain.ref_logits + policy * changed)
    torch.testing.assert_close(both.logits, plain.logits + policy * changed)


def rollout(tokens, lengths):
    """With logits that count up."""
    count, seq = len(tokens), len(tokens[0])
    mask = torch.tensor([[float(t < n) for t in range(seq)] for n in lengths])
    logits = torch.arange(count * seq * 3, dtype=torch.float64).view(count, seq, 3) / 10
    return Rollout.from_logits(torch.tensor(tokens), mask, logits, -logits, rewards=torch.zeros(count))


def test_the_same_text_has_the_same_row_and_others_have_their_own():
    at = SmallWorld.of(rollout([[1, 0], [2, 0], [1, 0], [1, 2], [1, 0]], [2, 2, 2, 2, 1]), Ids())
    assert sorted(set(at.order)) == list(at.rows) == [0, 1, 2, 3]
    assert at.order[0] == at.order[2]
    assert at.batch == list(at.order)
    # the last is cut off after its first token
    assert [at.answer(i) for i in at.order] == [[2, 1], [3, 1], [2, 1], [2, 3], [2]]
    first = at.rollout.logits[list(at.order), 0, 0]
    assert first.tolist() == pytest.approx([0.0, 0.6, 0.0, 1.8, 2.4])
    assert at.layout().completion_ids.tolist() == [[2, 1], [3, 1], [2, 1], [2, 3], [2, 1]]
    assert at.layout().completion_mask.tolist() == [[1, 1], [1, 1], [1, 1], [1, 1], [1, 0]]


def test_what_is_behind_the_end_makes_no_other_text():
    at = SmallWorld.of(rollout([[1, 0, 2], [1, 0, 1], [1, 0, 0]], [2, 2, 2]), Ids())
    assert at.order == (0, 0, 0)
    assert world().batch == [0, 1, 2, 3, 4, 5]
