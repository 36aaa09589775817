"""The verdict on an update in sentences, whose words are in ``words.toml``."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from kl_companion.auditing.updates.advantages import ADVANTAGES
from kl_companion.auditing.updates.effective import IDLE, LOWERS, MOSTLY, NONE, SAME, SPREAD, turned
from kl_companion.auditing.worlds.objectives import OBJECTIVES

if TYPE_CHECKING:
    from kl_companion.auditing.updates.record import UpdateAudit

FAR = 5.0  # degrees of a rest that is worth a word
_SAME_END = 0.002  # of E[R], and five times that in nats
_VISIBLE = 0.5  # degrees
_WORDS = tomllib.loads((files(__package__) / "words.toml").read_text("utf-8"))


def _words(table: str, key: str, /, **values: Any) -> str:
    """Return a text of ``words.toml`` with values in it; "" for a key that has none."""
    text: str = _WORDS[table].get(key, "")
    return text.format(**values)


def short(x: float) -> str:
    """Return a factor in two digits, or three."""
    if not math.isfinite(x):
        return "-"
    return f"{x:.0f}" if abs(x) >= 9.95 else f"{x:.2g}"


def headline(audit: UpdateAudit) -> str:
    """Return what the update maximizes, in a sentence; what is wrong with its signs comes first."""
    wrong, of_kl, away = audit.fault, audit.coefficient, audit.leaves_reference
    low, high = turned(audit.largest)
    values = {
        "name": audit.name,
        "verb": "minimizes" if wrong == LOWERS else "maximizes",
        "about": "" if audit.named else "about ",
        "reward": _WORDS["rewards"][audit.reward],
        "penalty": penalty_words(audit.penalties),
        "kl_verb": "maximizes" if away else "minimizes",
        "consequence": _words("consequence", wrong, where=_where(audit)),
        "sign": "+" if (wrong == LOWERS) != away else "-",
        "coefficient": _words("coefficient", of_kl),
        "size": _words("size", of_kl, **_sizes(audit, away=away)),
        "angle": f"{low:.0f}° or more" if low > MOSTLY else f"up to {high:.0f}°",
        "rest": "" if audit.named or high < _VISIBLE else f", and up to {high:.0f}° of its update are",
        "off": audit.off,
    }
    if wrong == IDLE:
        key = "idle_with_kl" if audit.penalties else "idle_moved"
        key = key if any(s.moves for s in audit.seen) else "idle"
    elif not audit.named and high > MOSTLY:
        key = "unknown"
    elif of_kl == NONE:
        key = "no_gradient" if audit.step.coefficient else "no_kl"
    else:
        key = "unknown_kl" if audit.unknown else "known"
    if values["rest"]:
        values["rest"] += " not that" if of_kl == NONE else " neither"
    return _words("headline", key, **values)


def _sizes(audit: UpdateAudit, *, away: bool = False) -> dict[str, str]:
    """Return the values of texts on the size of the coefficient; ``away`` gives it the other sign."""
    low, high = sorted(-x if away else x for x in audit.ends)
    size = [short(low), short(high)]
    return {
        "low": size[0],
        "high": size[1],
        "size": " to ".join(dict.fromkeys(size)),
        "of": " beta" if audit.beta else "",
        "group": str(audit.group_size),
    }


def _where(audit: UpdateAudit) -> str:
    """Return the prompts on which the rewards are minimized; "" where that is on all of them."""
    lowered = [s.prompt for s in audit.seen if s.reward_sign < 0]
    if not lowered:
        return " on stale samples"
    everywhere = all(s.reward_sign < 0 or math.isnan(s.reward_sign) for s in audit.seen)
    return "" if everywhere else f" on the prompts {', '.join(dict.fromkeys(lowered))}"


def penalty_words(penalties: Mapping[str, float]) -> str:
    """Return the penalty as a sum: ``reverse KL, next token``, or several in brackets."""
    parts = []
    for i, (name, weight) in enumerate(penalties.items()):
        sign = "- " if weight < 0 else "+ " if i else ""
        size = "" if abs(abs(weight) - 1) < SAME else f"{abs(weight):.3g} x "
        parts.append(f"{sign}{size}{OBJECTIVES[name].short}")
    return parts[0] if len(parts) == 1 else f"({' '.join(parts)})"


def by_size(audit: UpdateAudit) -> str:
    """Return a sentence where the coefficient depends on the number of answers in a batch; else ""."""
    return _words("batch", "grows" if audit.order > 0 else "shrinks" if audit.order < 0 else "")


def equal_rewards(audit: UpdateAudit) -> str:
    """Return what happens where all rewards of a group are equal; "" where no KL acts."""
    seen = audit.equal
    if seen is None or not audit.penalties:
        return ""
    if not seen.moves:
        what = "nothing"
    elif not math.isnan(seen.share.gain):
        what = "lengths"
    elif math.isnan(seen.grows):
        what = "alone"
    elif seen.ignores_beta:
        what = "divided"
    else:
        what = "moves" if abs(seen.grows / 10 - 1) > SAME else "coefficient"
    away = ", away from the reference" if seen.share.charge < 0 else ""
    rest = _words("equal", what, away=away, grows=short(seen.grows))
    return f"Where all rewards of a group are equal, {rest}"


def warnings(audit: UpdateAudit) -> list[str]:
    """Return what the verdict does not know or depends on: advantages that were given, numbers outside."""
    reads = audit.step.reading.reads if audit.step.reading else ()
    given = audit.advantage is None and any(r.said == "advantages" for r in reads)
    others = ", ".join(n for n in ADVANTAGES if n != "group_std")
    outside = "" if audit.inside is None else "unknown" if not audit.inside else "known"
    return [
        _words("advantages", "given" if given else "", others=others),
        _words("outside", outside, inside=audit.inside),
    ]


def runs(audit: UpdateAudit) -> str:
    """Return a sentence on the groups, and their prompts, on which the step has no update; "" for none."""
    refused: dict[str, tuple[str, list[str]]] = {}
    for group, why in audit.refused.items():
        some = " on some prompts" if any(s.group == group for s in audit.seen) else ""
        title = f"groups of {group}" if group else "large groups"
        first = why.splitlines()[0].rstrip(".")
        refused.setdefault(re.sub(r"\d+", "", first), (first, []))[1].append(title + some)
    return " ".join(f"It has no update in {', '.join(where)}: {why}." for why, where in refused.values())


def stale(audit: UpdateAudit) -> str:
    """Return how much of the update of stale samples is neither, where that is more; else ""."""
    fresh, most = (turned(seen)[1] for seen in (audit.largest, audit.stale))
    return "" if most <= max(FAR, fresh + 1) else _words("stale", "turned", most=most)


def comes_to(audit: UpdateAudit) -> str:
    """Return where it comes to rest, beside the optimum of what the coefficient says; "" if not known."""
    if audit.rest is None or audit.unknown:
        return ""
    end, best = audit.rest
    same = abs(end.reward - best.reward) < _SAME_END and abs(end.kl - best.kl) < 5 * _SAME_END
    key = "optimum" if same else "settled" if end.settled else "moving"
    return f"{_WORDS['rest']['start']} {_words('rest', key, end=end, best=best)}"


def wanted(audit: UpdateAudit) -> str:
    """Return whether it is what was wanted, and where it is not; "" where nothing was."""
    if audit.want is None:
        return ""
    key = "met" if audit.met else "missed" if audit.misses and not audit.fault else "not_met"
    where = ", ".join(s.prompt for s in audit.misses)
    return _words("want", key, want=audit.want.text, group=audit.group_size, where=where)


def advice(audit: UpdateAudit) -> list[str]:
    """Return what to change so that beta is a coefficient, a line each; nothing where it is one."""
    key, sizes = audit.headline, _sizes(audit)
    if key == LOWERS and not audit.named and turned(audit.largest)[0] > MOSTLY:
        return []  # it is no policy loss whose sign could be changed
    if not audit.fault and audit.equal is not None and audit.equal.ignores_beta:
        key = "beta has no effect"
    if key == SPREAD and not math.isfinite(audit.ends[0]):
        return []
    return _words("advice", key, **sizes).strip().splitlines()
