"""What a loss is given, under which layout, and where its loss is found in what it returns."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from kl_companion import audit
from kl_companion.auditing.reading.arguments import IGNORED, Given, Unusable, loss_of
from kl_companion.auditing.reading.layouts import Layout, layouts
from kl_companion.auditing.reading.names import ROLES
from kl_companion.auditing.reading.subject import as_loss, as_subject
from kl_companion.rollout import Rollout
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
    assert len(tried) == len(set(tried)) == 2 * 6 * 2 * 2 * 3
    assert tried[0] == Layout(shifted=True, wide="own")


def test_padding_holds_zeros_where_no_mask_is_read():
    for layout, nothing in ((Layout(padded=False), True), (Layout(), False)):
        for role in ("logp", "ref_logp", "behavior_logp"):
            x = Given(ROLLOUT, layout).of(role)
            assert bool((x[~INSIDE] == 0).all()) is nothing
            assert (x[INSIDE] != 0).all()


VALUES = [r for r in ROLES if r not in ("batch", "rollout")]


@pytest.mark.parametrize("layout", [Layout(), Layout(shifted=True, wide="own", per_token=True)])
@pytest.mark.parametrize("role", VALUES)
def test_operations_in_place_do_not_leak(role, layout):
    before = {n: x.clone() for n, x in vars(ROLLOUT).items() if isinstance(x, torch.Tensor)}
    x = Given(ROLLOUT, layout).of(role)
    x = x.logits if role.endswith("outputs") else x
    if not isinstance(x, torch.Tensor):
        assert x in ROLLOUT.tokens.shape
        return
    x.detach().fill_(1)
    for name, was in before.items():
        torch.testing.assert_close(getattr(ROLLOUT, name), was, rtol=0, atol=0, msg=name)


def test_values_of_roles():
    given, wide = Given(ROLLOUT, Layout()), Given(ROLLOUT, Layout(shifted=True, wide="own", mask=torch.bool))
    torch.testing.assert_close(given.of("log_ratio"), ROLLOUT.logp - ROLLOUT.ref_logp)
    torch.testing.assert_close(given.of("log_importance_ratio").exp(), given.of("importance_ratio"))
    torch.testing.assert_close(given.of("ref_sequence_logp"), (ROLLOUT.ref_logp * MASK).sum(-1))
    torch.testing.assert_close(given.of("ref_probs").log(), given.of("ref_logp_all"))
    torch.testing.assert_close(given.of("ref_outputs").logits, given.of("ref_logits"))
    torch.testing.assert_close(given.of("ref_outputs")["log_probs"], ROLLOUT.ref_logp)
    torch.testing.assert_close(given.of("outputs")[0], given.of("logits"))
    assert given.of("outputs").get("nothing", 3) == 3
    p = given.of("probs")
    torch.testing.assert_close(given.of("entropy"), -(p * p.log()).sum(-1))
    assert given.of("lengths").tolist() == MASK.sum(-1).tolist()
    assert given.of("labels")[~INSIDE].eq(IGNORED).all()
    assert (wide.of("labels")[:, 0] == IGNORED).all()
    torch.testing.assert_close(wide.of("logp")[:, 1:], ROLLOUT.logp)
    # a mask of the answer leaves the prompt out, one of attention does not
    for name, first in (("response_mask", False), ("attention_mask", True)):
        mask = wide.of("completion_mask", name)
        assert (mask[:, 0] == first).all()
        assert (mask.dtype, mask[:, 1:].tolist()) == (torch.bool, INSIDE.tolist())


@pytest.mark.parametrize("name", ["token_level_rewards", "token_level_scores"])
def test_a_reward_of_tokens_stands_at_the_last_token(name):
    each = Given(ROLLOUT, Layout()).of("rewards", name)
    torch.testing.assert_close(each.sum(-1), ROLLOUT.rewards)
    last = MASK.sum(-1).long() - 1
    torch.testing.assert_close(each.gather(-1, last.unsqueeze(-1)).squeeze(-1), ROLLOUT.rewards)
    spread = Given(ROLLOUT, Layout(per_token=True)).of("rewards", "advantages")
    torch.testing.assert_close(spread, ROLLOUT.rewards.unsqueeze(-1) * MASK)


@dataclass
class Record:
    kl: torch.Tensor
    policy_loss: torch.Tensor


class Named(NamedTuple):
    kl: torch.Tensor
    loss: torch.Tensor


class Output:
    def __init__(self, loss):
        self.loss = loss


X = squares(ROLLOUT.logp, ROLLOUT.ref_logp).detach()
ONE = of_mean(X)
SHAPES = {
    "one number": ONE,
    "one number, [1]": ONE.reshape(1),
    "[batch, seq]": X,
    "[batch, seq + 1]": torch.cat([torch.full_like(X[:, :1], 7.0), X], 1),
    "[batch]": (X * MASK).sum(-1),
    "[batch, 1]": (X * MASK).sum(-1, keepdim=True),
    "under the mask": X[INSIDE],
}
WRAPS = {
    "bare": lambda x: x,
    "tuple": lambda x: (x, torch.zeros(3)),
    "after a number": lambda x: (0.5, x, torch.zeros(3)),
    "dict": lambda x: {"kl": torch.zeros(3), "loss": x, "kl_loss": torch.zeros(3)},
    "dict of parts": lambda x: {"kl": torch.zeros(3), "policy_loss": x},
    "dataclass": lambda x: Record(torch.zeros(3), x),
    "NamedTuple": lambda x: Named(torch.zeros(3), x),
    ".loss": Output,
}


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_where_a_loss_is_and_how_it_is_reduced(shape, wrap):
    x, how = loss_of(WRAPS[wrap](SHAPES[shape]), ROLLOUT, "f")
    assert of_mean(x).item() == pytest.approx(ONE.item(), rel=1e-12)
    assert how
    assert ("loss" in how) == (wrap not in ("bare", "tuple", "after a number"))


def test_nan_on_padding_is_not_the_readers():
    x, _ = loss_of(X.masked_fill(~INSIDE, float("nan")), ROLLOUT, "f")
    assert x.isnan().any()


def breaks(logp, ref_logp, mask, beta=0.1, config=None):
    kl = squares(logp, ref_logp)
    return (kl * mask).sum(-1).mean() + config.entropy_coef


def test_a_refusal_names_the_readers_own_line_and_what_was_passed():
    with pytest.raises(Unusable) as caught:
        as_subject(breaks, options={"beta": 0.5})
    said = str(caught.value)
    assert "breaks raised AttributeError: 'NoneType' object has no attribute 'entropy_coef'" in said
    assert f"at {__file__}:{breaks.__code__.co_firstlineno + 2}: return (kl * mask).sum(-1)" in said
    assert "passed: logp [64, 3] float64, ref_logp [64, 3] float64, mask [64, 3] float64, beta 0.5" in said
    assert "--map NAME=ROLE" in said
    assert "--set NAME=VALUE" in said


def test_a_rollout_without_logits_or_rewards_says_what_is_missing():
    bare = Rollout(ROLLOUT.tokens, MASK, ROLLOUT.logp.detach(), ROLLOUT.ref_logp)
    with pytest.raises(Unusable, match="reads logits, and this rollout holds log-probs"):
        Given(bare, Layout()).of("logits")
    with pytest.raises(Unusable, match="the loss reads advantages, and this rollout holds none"):
        Given(bare, Layout()).of("rewards", "advantages")


def test_behind_the_last_token_the_models_differ():
    """Else the gradient of a KL would be 0 there, and a layout that scores these logits would look right."""
    given = Given(ROLLOUT, Layout(shifted=True))
    mine, theirs = (given.of(name)[:, -1].log_softmax(-1) for name in ("logits", "ref_logits"))
    (g,) = torch.autograd.grad((mine.exp() * (mine - theirs)).sum(), given.beyond["logits"])
    assert (g.abs() > 0.01).any(-1).all()


def decoupled(logp, old_logp, rollout_logp, ref_logp, mask):
    """A weight that is pi_old / mu: 1 where one policy has sampled and is old, pi / mu at a first update."""
    weight = (old_logp - rollout_logp).exp()
    return (weight * squares(logp, ref_logp) * mask).sum(-1).mean()


def test_an_old_policy_and_another_sampler_are_apart_at_a_first_update():
    found = audit(decoupled, scale=1.0)
    assert found.findings[-1].matches == ({"behavior_squared_log_ratio": 1.0},)  # the weight is 1
    # by hand: E_mu[pi/mu K1 score] in every state that mu visits
    assert {"token_reverse_kl": 1.0} in found.first_update.matches
    text = " ".join(str(found).split())
    assert "old_logp and rollout_logp are of one policy here." in text
    assert "of another, it minimizes reverse KL, next token." in text
    assert found.to_dict()["first_update"]["terms"][0]["objective"] == "token_reverse_kl"
    assert audit(decoupled, scale=1.0, off_policy=False).first_update is None


def test_one_sampler_has_nothing_apart():
    def plain(logp, old_logp, mask):
        return ((logp - old_logp).exp() * mask).sum(-1).mean()

    assert audit(plain, scale=1.0).first_update is None
    given = Given(ROLLOUT, Layout(own_old=True))
    torch.testing.assert_close(given.of("behavior_logp", "old_logp"), ROLLOUT.logp.detach())
    torch.testing.assert_close(given.of("behavior_logp", "rollout_logp"), ROLLOUT.behavior_logp)
    assert not given.of("behavior_logits", "old_logits").requires_grad


# Prompt and answer together, and lists of answers: each by hand from the rollout's own log-probs.


def ahead(logps, ref_logps, attention_mask, loss_mask):
    mask = attention_mask[:, 1:] * loss_mask[:, 1:]
    return (squares(logps[:, :-1], ref_logps[:, :-1]) * mask).sum(-1).mean()


def short(logps, ref_logps, loss_mask):
    return (squares(logps, ref_logps) * loss_mask[:, 1:]).sum(-1).mean()


def own(logps, ref_logps, mask):
    return (squares(logps, ref_logps)[:, 1:] * mask[:, 1:]).sum(-1).mean()


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


def _two(logp, ref_logp, mask):
    difference = logp - ref_logp
    return tuple((x * mask).sum(-1).mean() for x in (-difference.expm1() * 0.1, 0.5 * difference**2))


class _Losses(NamedTuple):
    policy_loss: torch.Tensor
    kl_loss: torch.Tensor


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (lambda x: {"aux_loss": x[0], "kl_loss": x[1]}, "loss = its 'aux_loss', not 'kl_loss'"),
        (lambda x: {"kl_loss": x[1], "aux_loss": x[0], "n": 3}, "loss = its 'kl_loss', not 'aux_loss'"),
        (lambda x: _Losses(*x), "loss = its .policy_loss, not kl_loss"),
        (lambda x: x, "loss = the first tensor of the tuple, not 1 more with a gradient"),
        (lambda x: {"loss": x[0], "kl_loss": x[1]}, ""),
        (lambda x: (x[0], x[1].detach(), {"kl": x[1]}), ""),
        (lambda x: x[0], ""),
    ],
)
def test_the_card_says_which_of_several_losses_was_taken(put, said):
    def loss(logp, ref_logp, mask):
        return put(_two(logp, ref_logp, mask))

    text = " ".join(str(audit(loss, scale=1.0, off_policy=False)).split())
    assert said in text
    assert ("loss = " in text) is bool(said)
