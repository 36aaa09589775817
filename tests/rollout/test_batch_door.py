"""What a rollout refuses, reads, detaches and remembers."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from kl_companion import kl_loss, kl_reward
from kl_companion.kernels import fused_kl
from kl_companion.rollout import Rollout, check_rollout, importance_ratio, per_token
from tests.support.rollouts import INF, NAN, drawn
from tests.support.transforms import host_reads

B, T, V = 2, 3, 4
MASK = torch.tensor([[0, 1, 1], [1, 1, 0]])
LOGITS = ("logits", "ref_logits", "behavior_logits")


def tensors(**changes: Any) -> dict[str, Any]:
    """Every tensor of a rollout, in float64."""
    rewarded = {"rewards": torch.tensor([1.0, -1.0]), "prompt_index": torch.tensor([0, 0])}
    return {**drawn(MASK, V), **rewarded, **changes}


def at(x: torch.Tensor, place: tuple[Any, ...], value: Any) -> torch.Tensor:
    """Return a copy with another value at one place."""
    x = x.clone()
    x[place] = value
    return x


# values

WORDS = {str(NAN): "NaN", str(INF): "inf", str(-INF): "-inf", "0.001": "0.001"}
ONE_TOKEN = [((0, 1), x, rf"{WORDS[str(x)]} at \[0, 1\]") for x in (NAN, INF, -INF, 1e-3)]
ONE_ROW = [
    ((1, 0, 2), NAN, r"NaN at \[1, 0, 2\]"),
    ((1, 0, 2), INF, r"inf at \[1, 0, 2\]"),
    ((1, 0), -INF, r"-inf in the whole row \[1, 0\]"),
]
BAD = [
    *((name, *case) for name in ("logp", "ref_logp", "behavior_logp") for case in ONE_TOKEN),
    *((name, *case) for name in LOGITS for case in ONE_ROW),
    ("rewards", (1,), NAN, r"NaN at \[1\]"),
    ("tokens", (1, 1), V, "4, expected 0 to 3"),
    ("tokens", (1, 1), -1, "-1, expected 0 to 3"),
    ("completion_mask", (0, 0), 2, r"neither 0 nor 1 at \[0, 0\]"),
    ("completion_mask", (1,), 0, r"row \[1\] has no token"),
]


@pytest.mark.parametrize(("name", "place", "value", "message"), BAD)
def test_a_wrong_value_is_refused_by_name_and_place(name, place, value, message) -> None:
    wrong = at(tensors()[name], place, value)
    with pytest.raises(ValueError, match=rf"^{name} .*{message}"):
        Rollout(**tensors(**{name: wrong}))
    assert Rollout(**tensors(**{name: wrong}), validate=False)
    assert host_reads(lambda: Rollout(**tensors(**{name: wrong}), validate=False)) == []


@pytest.mark.parametrize(("name", "place", "value", "message"), BAD)
def test_a_wrong_value_that_came_later_is_refused_before_a_loss(name, place, value, message) -> None:
    """Also by what was computed before: the distributions are cached."""
    rollout = Rollout(**tensors())
    kl_loss(rollout, "exact_kl")
    getattr(rollout, name)[place] = value
    for use in (
        lambda: kl_loss(rollout, "k1"),
        lambda: kl_loss(rollout, "exact_kl"),
        lambda: kl_reward(rollout),
        lambda: per_token("k2", rollout),
        lambda: importance_ratio(rollout, scope="token"),
        lambda: rollout.logp_all,
    ):
        with pytest.raises(ValueError, match=rf"^{name} .*{message}"):
            use()


def test_one_token_of_a_row_may_be_masked() -> None:
    batch = tensors()
    other = (batch["tokens"][1, 0] + 1) % V
    masked = {name: at(batch[name], (1, 0, other), -INF) for name in LOGITS}
    rollout = Rollout.from_logits(batch["tokens"], MASK, masked["logits"], masked["ref_logits"])
    assert kl_loss(rollout, "exact_kl").isfinite()
    assert Rollout(**tensors(**masked))


# reads


def test_values_are_read_once() -> None:
    batch = tensors()
    assert len(host_reads(lambda: Rollout(**batch))) == 1
    args = [batch[name] for name in ("tokens", "completion_mask", "logits", "ref_logits")]
    more = {"behavior_logits": batch["behavior_logits"], "rewards": batch["rewards"]}
    assert len(host_reads(lambda: Rollout.from_logits(*args, **more))) == 1
    assert host_reads(lambda: Rollout.from_logits(*args, **more, validate=False)) == []
    rollout = Rollout(**batch)
    assert host_reads(lambda: check_rollout(rollout)) == []
    assert host_reads(lambda: (rollout[0], rollout[[1, 0]], rollout.to("cpu"), len(rollout))) == []


# gradients


@pytest.mark.parametrize("importance", ["auto", "token", None])
@pytest.mark.parametrize("name", ["ref_logp", "behavior_logp", "ref_logits", "behavior_logits"])
def test_reference_and_sampler_get_no_gradient(name, importance) -> None:
    batch = tensors()
    leaves = {x: batch[x].clone().requires_grad_() for x in ("logp", "logits", name)}
    rollout = Rollout(**{**batch, **leaves})
    assert not getattr(rollout, name).requires_grad
    assert rollout.logp.requires_grad
    for estimator in ("k3", "exact_kl", "top_k_reverse_kl(2)"):
        scope = None if estimator == "exact_kl" else importance
        loss = kl_loss(rollout, estimator, importance=scope)
        assert torch.autograd.grad(loss, leaves[name], allow_unused=True, retain_graph=True) == (None,)
    again = replace(rollout, **{name: leaves[name]})
    assert not getattr(again, name).requires_grad


# caches


def test_distributions_follow_their_logits() -> None:
    rollout = Rollout(**tensors())
    before = kl_loss(rollout, "exact_kl").item()
    assert rollout.logp_all is rollout.logp_all
    for name in LOGITS:
        getattr(rollout, name).mul_(3.0)
        logp_all = getattr(rollout, {"logits": "logp_all"}.get(name, name.replace("logits", "logp_all")))
        torch.testing.assert_close(logp_all[MASK == 1], getattr(rollout, name).log_softmax(-1)[MASK == 1])
    p, q = (getattr(rollout, x).log_softmax(-1) for x in ("logits", "ref_logits"))
    expected = ((p.exp() * (p - q)).sum(-1) * MASK).sum(-1).mean().item()
    assert kl_loss(rollout, "exact_kl").item() == pytest.approx(expected, rel=1e-13)
    assert expected != pytest.approx(before, rel=1e-3)


def test_estimates_follow_the_mask() -> None:
    """A token that the mask takes in later is estimated from its own distribution."""
    rollout = Rollout(**tensors())
    before = kl_loss(rollout, "exact_kl").item()
    rollout.completion_mask[0, 0] = 1
    p, q = (getattr(rollout, x)[0, 0].log_softmax(-1) for x in ("logits", "ref_logits"))
    own = (p.exp() * (p - q)).sum().item()
    assert kl_loss(rollout, "exact_kl").item() == pytest.approx(before + own / 2, rel=1e-13)


def test_a_kernel_that_writes_into_the_logits_is_noticed() -> None:
    batch = tensors()
    leaf = batch["logits"].clone().requires_grad_()
    rollout = Rollout(**{**batch, "logits": leaf * 1.0})
    before = rollout.logp_all.detach().clone()
    fused_kl(rollout.logits, rollout.ref_logits, inplace=True).sum().backward()
    assert not torch.equal(rollout.logits.log_softmax(-1), before)
    torch.testing.assert_close(rollout.logp_all[MASK == 1], rollout.logits.log_softmax(-1)[MASK == 1])


@pytest.mark.parametrize("name", ["logits", "logp", "ref_logits"])
def test_tensors_of_inference_mode(name) -> None:
    """They do not count changes, so that they are read again before every loss."""
    with torch.inference_mode():
        batch = tensors()
    outside = {x: y.clone() for x, y in tensors().items()}
    rollout = Rollout(**{**outside, name: batch[name]})
    for estimator in ("k1", "exact_kl"):
        assert kl_loss(rollout, estimator).item() == kl_loss(Rollout(**tensors()), estimator).item()
    with torch.inference_mode():
        getattr(rollout, name)[1, 0] = NAN
    with pytest.raises(ValueError, match=f"{name} is NaN"):
        kl_loss(rollout, "k1")


# a record


def test_two_rollouts_are_two_things() -> None:
    one, two = Rollout(**tensors()), Rollout(**tensors())
    assert one == one
    assert one != two
    assert len({one, two, one}) == 2


def test_a_rollout_is_printed_by_shapes() -> None:
    text = repr(Rollout(**tensors(rewards=None)))
    assert "logp=float64[2, 3]" in text
    assert "logits=float64[2, 3, 4]" in text
    assert "device=cpu" in text
    assert "rewards" not in text
    assert len(text) < 400


@pytest.mark.parametrize("copied", [lambda x: pickle.loads(pickle.dumps(x)), copy.deepcopy, copy.copy])
def test_a_copy_has_the_same_numbers_and_is_checked(copied) -> None:
    rollout = Rollout(**tensors())
    expected = kl_loss(rollout, "exact_kl").item()
    other = copied(rollout)
    for f in fields(Rollout):
        assert torch.equal(getattr(other, f.name), getattr(rollout, f.name))
    assert kl_loss(other, "exact_kl").item() == expected
    other.ref_logp[0, 1] = NAN
    with pytest.raises(ValueError, match=r"ref_logp is NaN at \[0, 1\]"):
        kl_loss(other, "k1")


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        (0, [0]),
        (-1, [1]),
        (slice(None), [0, 1]),
        (slice(1, None), [1]),
        ([1, 0, 1], [1, 0, 1]),
        (torch.tensor([1, 1]), [1, 1]),
        (torch.tensor([False, True]), [1]),
    ],
)
def test_sequences_are_selected_by_number(rows, numbers) -> None:
    leaf = tensors()["logp"].requires_grad_()
    rollout = Rollout(**tensors(logp=leaf))
    part = rollout[rows]
    assert len(part) == len(numbers)
    for f in fields(Rollout):
        assert torch.equal(getattr(part, f.name), getattr(rollout, f.name)[numbers])
    (slope,) = torch.autograd.grad(part.logp.sum(), leaf)
    assert slope[:, 1].tolist() == [numbers.count(0), numbers.count(1)]


def test_a_rollout_has_a_length_and_an_end() -> None:
    rollout = Rollout(**tensors(behavior_logits=None))
    assert [len(each) for each in rollout] == [1, 1]
    assert rollout.to("meta").logp.device.type == "meta"
    assert rollout.to("cpu").behavior_logits is None
    for number in (2, -3):
        with pytest.raises(IndexError, match=str(number)):
            rollout[number]
