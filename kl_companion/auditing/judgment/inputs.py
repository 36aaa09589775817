"""What every input of a loss does, found by moving each of them and not by its name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from kl_companion.auditing.judgment.clips import clips
from kl_companion.auditing.judgment.experiments import (
    Key,
    Lab,
    changed,
    kind_of,
    moved,
    moved_place,
    noise,
    without_tokens,
)
from kl_companion.auditing.reading.roles import Read
from kl_companion.auditing.reading.subject import Moved, Reading, probe
from kl_companion.auditing.reading.unmasked import summed_unmasked
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import Population, population_rollout

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
    name, verb = " and ".join(names), "have" if len(names) > 1 or names[0].endswith("s") else "has"
    if kind == "mask" and effect == NONE:
        return f"{name} {verb} no effect: other masks give the same loss."
    only = "nor on the value" if effect == NONE else "only on the value"
    return f"{name} {verb} no effect on the gradient, {only}."


def _effects(lab: Lab, _: list[Input]) -> Iterator[Input]:
    """Say of every input whether it acts, and whether the policy is pulled to it."""
    found = [Input(r.name, r.role, _effect(lab, r)) for r in lab.reading.reads]
    anchors = _anchors(lab, [x.key for x in found if x.effect == ACTS])
    masked = any(x.effect == ACTS and kind_of(x.role) == "mask" for x in found)
    for x in found:
        yield _said(x._replace(effect=ANCHOR) if x.key in anchors else x, masked)


def _said(x: Input, masked: bool) -> Input:
    """Return an input with its sentence, where it is worth one."""
    kind = kind_of(x.role)
    if x.effect == ANCHOR and kind == "behavior":
        verb = "are" if x.name.endswith("s") else "is"
        said = f"{x.name} {verb} the anchor: the policy is pulled to the policy that sampled."
        return x._replace(detail=said)
    spare = kind == "ids" or (kind == "mask" and masked)  # another input says the same
    if x.effect in (NONE, VALUE) and not spare:
        return x._replace(detail=_dead([x.name], x.effect, kind))
    return x


def _effect(lab: Lab, read: Read) -> str:
    """Return what moving an input changes, on stale samples, else on fresh ones."""
    kind, effects = kind_of(read.role), []
    if not kind:
        return UNKNOWN
    for off_policy in (True, False):
        rollout = population_rollout(lab.place(off_policy=off_policy))
        try:
            before = lab.run(rollout)
            after = lab.run(rollout, {read[:2]: moved(rollout, kind)})
        except ValueError:
            continue
        if not before.same_gradient(after):
            return ACTS
        effects.append(NONE if before.same_value(after) else VALUE)
    return VALUE if VALUE in effects else NONE if effects else UNKNOWN


def _anchors(lab: Lab, acting: list[Key]) -> set[Key]:
    """Return the inputs to which the policy is pulled.

    It rests where it equals all of them, and where it leaves one of them alone its gradient leads back.
    Answers come from the policy that sampled; rewards are 0, so that what is left is the part of the KL.
    """
    keys = [k for k in lab.of_kind("reference", "behavior") if k in acting]
    if not keys:
        return set()
    at = lab.place()
    step = noise(at.problem.logits, size=_STEP)
    step = step - step.mean(-1, keepdim=True)
    try:
        rest = _gradient_beside(lab, at, step, None)
        return {
            k for k in keys if all(_pulls(_gradient_beside(lab, at, x, k), x, rest) for x in (step, -step))
        }
    except ValueError:
        return set()


def _pulls(gradient: torch.Tensor, step: torch.Tensor, rest: torch.Tensor) -> bool:
    """Return whether descent leads back from a step; both ways, it does so in the first order."""
    return bool(rest.norm() <= _NOTHING * gradient.norm()) and bool((gradient * step).sum() > 0)


def _gradient_beside(lab: Lab, at: Population, step: torch.Tensor, left: Key | None) -> torch.Tensor:
    """Return the expected gradient of a policy that is a step away from one input and equals the others."""
    start = at.problem.logits
    sampler = left is not None and kind_of(left[1]) == "behavior"
    policy = start + step if sampler else start  # answers are those of the start
    here = at.problem._replace(
        logits=policy,
        ref_logits=policy,
        behavior_logits=policy,
        rewards=torch.zeros_like(at.problem.rewards),
    )
    others = dict.fromkeys(lab.of_kind("reference", "behavior", "rewards"), here)
    if left is not None:
        others[left] = here._replace(ref_logits=start - step, behavior_logits=start)
    return lab.expected(Population(here, at.which), {k: Population(p, at.which) for k, p in others.items()})


def _divided(lab: Lab, found: list[Input]) -> Iterator[Input]:
    """Say how the parts of the rewards and of the KL change with the size of the batch."""
    rewards = [x.key for x in found if kind_of(x.role) == "rewards" and x.effect == ACTS]
    if not rewards:
        return
    of_rewards = _order(lab, rewards)
    anchors = [x.key for x in found if x.effect == ANCHOR]
    anchors = anchors or [x.key for x in found if kind_of(x.role) == "reference" and x.effect == ACTS]
    anchors = [k for k in anchors if kind_of(k[1]) == kind_of(anchors[0][1])]
    of_kl = _order(lab, anchors) if anchors else math.nan
    name, role = " and ".join(n for n, _ in rewards), "rewards"
    if math.isinf(of_rewards):
        yield Input(
            name, role, DIVIDED, f"{name} move the policy by noise alone: on average their part is 0."
        )
        return
    beta = lab.reading.coefficient[0] or "the KL's coefficient"
    excess = of_rewards - (0.0 if math.isnan(of_kl) else of_kl)
    if not math.isfinite(excess) or abs(excess) < _WHOLE:
        return
    if math.isnan(of_kl):
        if of_rewards > 0:  # a plain sum is said elsewhere
            detail = f"The part of {name} in the gradient is {_divisor(lab, rewards, of_rewards)}: "
            yield Input(name, role, DIVIDED, f"{detail}a batch of twice the size makes a smaller step.")
        return
    acts = f"in a batch of B answers {beta} acts like "
    acts += f"{_power(excess)} x {beta}" if excess > 0 else f"{beta} / {_power(-excess)}"
    mine, theirs = (_divisor(lab, *part) for part in ((rewards, of_rewards), (anchors, of_kl)))
    detail = f"The part of {name} in the gradient is {mine}, and that of the KL is {theirs}: {acts}."
    yield Input(name, role, DIVIDED, detail)


def _power(order: float) -> str:
    whole = round(order)
    return "B" if whole == 1 and abs(order - 1) < _WHOLE else f"B^{order:.2g}"


def _divisor(lab: Lab, keys: list[Key], order: float) -> str:
    """Return what a part of the gradient is divided by, where its order in the size of the batch is known."""
    if abs(order) < _WHOLE:
        return "a mean over the batch"
    if abs(order + 1) < _WHOLE:
        return "a sum over the batch"
    if abs(order - 1) >= _WHOLE:
        return f"of order B^{-order:.2g}"
    tokens = _order_in_tokens(lab, keys)
    said = {0: "by the rows twice", 1: "by the tokens and the rows", 2: "by the tokens twice"}
    whole = round(tokens) if math.isfinite(tokens) and abs(tokens - round(tokens)) < _WHOLE else -1
    return f"divided {said.get(whole, 'by the size of the batch twice')}"


def _part(lab: Lab, keys: list[Key], copies: int) -> torch.Tensor:
    """Return the part of the expected gradient that other values of some inputs change, [rows, vocab]."""
    at = lab.place(off_policy=True)
    kind = kind_of(keys[0][1])
    step = noise(at.problem.rewards) if kind == "rewards" else noise(at.problem.logits, size=4 * _STEP)
    other = dict.fromkeys(keys, moved_place(at, kind, step))
    return lab.expected(at, {}, copies) - lab.expected(at, other, copies)


def _order(lab: Lab, keys: list[Key]) -> float:
    """Return p where a part of the gradient goes like B^-p with the answers of a batch; inf where it is 0."""
    first, second = (_part(lab, keys, copies) for copies in (1, 2))
    whole = lab.expected(lab.place(off_policy=True), {}, 2).norm()
    if second.norm() <= _NOTHING * whole:
        return math.inf
    return math.log2((first.norm() / second.norm()).item())


def _order_in_tokens(lab: Lab, keys: list[Key]) -> float:
    """Return q where the part of one answer goes like T^-q with the tokens that the masks count.

    The mask takes tokens from other answers, whose own parts are not looked at.
    """
    at = lab.place(off_policy=True)
    rollout = population_rollout(at)
    mask = rollout.completion_mask
    cut = without_tokens(mask)
    whole = (cut == mask).all(-1)
    masks = dict.fromkeys(lab.of_kind("mask"), changed(rollout, completion_mask=cut))
    other = dict.fromkeys(keys, moved(rollout, kind_of(keys[0][1])))
    parts = [
        (lab.run(rollout, m).gradient - lab.run(rollout, m | other).gradient)[whole] for m in ({}, masks)
    ]
    ratio = (parts[1].norm() / parts[0].norm()).item()
    return math.log(ratio) / math.log((mask.sum() / cut.sum()).item()) if ratio > 0 else math.nan


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
    """Say through which inputs numbers outside the mask change the loss."""
    rollout = population_rollout(lab.place(off_policy=True))
    one, other = lab.loss(rollout), with_other_padding(rollout)
    reads = [r for r in lab.reading.reads if kind_of(r.role) in ("policy", "reference", "behavior")]
    if not _differs(one, lab.loss(rollout, {r[:2]: other for r in reads})):
        return
    leaks = [r for r in reads if _differs(one, lab.loss(rollout, {r[:2]: other}))]
    names = [r.name for r in leaks or reads]
    detail = (
        f"Numbers outside the mask change the loss, through {', '.join(names)} (padding, or columns of a "
        f"prompt): {_advice(lab, rollout, other)}."
    )
    yield Input(" and ".join(names), (leaks or reads)[0].role, OUTSIDE, detail)


def _advice(lab: Lab, rollout: Rollout, other: Rollout) -> str:
    """Return what to multiply by the mask: the variable that is summed before, where it is known."""
    mask = next((r.name for r in lab.reading.reads if r.role == "completion_mask"), "")
    name = summed_unmasked(
        getattr(getattr(lab.loss, "__self__", None), "function", None),
        lambda: lab.loss(rollout),
        lambda: lab.loss(other),
        rollout.completion_mask,
    )
    if name and mask:
        return f"{name} is summed before it is masked, write {name} * {mask} first"
    return "multiply by the mask before sums, flips and cumsums"


def _clipped(lab: Lab, found: list[Input]) -> Iterator[Input]:
    """Say what happens to a token outside the band of a clip, by the sign of its advantage."""
    if not any(kind_of(x.role) == "rewards" and x.effect == ACTS for x in found):
        return
    for clip in clips(lab, [x.key for x in found if x.effect in (ACTS, ANCHOR)]):
        yield Input(clip.name, clip.role, WRONG_CLIP if clip.wrong else CLIP, clip.sentence)
