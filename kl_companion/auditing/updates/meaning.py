"""What a KL coefficient means in an update, in words that are computed from its effective values."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from kl_companion.auditing.updates.advantages import ADVANTAGES
from kl_companion.auditing.worlds.objectives import OBJECTIVES

if TYPE_CHECKING:
    from kl_companion.auditing.updates.record import OnPrompt, UpdateAudit

SAME = 0.01  # relative: one number, but for the eps of a normalization
_SAME_END = 0.002  # of E[R], and five times that in nats
_GROWS = 2.0  # at ten times beta: less than that is no coefficient
_NO_UPDATE = 1e-12  # length of an update that is zero
_VISIBLE = 0.5  # degrees
_MOSTLY = 30.0  # degrees between an update and the KL's gradient
FAR = 5.0  # degrees of a rest that is worth a word
WRITTEN, SPREAD, DISTORTED, OTHER, NONE, LOWERS, IDLE, REPELS = KINDS = (
    "beta as written",
    "beta times the spread of the rewards",
    "beta in large groups only",
    "another coefficient",
    "no KL that acts",
    "the rewards are minimized",
    "the rewards have no effect",
    "the KL is maximized",
)
NO_EFFECT = "beta has no effect"
_WORDS = tomllib.loads((files(__package__) / "words.toml").read_text("utf-8"))


def kind(audit: UpdateAudit) -> str:
    """Return one of `KINDS`: what is wrong with its signs, else what its coefficient is."""
    return fault(audit) or coefficient(audit)


def fault(audit: UpdateAudit) -> str:
    """Return `LOWERS`, `IDLE` or `REPELS` where the update has a sign that nobody wants; else ""."""
    fresh, stale = (
        [s.reward_sign for s in seen if not math.isnan(s.reward_sign)] for seen in (audit.seen, audit.stale)
    )
    # stale samples on one prompt alone are no wrong sign: a clip without a baseline may turn the update there
    if min(fresh, default=1.0) < 0 or max(stale, default=1.0) < 0:
        return LOWERS
    # of groups whose rewards are exchanged: the sign of a fit alone does not show that rewards count
    exchanged = [s.reward_sign for s in _of_size((*audit.seen, *audit.stale), min)]
    if max((x for x in exchanged if not math.isnan(x)), default=1.0) <= 0:
        return IDLE
    return REPELS if leaves_reference(audit) and all(w > 0 for w in audit.penalties.values()) else ""


def leaves_reference(audit: UpdateAudit) -> bool:
    """Return whether the KL is maximized, on every prompt in large groups on which it can be told."""
    charges = [
        s.share.charge for s in largest(audit) if s.share.rest < _MOSTLY and not math.isnan(s.share.charge)
    ]
    return bool(charges and audit.penalties) and max(charges) < 0


def _of_size(seen: Sequence[OnPrompt], pick: Callable[..., int]) -> list[OnPrompt]:
    """Return the prompts in large groups; where the step does not run on those, in groups of a size."""
    sizes = {s.group for s in seen}
    size = None if None in sizes else pick((n for n in sizes if n), default=None)
    return [s for s in seen if s.group == size]


def largest(audit: UpdateAudit) -> list[OnPrompt]:
    """Return the prompts in large groups, else in the largest on which the step runs."""
    return _of_size(audit.seen, max)


def coefficient(audit: UpdateAudit) -> str:
    """Return what the size of the coefficient is, of groups of the size that is judged and of large ones."""
    if not audit.penalties:
        return NONE
    large = _values(audit, largest(audit))
    small = _values(audit, [s for s in audit.seen if s.group == audit.group_size])
    if not large or audit.order:
        return OTHER
    if leaves_reference(audit):  # the sign is told by `fault`
        large, small = ([(s, -x) for s, x in values] for values in (large, small))
    aim = audit.beta if audit.beta else large[0][1] / (large[0][0].deviation or 1.0)
    if not aim or not math.isfinite(aim):
        return OTHER
    if all(abs(x / aim - 1) <= SAME for _, x in large):
        return WRITTEN if all(0.8 <= x / aim <= 1.25 for _, x in small) else DISTORTED
    if all(abs(x / aim - s.deviation) <= SAME * s.deviation for s, x in large):
        return SPREAD
    return OTHER


def _values(audit: UpdateAudit, seen: Sequence[OnPrompt]) -> list[tuple[OnPrompt, float]]:
    """Prompts whose rewards differ, and the effective coefficient there."""
    return [(s, audit.effective(s)) for s in seen if s.deviation > 0]


def ends(audit: UpdateAudit) -> tuple[float, float]:
    """Smallest and largest effective coefficient in the groups that are judged, in units of a known beta."""
    judged = [s for s in audit.seen if s.group == audit.group_size]
    found = [x / (audit.beta or 1.0) for _, x in _values(audit, judged)]
    return min(found, default=math.nan), max(found, default=math.nan)


def by_size(audit: UpdateAudit) -> str:
    """A sentence where the coefficient depends on the number of answers in a batch; else ""."""
    if not audit.order:
        return ""
    how = "grows" if audit.order > 0 else "shrinks"
    return (
        f"The coefficient {how} with the number of answers in the batch, n: rewards and KL are not divided "
        "by the same number of answers. Divide both by the same."
    )


def short(x: float) -> str:
    """A factor in two digits, or three."""
    if not math.isfinite(x):
        return "-"
    return f"{x:.0f}" if abs(x) >= 9.95 else f"{x:.2g}"


def headline(audit: UpdateAudit) -> str:
    """Return what the update maximizes, in a sentence; what is wrong with its signs comes first."""
    name, reward, wrong = audit.step.name, _WORDS["rewards"][audit.reward], fault(audit)
    if wrong == IDLE:
        return f"The rewards have no effect on the update of {name}{_alone(audit)}."
    low, high = least_turned(audit), turned(largest(audit))
    if not audit.named and high > _MOSTLY:
        size = f"{low:.0f}° or more" if low > _MOSTLY else f"up to {high:.0f}°"
        return (
            f"{name} maximizes no sum of E[R] and a KL that is known here: {size} of its update "
            f"are neither{_consequence(audit, wrong)}."
        )
    verb = "minimizes" if wrong == LOWERS else "maximizes"
    about = "" if audit.named else "about "
    off = "" if audit.named or high < _VISIBLE else f", and up to {high:.0f}° of its update are neither"
    of_kl = coefficient(audit)
    if of_kl == NONE:
        why = "its KL term has no expected gradient" if audit.step.coefficient else "no KL term acts on it"
        off = off.replace("neither", "not that")
        return f"{name} {verb} {about}{reward}{off}{_consequence(audit, wrong)}; {why}."
    if unknown(audit):
        return (
            f"{name} {verb} {reward} and a KL term that is not known here{_consequence(audit, wrong)}: the "
            f"nearest is {penalty_words(audit.penalties)}, from which it is turned by {audit.off:.0f}°."
        )
    b = {WRITTEN: "beta", SPREAD: "beta x the reward spread"}.get(of_kl, "b")
    away = leaves_reference(audit)
    sign = "+" if (wrong == LOWERS) != away else "-"
    said = f"{name} {verb} {about}{reward} {sign} {b} x {penalty_words(audit.penalties)}"
    return f"{said}{_size(audit, of_kl, away=away)}{off}{_consequence(audit, wrong)}."


def unknown(audit: UpdateAudit) -> bool:
    """Whether the KL term has no name: that of the nearest is too far from it."""
    return not audit.named and not audit.off <= _MOSTLY


def _size(audit: UpdateAudit, of_kl: str, *, away: bool) -> str:
    """Return the end of the headline: how large the coefficient is."""
    ends_of = sorted(-x if away else x for x in ends(audit))
    low, high = (short(x) for x in ends_of)
    size = low if low == high else f"{low} to {high}"
    of = " beta" if audit.beta else ""
    if of_kl == DISTORTED:
        return f": b is beta in large groups, and {size}{of} in groups of {audit.group_size}"
    if of_kl == OTHER:
        return f": b is {size}{of} in groups of {audit.group_size}"
    return " (standard deviation of a prompt's rewards) in large groups" if of_kl == SPREAD else ""


def _consequence(audit: UpdateAudit, wrong: str) -> str:
    """Return what a wrong sign does to the policy, and on which prompts; "" without one."""
    if wrong == REPELS:
        return ", which pushes the policy away from the reference"
    if wrong != LOWERS:
        return ""
    judged = [s for s in audit.seen if not math.isnan(s.reward_sign)]
    lowered = [s.prompt for s in judged if s.reward_sign < 0]
    where = " on stale samples"
    if lowered:
        where = "" if len(lowered) == len(judged) else f" on the prompts {', '.join(dict.fromkeys(lowered))}"
    return f", which makes better answers less likely{where}"


def _alone(audit: UpdateAudit) -> str:
    """Return what acts where the rewards do not."""
    if not any(s.share.size > _NO_UPDATE for s in audit.seen):
        return ", and nothing else has one"
    if not audit.penalties:
        return ""
    verb = "maximizes" if leaves_reference(audit) else "minimizes"
    return f": it {verb} {penalty_words(audit.penalties)} alone"


def penalty_words(penalties: Mapping[str, float]) -> str:
    """The penalty as a sum: ``reverse KL, next token``, or several in brackets."""
    parts = []
    for i, (name, weight) in enumerate(penalties.items()):
        sign = "- " if weight < 0 else "+ " if i else ""
        size = "" if abs(abs(weight) - 1) < SAME else f"{abs(weight):.3g} x "
        parts.append(f"{sign}{size}{OBJECTIVES[name].short}")
    return parts[0] if len(parts) == 1 else f"({' '.join(parts)})"


def equal_rewards(audit: UpdateAudit) -> str:
    """What happens where all rewards of a group are equal; "" where no KL acts."""
    seen = audit.at("equal", audit.group_size)
    if seen is None or not audit.penalties:
        return ""
    if not seen.share.size > _NO_UPDATE:
        what = "nothing"
    elif not math.isnan(seen.share.gain):
        what = "lengths"
    elif math.isnan(seen.grows):
        what = "alone"
    elif no_effect(seen):
        what = "divided"
    else:
        what = "moves" if abs(seen.grows / 10 - 1) > SAME else "coefficient"
    away = ", away from the reference" if seen.share.charge < 0 else ""
    words = _WORDS["equal"][what].format(away=away, grows=short(seen.grows))
    return f"Where all rewards of a group are equal, {words}"


def given_advantages(audit: UpdateAudit) -> str:
    """A warning where the step is given advantages, and what makes them was not said; "" elsewhere."""
    reading = audit.step.reading
    given = reading is not None and any(r.said == "advantages" for r in reading.reads)
    if audit.advantage is not None or not given:
        return ""
    others = ", ".join(n for n in ADVANTAGES if n != "group_std")
    return (
        "It takes advantages, and was given rewards as they are: what a trainer makes of them before is not "
        f"in this verdict. Say it: --advantage group_std (or {others})."
    )


def outside(audit: UpdateAudit) -> str:
    """A warning where numbers outside the mask change the update; "" elsewhere."""
    if audit.inside is None:
        return ""
    then = f" With zeros there it minimizes {audit.inside}." if audit.inside else ""
    return (
        "Numbers outside the mask change the update: multiply values of tokens by the mask before they are "
        f"summed.{then}"
    )


def runs(audit: UpdateAudit) -> str:
    """A sentence on the groups, and the prompts in them, on which the step has no update; "" for none."""
    said: dict[str, tuple[str, list[str]]] = {}
    for group, why in audit.refused.items():
        some = " on some prompts" if any(s.group == group for s in audit.seen) else ""
        title = f"groups of {group}" if group else "large groups"
        first = why.splitlines()[0].rstrip(".")
        said.setdefault(re.sub(r"\d+", "", first), (first, []))[1].append(title + some)
    return " ".join(f"It has no update in {', '.join(where)}: {why}." for why, where in said.values())


def comes_to(audit: UpdateAudit) -> str:
    """Where it comes to rest, beside the optimum of what the coefficient says; "" where that is not known."""
    if audit.rest is None or unknown(audit):
        return ""
    end, best = audit.rest
    said = f"E[R] = {end.reward:.3f}, KL = {end.kl:.2f} nats"
    start = "From half of the answers right, in groups of 4, it"
    if abs(end.reward - best.reward) < _SAME_END and abs(end.kl - best.kl) < 5 * _SAME_END:
        return f"{start} ends at the optimum of E[R] - beta KL: {said}."
    verb = "comes to rest at" if end.settled else "does not come to rest, and is last at"
    return f"{start} {verb} {said}. The optimum of E[R] - beta KL has {best.reward:.3f} and {best.kl:.2f}."


def wanted(audit: UpdateAudit) -> str:
    """Whether it is what was wanted, and where it is not; "" where nothing was."""
    if audit.want is None:
        return ""
    if audit.met:
        return f"That is what was wanted ({audit.want.text})."
    where = f", by groups of {audit.group_size} on: {', '.join(s.prompt for s in audit.misses)}"
    told = bool(audit.misses) and not fault(audit)
    return f"That is not what was wanted ({audit.want.text}){where if told else ''}."


def turned(seen: Sequence[OnPrompt]) -> float:
    """Return the largest rest, in degrees, of prompts whose rewards differ and whose update is not zero."""
    return max((s.share.rest for s in seen if s.deviation > 0 and s.share.size > _NO_UPDATE), default=0.0)


def least_turned(audit: UpdateAudit) -> float:
    """Return the smallest rest, in degrees, of large groups whose rewards differ; 0 without one."""
    moved = [s for s in largest(audit) if s.deviation > 0 and s.share.size > _NO_UPDATE]
    return min((s.share.rest for s in moved), default=0.0)


def advice(audit: UpdateAudit) -> list[str]:
    """What to change so that beta is a coefficient, a line each; nothing where it is one."""
    found = kind(audit)
    if found == LOWERS and not audit.named and least_turned(audit) > _MOSTLY:
        return []  # it is no policy loss whose sign could be changed
    low, high = ends(audit)
    equal = audit.at("equal", audit.group_size)
    if not fault(audit) and equal is not None and no_effect(equal):
        found = NO_EFFECT
    if found == SPREAD and not math.isfinite(low):
        return []
    text = _WORDS["advice"].get(found, "")
    return text.format(low=short(low), high=short(high), group=audit.group_size).strip().splitlines()


def no_effect(seen: OnPrompt) -> bool:
    """Whether, on equal rewards, the update is that of the KL and has one size whatever beta is."""
    return math.isnan(seen.share.gain) and seen.grows < _GROWS and seen.share.rest < _MOSTLY
