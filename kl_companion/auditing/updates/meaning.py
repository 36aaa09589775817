"""The verdict on an update in sentences, whose texts are in ``templates.toml`` of the judgment."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kl_companion.auditing.judgment.templates import filled
from kl_companion.auditing.judgment.words import in_words
from kl_companion.auditing.updates.advantages import ADVANTAGES
from kl_companion.auditing.updates.effective import KINDS, LOWERS, MOSTLY, REWARDS, SAME, OnPrompt, turned

if TYPE_CHECKING:
    from kl_companion.auditing.updates.recipe import Recipe
    from kl_companion.auditing.updates.record import UpdateAudit

FAR = 5.0  # degrees of a rest that is worth a word
_SAME_END = 0.002  # of E[R], and five times that in nats
_VISIBLE = 0.5  # degrees


def short(x: float) -> str:
    """Return a factor in two digits, or three."""
    if not math.isfinite(x):
        return "-"
    return f"{x:.0f}" if abs(x) >= 9.95 else f"{x:.2g}"


def sentence(topic: str, audit: UpdateAudit) -> str:
    """Return a sentence of ``templates.toml`` on an update; "" where there is nothing to say.

    Args:
        topic: ``"update"`` for the headline; ``"wanted"``, ``"order_in_batch"``, ``"outside_update"`` and
            ``"stale_update"``.
        audit: The verdict.
    """
    return filled(topic, audit, **_facts(audit))


def _facts(audit: UpdateAudit) -> dict[str, Any]:
    """Return facts for sentences about an update, beside its attributes."""
    kinds = {kind: kind in (audit.fault, audit.coefficient) for kind in KINDS}
    least, most = turned(audit.largest)
    most_stale = turned(audit.stale)[1]
    away = audit.leaves_reference
    low, high = (short(x) for x in sorted(-x if away else x for x in audit.ends))
    return {
        **kinds,
        **{reward: reward == audit.reward for reward in REWARDS},
        "moves": any(s.moves for s in audit.seen),
        "penalty": penalty_words(audit.penalties),
        "least": least,
        "most": most,
        "turned_little": most < _VISIBLE,
        "turned_far": most > MOSTLY,
        "turned_always": least > MOSTLY,
        "reads_coefficient": bool(audit.step.coefficient),
        "where": _where(audit),
        "sign": "+" if kinds[LOWERS] != away else "-",
        "sized": math.isfinite(audit.ends[0]),
        "low": low,
        "high": high,
        "size": " to ".join(dict.fromkeys((low, high))) + " beta" * bool(audit.beta),
        "growing": audit.order > 0,
        "outside": audit.inside is not None,
        "most_stale": most_stale,
        "stale_far": not most_stale <= max(FAR, most + 1),
        **_discounts(audit.step.recipe),
        "missed": ", ".join(s.prompt for s in audit.misses),
        "ignores_beta": audit.equal is not None and audit.equal.ignores_beta,
    }


def _discounts(of: Recipe | None) -> dict[str, bool]:
    early = of is not None and of.lam < 1
    return {
        "zero_values": early and of is not None and of.critic is None,
        "values_without_penalty": early and of is not None and of.critic == "reward",
        "discounted": of is not None and of.gamma < 1,
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
    ones = {n: math.copysign(1.0, w) for n, w in penalties.items() if abs(abs(w) - 1) < SAME}
    text = in_words({n: ones.get(n, float(f"{w:.3g}")) for n, w in penalties.items()})
    return text if len(penalties) == 1 else f"({text})"


def equal_rewards(audit: UpdateAudit) -> str:
    """Return what happens where all rewards of a group are equal; "" where no KL acts."""
    return filled("equal_rewards", audit, **_on_equal(audit.equal)) if audit.equal else ""


def _on_equal(seen: OnPrompt) -> dict[str, Any]:
    return {
        "moves": seen.moves,
        "gains": not math.isnan(seen.share.gain),
        "grows": "" if math.isnan(seen.grows) else short(seen.grows),
        "ignores_beta": seen.ignores_beta,
        "tenfold": abs(seen.grows / 10 - 1) <= SAME,
        "leaves": seen.share.charge < 0,
    }


def given_advantages(audit: UpdateAudit) -> str:
    """Return that advantages were given as they are, of a step that takes some."""
    reads = audit.step.reading.reads if audit.step.reading else ()
    given = audit.advantage is None and any(r.said == "advantages" for r in reads)
    return filled(
        "given_advantages", given=given, others=", ".join(n for n in ADVANTAGES if n != "group_std")
    )


def runs(audit: UpdateAudit) -> str:
    """Return a sentence on the groups, and their prompts, on which the step has no update; "" for none."""
    refused: dict[str, tuple[str, list[str]]] = {}
    for group, why in audit.refused.items():
        some = " on some prompts" if any(s.group == group for s in audit.seen) else ""
        title = f"groups of {group}" if group else "large groups"
        first = why.splitlines()[0].rstrip(".")
        refused.setdefault(re.sub(r"\d+", "", first), (first, []))[1].append(title + some)
    return " ".join(f"It has no update in {', '.join(where)}: {why}." for why, where in refused.values())


def comes_to(audit: UpdateAudit) -> str:
    """Return where it comes to rest, beside the optimum of what the coefficient says; "" if not known."""
    if audit.rest is None or audit.unknown:
        return ""
    end, best = audit.rest
    same = abs(end.reward - best.reward) < _SAME_END and abs(end.kl - best.kl) < 5 * _SAME_END
    return filled("comes_to", end, end=end, best=best, same=same)


def advice(audit: UpdateAudit) -> list[str]:
    """Return what to change so that beta is a coefficient, a line each; nothing where it is one."""
    return sentence("update_advice", audit).strip().splitlines()
