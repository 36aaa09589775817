"""What a loss is given, under which layout, and where its loss is found in what it returns."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.reading.arguments import IGNORED, Given, Unusable
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.auditing.reading.names import ROLES
from kl_companion.auditing.reading.results import loss_of
from kl_companion.auditing.reading.subject import as_subject
from kl_companion.rollout import Rollout
from kl_companion.tabular.populations import population_rollout, population_tree

ROLLOUT = population_rollout(population_tree(3, 2, parts=4, eos=True, off_policy=True))
MASK = ROLLOUT.completion_mask
INSIDE = MASK.bool()


def of_mean(x):
    return (x * MASK).sum(-1).mean() if x.shape == MASK.shape else x.mean()


def squares(logp, ref_logp):
    return (logp - ref_logp) ** 2 / 2


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
        assert x in (*ROLLOUT.tokens.shape, layout.shifted * layout.prompt)
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


def test_a_mask_of_padding_is_1_where_the_mask_of_the_answer_is_0():
    for layout in (Layout(), Layout(shifted=True, wide="own")):
        for dtype in (torch.bool, torch.float64):
            values = Given(ROLLOUT, layout._replace(mask=dtype))
            inside, outside = values.of("completion_mask"), values.of("outside_mask")
            assert outside.dtype is dtype
            assert torch.equal(inside.double() + outside.double(), torch.ones_like(inside.double()))


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


def breaks(logp, ref_logp, mask, beta=0.1, extra=None):
    kl = squares(logp, ref_logp)
    return (kl * mask).sum(-1).mean() + extra.entropy_coef


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
