"""What every input of a loss does, found by moving each of them and not by its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from kl_companion.auditing.judgment.clips import clips
from kl_companion.auditing.judgment.experiments import Key, Lab, kind_of, moved, noise
from kl_companion.auditing.judgment.templates import filled
from kl_companion.auditing.reading.arguments import ATTENDED
from kl_companion.auditing.reading.probing import NOT_IN_TEXT
from kl_companion.auditing.reading.roles import Read
from kl_companion.auditing.reading.subject import Moved, Reading, probe
from kl_companion.auditing.reading.unmasked import summed_unmasked
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import population_rollout

ACTS, ANCHOR, VALUE, NONE, DIVIDED, OUTSIDE, CLIP, WRONG_CLIP, UNKNOWN = EFFECTS = (
    "acts",
    "anchor",
    "value only",
    "no effect",
    "divided by the batch",
    "read outside the mask",
    "clip",
    "clip on the wrong side",
    "not moved",
)
_NOTHING = 1e-9  # of a gradient, relatively
_STEP = 0.05  # of logits: so small that ratios stay inside every clip
_CONSTANT = 1e-9
_WHOLE = 0.1  # how near to a whole number an order in the size of the batch is one
_DIVISORS: dict[int | None, str] = {
    0: "a mean over the batch",
    -1: "a sum over the batch",
}  # by the order in the size of the batch
_TWICE: dict[int | None, str] = {
    0: "by the rows twice",
    1: "by the tokens and the rows",
    2: "by the tokens twice",
}


class Input(NamedTuple):
    """One thing that an input does.

    Attributes:
        name: What the loss calls it; several, joined by "and", where they do it together.
        role: How it was read.
        effect: One of `EFFECTS`.
        detail: A sentence for the card; "" where it does what its name says.
    """

    name: str
    role: str
    effect: str
    detail: str = ""

    @property
    def key(self) -> Key:
        """Its name and role: two inputs may have one name."""
        return self.name, self.role


def inputs(loss: Moved | None, reading: Reading | None, head: int = 0, group: int = 1) -> tuple[Input, ...]:
    """Move every input of a loss by itself and say what follows for its value and its gradient.

    Args:
        loss: A scalar function of a rollout, see `kl_companion.auditing.reading.subject.Moved`; None gives
            nothing.
        reading: How its parameters were read.
        head: Of how many likeliest tokens it is; 0 of none.
        group: Answers in a group, where it runs on whole groups only.

    Returns:
        An `Input` for each, in the order of the reading. Those of several inputs come last (a division by the
        size of the batch, numbers outside the mask, a clip).
    """
    if loss is None or reading is None:
        return ()
    lab = Lab(loss, reading, head, group)
    found: list[Input] = []
    experiments: tuple[Callable[[Lab, list[Input]], Iterator[Input]], ...] = (
        _effects,
        _divided,
        _outside,
        _clipped,
    )
    for experiment in experiments:
        try:
            found += experiment(lab, found)
        except ValueError:  # the loss does not run on that batch, or is NaN there
            continue
    return tuple(found)


def said_as(effect: str, found: Sequence[Input]) -> list[str]:
    """Return the sentences on inputs with one effect."""
    return [x.detail for x in found if x.effect == effect]


def notes(found: Sequence[Input]) -> list[str]:
    """Return the sentences for the card, but for clips; inputs without an effect are said together."""
    dead: dict[tuple[str, str], list[str]] = {}
    for x in found:
        if x.detail and x.effect in (NONE, VALUE):
            dead.setdefault((x.effect, kind_of(x.role)), []).append(x.name)
    rest = [x.detail for x in found if x.detail and x.effect not in (NONE, VALUE, CLIP, WRONG_CLIP)]
    return [_dead(names, *how) for how, names in dead.items()] + rest


def _dead(names: list[str], effect: str, kind: str) -> str:
    have = "have" if len(names) > 1 or names[0].endswith("s") else "has"
    facts = {"dead": effect == NONE, "kind_mask": kind == "mask", "have": have}
    return filled("no_effect", names=" and ".join(names), **facts)


def _effects(lab: Lab, _: list[Input]) -> Iterator[Input]:
    """Say of every input whether it acts, and whether the policy is pulled to it."""
    found = [Input(r.name, r.role, _effect(lab, r)) for r in lab.reading.reads]
    anchors = _anchors(lab, [x.key for x in found if x.effect == ACTS])
    masked = any(x.effect == ACTS and kind_of(x.role) == "mask" for x in found)
    acting = any(x.effect == ACTS and kind_of(x.role) == "policy" for x in found)
    helped = any(NOT_IN_TEXT in note for note in lab.reading.notes)  # a function that was given inputs
    for x in found:
        kind = kind_of(x.role)
        given_away = kind in ("policy", "reference", "rewards") or ATTENDED.search(x.name) is not None
        other = (kind == "mask" and masked) or (x.role == "outputs" and acting) or (given_away and helped)
        spare = kind == "ids" or other  # another input says the same
        if x.key in anchors:
            are = "are" if x.name.endswith("s") else "is"
            detail = filled("sampler_anchor", names=x.name, are=are) if kind == "behavior" else ""
            yield x._replace(effect=ANCHOR, detail=detail)
        else:
            dead = x.effect in (NONE, VALUE) and not spare
            yield x._replace(detail=_dead([x.name], x.effect, kind) if dead else "")


def _effect(lab: Lab, read: Read) -> str:
    """Return what moving an input changes, on stale samples, else on fresh ones."""
    kind, effects = kind_of(read.role), []
    for off_policy in (True, False) if kind else ():
        at = lab.place(off_policy=off_policy)
        try:
            before, after = lab.on(at, {}), lab.on(at, {read[:2]: moved(at, kind)})
        except ValueError:
            continue
        if not before.same_gradient(after):
            return ACTS
        effects.append(NONE if before.same_value(after) else VALUE)
    return VALUE if VALUE in effects else NONE if effects else UNKNOWN


def _anchors(lab: Lab, acting: list[Key]) -> set[Key]:
    """Return the inputs to which the policy is pulled.

    It rests where it equals all of them, and where it leaves one of them alone its gradient leads back, both
    ways in the first order. Answers come from the policy that sampled; rewards are 0, so that what is left is
    the part of the KL.
    """
    keys = [k for k in lab.of_kind("reference", "behavior") if k in acting]
    step = _STEP * noise(lab.place().problem.logits)
    step = step - step.mean(-1, keepdim=True)
    try:
        rest = _gradient_beside(lab, step, None) if keys else step
        anchors = set(keys)
        for x in (step, -step):
            beside = {k: _gradient_beside(lab, x, k) for k in keys}
            anchors &= {
                k for k, g in beside.items() if rest.norm() <= _NOTHING * g.norm() and (g * x).sum() > 0
            }
        return anchors
    except ValueError:
        return set()


def _gradient_beside(lab: Lab, step: torch.Tensor, left: Key | None) -> torch.Tensor:
    """Return the expected gradient of a policy that is a step away from one input and equals the others."""
    at = lab.place()
    start = at.problem.logits
    sampler = left is not None and kind_of(left[1]) == "behavior"
    policy = start + step if sampler else start  # answers are those of the start
    rewards = torch.zeros_like(at.problem.rewards)
    logits = {"logits": policy, "ref_logits": policy, "behavior_logits": policy}
    here = replace(at, problem=at.problem._replace(rewards=rewards, **logits))
    others = dict.fromkeys(lab.of_kind("reference", "behavior", "rewards"), here)
    if left is not None:
        away = here.problem._replace(ref_logits=start - step, behavior_logits=start)
        others[left] = replace(here, problem=away)
    return lab.expected(here, others)


def _divided(lab: Lab, found: list[Input]) -> Iterator[Input]:
    """Say how the parts of the rewards and of the KL change with the size of the batch."""
    rewards = [x.key for x in found if kind_of(x.role) == "rewards" and x.effect == ACTS]
    if not rewards:
        return
    anchors = [x.key for x in found if x.effect == ANCHOR]
    anchors = anchors or [x.key for x in found if kind_of(x.role) == "reference" and x.effect == ACTS]
    anchors = [k for k in anchors if kind_of(k[1]) == kind_of(anchors[0][1])]
    of_rewards = _order(lab, rewards)
    of_kl = _order(lab, anchors) if anchors else math.nan
    excess = of_rewards - (0.0 if math.isnan(of_kl) else of_kl)
    noise_alone = math.isinf(of_rewards)
    summed = not anchors and excess < 0  # a plain sum is said elsewhere
    if not noise_alone and (not math.isfinite(excess) or abs(excess) < _WHOLE or summed):
        return
    names = " and ".join(n for n, _ in rewards)
    detail = filled(
        "divided",
        noise=noise_alone,
        names=names,
        rewards="" if noise_alone else _divisor(lab, rewards, of_rewards),
        kl="" if noise_alone or math.isnan(of_kl) else _divisor(lab, anchors, of_kl),
        grows=excess > 0,
        beta=lab.reading.coefficient[0] or "the KL's coefficient",
        power="B" if _whole(abs(excess)) == 1 else f"B^{abs(excess):.2g}",
    )
    yield Input(names, "rewards", DIVIDED, detail)


def _whole(order: float) -> int | None:
    """Return the whole number that an order is; None for another."""
    return round(order) if math.isfinite(order) and abs(order - round(order)) < _WHOLE else None


def _divisor(lab: Lab, keys: list[Key], order: float) -> str:
    """Return what a part of the gradient is divided by, where its order in the size of the batch is known."""
    if _whole(order) != 1:
        return _DIVISORS.get(_whole(order), f"of order B^{-order:.2g}")
    tokens = _whole(_order_in_tokens(lab, keys))
    return f"divided {_TWICE.get(tokens, 'by the size of the batch twice')}"


def _order(lab: Lab, keys: list[Key]) -> float:
    """Return p where a part of the gradient goes like B^-p with the answers of a batch; inf where it is 0."""
    at = lab.place(off_policy=True)
    others = dict.fromkeys(keys, moved(at, kind_of(keys[0][1])))
    (first, _), (second, whole) = (
        ((before - lab.expected(at, others, copies)).norm(), before.norm())
        for copies in (1, 2)
        for before in [lab.expected(at, {}, copies)]
    )
    return math.inf if second <= _NOTHING * whole else math.log2((first / second).item())


def _order_in_tokens(lab: Lab, keys: list[Key]) -> float:
    """Return q where the part of one answer goes like T^-q with the tokens that the masks count.

    The mask takes tokens from other answers, whose own parts are not looked at.
    """
    at = lab.place(off_policy=True)
    cut, others = moved(at, "mask"), dict.fromkeys(keys, moved(at, kind_of(keys[0][1])))
    before, after = (x.problem.completion_mask[x.which] for x in (at, cut))
    uncut = (before == after).all(-1)
    first, second = (
        (lab.on(at, masks).gradient - lab.on(at, masks | others).gradient)[uncut].norm()
        for masks in ({}, dict.fromkeys(lab.of_kind("mask"), cut))
    )
    ratio = (second / first).item()
    return math.log(ratio) / math.log((before.sum() / after.sum()).item()) if ratio > 0 else math.nan


def reads_outside(loss_fn: Loss) -> bool:
    """Return whether numbers outside the mask change a loss."""
    rollout = probe()
    return _differs(loss_fn(rollout), loss_fn(with_other_padding(rollout)))


def _differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs() > _CONSTANT * (1 + one.abs()))


def with_other_padding(rollout: Rollout, size: float = 1.0) -> Rollout:
    """Return a rollout with other numbers outside the mask: size times noise; with size 0, zeros."""
    inside = rollout.completion_mask.bool()
    rows = torch.linspace(-3, -1, inside.numel(), dtype=torch.float64).reshape(inside.shape)
    tensors: dict[str, torch.Tensor] = {}
    for i, owner in enumerate(("", "ref_", "behavior_"), start=1):
        logp, logits = (getattr(rollout, f"{owner}{x}") for x in ("logp", "logits"))
        if logp is not None:
            tensors[f"{owner}logp"] = logp.where(inside, size * rows.roll(i))
        if logits is not None:
            other = logits + rows.roll(i).unsqueeze(-1) * torch.arange(logits.shape[-1])
            other = other if size else torch.zeros_like(logits)
            tensors[f"{owner}logits"] = logits.where(inside.unsqueeze(-1), other)
    return rollout.unchecked(**tensors)


def without_padding(loss_fn: Loss) -> Loss:
    """Return the loss of a batch whose numbers outside the mask are 0."""
    return lambda rollout: loss_fn(with_other_padding(rollout, 0.0))


def _outside(lab: Lab, _: list[Input]) -> Iterator[Input]:
    """Say through which inputs numbers outside the mask change the loss, and what to multiply by the mask."""
    rollout = population_rollout(lab.place(off_policy=True))
    one, other = lab.loss(rollout), with_other_padding(rollout)
    reads = [r for r in lab.reading.reads if kind_of(r.role) in ("policy", "reference", "behavior")]
    if not _differs(one, lab.loss(rollout, {r[:2]: other for r in reads})):
        return
    leaks = [r for r in reads if _differs(one, lab.loss(rollout, {r[:2]: other}))] or reads
    summed = summed_unmasked(
        getattr(getattr(lab.loss, "__self__", None), "function", None),
        lambda: lab.loss(rollout),
        lambda: lab.loss(other),
        rollout.completion_mask,
    )
    names, mask = [r.name for r in leaks], [r.name for r in lab.reading.reads if r.role == "completion_mask"]
    detail = filled("outside", names=", ".join(names), summed=summed, mask="".join(mask[:1]))
    yield Input(" and ".join(names), leaks[0].role, OUTSIDE, detail)


def _clipped(lab: Lab, found: list[Input]) -> Iterator[Input]:
    """Say what happens to a token outside the band of a clip, by the sign of its advantage."""
    if any(kind_of(x.role) == "rewards" and x.effect == ACTS for x in found):
        for key, detail, wrong in clips(lab, [x.key for x in found if x.effect in (ACTS, ANCHOR)]):
            yield Input(*key, WRONG_CLIP if wrong else CLIP, detail)
