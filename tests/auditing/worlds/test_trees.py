"""The worlds on which losses are judged: trees near and far, and answers with text of a tool inside."""

import itertools
import math

import pytest
import torch

from kl_companion.auditing.worlds.objective import fields_and_values
from kl_companion.auditing.worlds.objectives import OBJECTIVES, objectives
from kl_companion.auditing.worlds.trees import Condition, known_fields, with_tool, worlds
from kl_companion.tabular import prefix_tree
from kl_companion.tabular.populations import large_batches

FRESH, STALE = Condition(False, True, 1.0), Condition(True, True, 1.0)


@pytest.mark.parametrize("condition", [FRESH, STALE, Condition(True, False, 4.0)])
def test_worlds_are_one_long_tree_and_three_short_ones(condition):
    found = worlds(condition, 3)
    assert [w.problem.sequences.shape[-1] for w in found] == [3, 2, 2, 2]
    assert [w.problem.sequences.shape[-1] for w in worlds(condition, 2, longer=False)] == [2, 2, 2]
    for w in found:
        p = w.problem
        assert (p.behavior_logits is not None) is condition.off_policy
        ratio = (p.logits.log_softmax(-1) - p.ref_logits.log_softmax(-1)).abs().max()
        assert ratio <= 2 * condition.scale + 1e-12  # what clamps of K3 and of ratios are told by


def log_ratios(off_policy, scale):
    """(smallest, largest) log(ref/pi) of the tokens of all worlds."""
    places = [w.problem.rollout(w.problem.logits) for w in worlds(Condition(off_policy, True, scale), 3)]
    found = [(r.ref_logp - r.logp)[r.completion_mask.bool()] for r in places]
    return min(x.min().item() for x in found), max(x.max().item() for x in found)


def test_far_worlds_reach_a_clamp_at_ten_of_the_squared_log_ratio():
    for off_policy in (False, True):
        assert log_ratios(off_policy, 4.0)[1] > math.sqrt(20)
        low, high = log_ratios(off_policy, 1.0)
        assert max(-low, high) < 1.5


def test_a_sum_over_a_head_is_told_from_the_same_clamped_at_zero():
    def head(rollout, least):
        p, q = rollout.logp_all, rollout.ref_logp_all
        index = q.topk(2, dim=-1).indices
        p, q = p.gather(-1, index), q.gather(-1, index)
        return ((q.exp() * (q - p)).sum(-1).clamp(min=least) * rollout.completion_mask).sum(-1).mean()

    for off_policy, eos, scale in itertools.product((False, True), (False, True), (1.0, 4.0)):
        places = worlds(Condition(off_policy, eos, scale), 3)
        plain, clamped = (
            [large_batches(lambda r, x=x: head(r, x), w).gradient for w in places] for x in (-9.0, 0.0)
        )
        assert max((a - b).norm() for a, b in zip(plain, clamped, strict=True)) > 1e-3


def test_answers_with_text_of_a_tool_by_hand():
    """Of tokens 0 (the end), 1 and 2: behind 1 a tool says two tokens, behind 2 one, behind 0 nothing."""
    plain = prefix_tree(3, 2, seed=4, eos=True, off_policy=True)
    found = with_tool(plain)
    assert plain.sequences.tolist() == [[0, 0], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]
    wanted_mask = [[1, 0, 0, 0], *[[1, 0, 0, 1]] * 3, *[[1, 0, 1, 0]] * 3]
    assert found.completion_mask.tolist() == wanted_mask
    own = [
        tokens[mask > 0].tolist() for tokens, mask in zip(found.sequences, found.completion_mask, strict=True)
    ]
    assert own == [[0], [1, 0], [1, 1], [1, 2], [2, 0], [2, 1], [2, 2]]
    # the same text whatever comes behind it, another one behind another token, and never the end
    assert len({tuple(x) for x in found.sequences[1:4, 1:3].tolist()}) == 1
    assert found.sequences[1, 1] != found.sequences[4, 1]
    assert (found.sequences[1:4, 1:3] > 0).all()
    assert (found.sequences[4:, 1] > 0).all()
    # tokens of the text have rows of their own; the policy's have those that they had
    rows = [[0], *[[0, 5, 6, 1]] * 3, *[[0, 7, 2]] * 3]
    assert [r[: len(w)].tolist() for r, w in zip(found.rows, rows, strict=True)] == rows
    assert len(found.logits) == 3 + 6
    for mine, theirs in ((found.logits, plain.logits), (found.behavior_logits, plain.behavior_logits)):
        torch.testing.assert_close(mine[:3], theirs)
    torch.testing.assert_close(found.probabilities(), plain.probabilities())
    inside = found.rollout(found.logits)
    text = (inside.completion_mask == 0) & (torch.arange(4) < torch.tensor([len(r) for r in rows])[:, None])
    ratios = torch.stack([inside.logp - inside.ref_logp, inside.logp - inside.behavior_logp])[:, text]
    assert (ratios.abs() > 1e-3).all()  # models disagree about the text, by as much as about answers
    assert ratios.abs().max() < 2


@pytest.mark.parametrize("off_policy", [False, True])
def test_objectives_do_not_see_text_of_a_tool(off_policy):
    """Against objectives that are differentiated on those answers themselves."""
    condition = Condition(off_policy, True, 1.0, tool=True)
    names = tuple(objectives(off_policy=off_policy, lengths=True, heads=False))
    known = known_fields(condition, 3, names, True, False)
    for place, there in zip(worlds(condition, 3), known, strict=True):
        direct = fields_and_values({n: OBJECTIVES[n] for n in names}, place.problem)
        for n in names:
            assert there[n][0] == pytest.approx(direct[n][0], abs=1e-12)
            torch.testing.assert_close(there[n][1], direct[n][1], rtol=1e-9, atol=1e-12)
    plain = worlds(condition._replace(tool=False), 3)
    for place, before in zip(worlds(condition, 3), plain, strict=True):
        assert place.tokens_per_answer == before.tokens_per_answer
        assert torch.equal(place.which, before.which)


def test_objectives_are_computed_when_they_are_read_and_once() -> None:
    problem, scalar = worlds(Condition(False, True, 1.0), 2)[1].problem, OBJECTIVES["expected_reward"].scalar
    calls = []
    counting = OBJECTIVES["expected_reward"]._replace(scalar=lambda ro: (calls.append(1), scalar(ro))[1])
    recorded = 7.0, torch.zeros_like(problem.logits)
    both = fields_and_values({"c": counting, "a": counting, "b": counting}, problem, {"c": recorded})
    assert (list(both), len(both), both["c"], calls) == (["c", "a", "b"], 3, recorded, [])
    assert both["a"] is both["a"]
    assert calls == [1]
    with pytest.raises(KeyError, match="d"):
        both["d"]
