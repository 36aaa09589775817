"""Layouts of a loss's tensors: which are tried, and that every token of an answer is read."""

import pytest
import torch
import torch.nn.functional as F

from kl_companion import audit
from kl_companion.auditing.reading.arguments import Given, Unusable
from kl_companion.auditing.reading.layouts import Layout, layouts
from kl_companion.auditing.reading.subject import as_loss, as_subject
from kl_companion.tabular.populations import population_rollout, population_tree

ROLLOUT = population_rollout(population_tree(3, 2, parts=4, eos=True, off_policy=True))
MASK = ROLLOUT.completion_mask
INSIDE = MASK.bool()


def layout_of(loss):
    return as_subject(loss).reading.layout


def of_mean(x):
    return (x * MASK).sum(-1).mean() if x.shape == MASK.shape else x.mean()


def squares(logp, ref_logp):
    return (logp - ref_logp) ** 2 / 2


def selected(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def any_mask(logp, ref_logp, mask):
    return squares(logp, ref_logp) * mask


def bool_mask(logp, ref_logp, mask):
    return torch.where(mask, squares(logp, ref_logp), 0.0)


def negated_mask(logp, ref_logp, mask):
    return squares(logp, ref_logp).masked_fill(~mask, 0.0)


def whole_mask(logp, ref_logp, mask):
    return squares(logp, ref_logp) * F.one_hot(mask, 2)[..., 1]


def of_answers(logp, advantages):
    return -advantages[:, None] * logp


def of_either(logp, advantages):
    return -(advantages if advantages.dim() == 2 else advantages[:, None]) * logp


def of_tokens(logp, advantages, mask):
    assert advantages.shape == logp.shape
    return -advantages * logp * mask


def shifted(logits, input_ids):
    return -selected(logits[:, :-1], input_ids[:, 1:])


def aligned(logits, input_ids):
    return -selected(logits, input_ids)


def ignoring(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)


def not_ignoring(logits, labels):
    return -selected(logits[:, :-1], labels[:, 1:])


def wide_reference(logits, labels, ref_logps):
    kept = labels[:, 1:] != -100
    logp = selected(logits[:, :-1], labels[:, 1:].clamp(min=0))
    return (squares(logp, ref_logps[:, 1:]) * kept).sum(-1).mean()


def narrow_reference(logits, labels, ref_logps):
    kept = labels[:, 1:] != -100
    return (squares(selected(logits[:, :-1], labels[:, 1:].clamp(min=0)), ref_logps) * kept).sum(-1).mean()


def whole_vocabulary(logprobs, ref_logprobs, completion_ids):
    return squares(
        *(x.gather(-1, completion_ids.unsqueeze(-1)).squeeze(-1) for x in (logprobs, ref_logprobs))
    )


@pytest.mark.parametrize(
    ("loss", "wanted"),
    [
        (any_mask, {"mask": torch.float64}),
        (bool_mask, {"mask": torch.bool}),
        (negated_mask, {"mask": torch.bool}),
        (whole_mask, {"mask": torch.int64}),
        (of_answers, {"per_token": False}),
        (of_either, {"per_token": False}),
        (of_tokens, {"per_token": True}),
        (shifted, {"shifted": True}),
        (aligned, {"shifted": False}),
        (ignoring, {"shifted": True, "ignored": True}),
        (not_ignoring, {"shifted": True, "ignored": False}),
        (wide_reference, {"shifted": True, "wide": "own"}),
        (narrow_reference, {"shifted": True, "wide": ""}),
        (whole_vocabulary, {"whole": True}),
        (any_mask, {"padded": True}),
        (squares, {"padded": False}),
    ],
)
def test_the_first_layout_that_runs_and_reads_the_right_logits(loss, wanted):
    found = layout_of(loss)
    assert {n: getattr(found, n) for n in wanted} == wanted


@pytest.mark.parametrize(
    "loss", [shifted, wide_reference, narrow_reference, whole_vocabulary, any_mask, squares]
)
def test_every_layout_is_of_the_same_numbers(loss):
    """By hand, from the rollout's own log-probs."""
    mine = -ROLLOUT.logp if loss is shifted else squares(ROLLOUT.logp, ROLLOUT.ref_logp)
    assert as_loss(loss)(ROLLOUT).item() == pytest.approx(of_mean(mine).item(), rel=1e-12)


def test_logits_behind_the_last_token_tell_a_shift():
    def misread(
        logits, input_ids
    ):  # runs on prompt and answer together, and scores each token by its own logits
        return -selected(logits, input_ids).sum(-1).mean()

    assert layout_of(misread).shifted is False

    def only_misread(logits, input_ids):
        assert input_ids.shape[1] > 3, "prompt and answer together"
        return -selected(logits, input_ids).sum(-1).mean()

    with pytest.raises(Unusable, match="prompt and answer together"):
        as_loss(only_misread)


def test_layouts_begin_with_the_most_common():
    plain, lists = Layout(padded=False), Layout(padded=False, cut=True)
    assert list(layouts({"logp", "ref_logp"})) == [plain, lists]
    assert list(layouts({"logp", "ref_logp"}, cut=True)) == [lists, plain]
    tried = list(layouts({"logp", "completion_mask"}))
    assert [x.mask for x in tried[:3]] == [torch.float64, torch.bool, torch.int64]
    assert [(x.wide, x.prompt) for x in tried[:12:3]] == [("", 1), ("ahead", 2), ("short", 2), ("own", 2)]
    tried = list(layouts({"logits", "labels", "rewards", "completion_mask"}))
    assert len(tried) == len(set(tried)) == 2 * (6 + 1) * 2 * 2 * 3  # once with masks apart from the prompt
    assert tried[0] == Layout(shifted=True, wide="own")


# Prompt and answer together, and lists of answers: each by hand from the rollout's own log-probs.


def ahead(logps, ref_logps, attention_mask, loss_mask):
    mask = attention_mask[:, 1:] * loss_mask[:, 1:]
    return (squares(logps[:, :-1], ref_logps[:, :-1]) * mask).sum(-1).mean()


def short(logps, ref_logps, loss_mask):
    return (squares(logps, ref_logps) * loss_mask[:, 1:]).sum(-1).mean()


def own(logps, ref_logps, mask):
    return (squares(logps, ref_logps)[:, 1:] * mask[:, 1:]).sum(-1).mean()


def of_prompt_length(logps, ref_logps, attention_mask, prompt_length):
    each = squares(logps, ref_logps)[:, prompt_length - 1 : -1]
    return (each * attention_mask[:, prompt_length:]).sum(-1).mean()


def of_prompt_lengths(logps, ref_logps, attention_mask, prompt_lens):
    mask = attention_mask[:, 1:].clone()
    for i, n in enumerate(prompt_lens.tolist()):
        mask[i, : n - 1] = 0
    return (squares(logps, ref_logps)[:, :-1] * mask).sum(-1).mean()


def packed(logps, ref_logps):
    return squares(torch.cat(logps), torch.cat(ref_logps)).sum() / len(logps)


def per_answer(logps, ref_logps, masks):
    return [(squares(x, y) * mask)[:99] for x, y, mask in zip(logps, ref_logps, masks, strict=True)]


def annotated(logps: list[torch.Tensor], ref_logps: list[torch.Tensor]):
    return torch.stack([squares(x, y).sum() for x, y in zip(logps, ref_logps, strict=True)]).mean()


def one_by_one(samples):
    return torch.stack([squares(s["logp"], s["ref_logp"]).sum() for s in samples]).mean()


@pytest.mark.parametrize(
    ("loss", "wide", "cut"),
    [
        (ahead, "ahead", False),
        (short, "short", False),
        (own, "own", False),
        (of_prompt_length, "ahead", False),
        (of_prompt_lengths, "ahead", False),
        (packed, "", True),
        (per_answer, "", False),
        (annotated, "", True),
        (one_by_one, "", False),
    ],
)
def test_every_token_is_read_whatever_is_cut_off(loss, wide, cut):
    found = layout_of(loss)
    assert (found.wide, found.cut, found.prompt) == (wide, cut, 2 if wide else 1)
    wanted = of_mean(squares(ROLLOUT.logp, ROLLOUT.ref_logp)).item()
    assert as_loss(loss)(ROLLOUT).item() == pytest.approx(wanted, rel=1e-12)


def test_means_of_lists_have_no_padding():
    def means(logps, ref_logps):
        return torch.stack([squares(x, y).mean() for x, y in zip(logps, ref_logps, strict=True)]).mean()

    each = squares(ROLLOUT.logp, ROLLOUT.ref_logp) * MASK
    assert as_loss(means)(ROLLOUT).item() == pytest.approx((each.sum(-1) / MASK.sum(-1)).mean().item())
    assert "in lists, one for each answer" in " ".join(str(audit(means, scale=1.0, off_policy=False)).split())


def test_numbers_of_two_tokens_of_a_prompt():
    for wide, before, after in (("ahead", 1, 1), ("short", 1, 0), ("own", 2, 0)):
        given = Given(ROLLOUT, Layout(shifted=True, wide=wide, prompt=2))
        logp, ref_logp = given.of("logp"), given.of("ref_logp")
        length = MASK.shape[1]
        assert logp.shape[1] == before + length + after
        torch.testing.assert_close(logp[:, before : before + length], ROLLOUT.logp)
        outside = torch.cat([(logp - ref_logp)[:, :before], (logp - ref_logp)[:, before + length :]], 1)
        assert (outside.abs() > 0.1).all()  # what is not masked shows
        mask = given.of("completion_mask", "loss_mask")
        assert mask[:, 2:].tolist() == MASK.tolist()
        assert not mask[:, :2].any()
        assert given.of("completion_mask", "attention_mask")[:, :2].all()
        assert given.of("tokens").shape == mask.shape


def test_a_loss_that_reads_no_first_token_under_any_layout_is_taken_as_it_runs():
    def all_but_the_first(logp, ref_logp, mask):
        assert logp.shape[1] <= 3, "an answer"
        return (squares(logp, ref_logp)[:, 1:] * mask[:, 1:]).sum(-1).mean()

    assert layout_of(all_but_the_first) == Layout()
    assert as_subject(all_but_the_first).reading.notes == ("The first token of an answer gets no gradient",)
    assert as_subject(own).reading.notes == ()
