"""The verdict on a whole update as plain data: what ``kl-companion audit --update --json`` prints.

``schema`` is 1, ``audit`` is ``"update"``. Numbers that could not be told are null.

* ``name``, ``headline`` (one of ``effective.KINDS``), ``sentence``, ``fault`` (the headline where a sign is
  wrong, else null), ``reward`` (one of ``effective.REWARDS``), ``penalties`` {objective: weight}, ``exact``;
* ``beta``, ``coefficient`` (the parameter that holds it), ``advantage`` (what was done to rewards before);
* ``fresh`` and ``stale``, for each prompt and group size: ``prompt``, ``group`` (``"large"`` or answers per
  group), ``deviation`` of the rewards, ``reward_sign`` (of large groups: 1 where the update moves E[R] up, -1
  down, 0 not at all), ``gain`` a, ``charge`` b, ``effective_beta`` b / abs(a), ``rest`` in degrees, ``grows``
  with ten times beta;
* ``off`` (degrees between the update without rewards and the penalties' gradient);
  ``order`` (1 where the coefficient grows with the answers in a batch, -1 where it shrinks, else 0);
  ``inside`` (what it minimizes where numbers outside the mask are 0; null where they change nothing);
  ``refused`` {group: message}: sizes of groups in which it has no update on some prompt or on all;
* ``warnings`` (sentences on a clip that is on the wrong side), ``equal_rewards``, ``advice``;
* ``rest``: where it comes to rest: ``settled``, ``reward``, ``kl``, and ``optimum`` with the last two;
* ``want``, ``met``, ``misses``, ``group_size``;
* ``read``: as for a term; ``versions``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kl_companion.auditing.judgment.data import finite, reading_data, versions
from kl_companion.auditing.updates.effective import OnPrompt
from kl_companion.auditing.updates.meaning import advice, equal_rewards

if TYPE_CHECKING:
    from kl_companion.auditing.updates.record import UpdateAudit

SCHEMA = 1


def to_dict(audit: UpdateAudit) -> dict[str, Any]:
    """The verdict as dicts, lists, texts, numbers and None."""
    optimum = {n: getattr(audit.rest[1], n) for n in ("reward", "kl")} if audit.rest else None
    return {
        "schema": SCHEMA,
        "audit": "update",
        "name": audit.name,
        "headline": audit.headline,
        "sentence": audit.sentence,
        "fault": audit.fault or None,
        "reward": audit.reward,
        "penalties": dict(audit.penalties),
        "exact": audit.named,
        "beta": audit.beta,
        "coefficient": audit.step.coefficient,
        "advantage": audit.advantage,
        "fresh": [_seen(audit, s) for s in audit.seen],
        "stale": [_seen(audit, s) for s in audit.stale],
        "off": finite(audit.off),
        "order": audit.order,
        "inside": audit.inside,
        "refused": {"large" if n is None else str(n): why for n, why in audit.refused.items()},
        "warnings": list(audit.warnings),
        "equal_rewards": equal_rewards(audit),
        "advice": advice(audit),
        "rest": audit.rest and {**audit.rest[0]._asdict(), "optimum": optimum},
        "want": audit.want.text if audit.want else None,
        "met": audit.met,
        "misses": [s.prompt for s in audit.misses],
        "group_size": audit.group_size,
        "read": reading_data(audit.step.reading),
        "versions": versions(),
    }


def _seen(audit: UpdateAudit, seen: OnPrompt) -> dict[str, Any]:
    numbers = {
        "deviation": seen.deviation,
        "reward_sign": seen.reward_sign,
        "gain": seen.share.gain,
        "charge": seen.share.charge,
        "effective_beta": audit.effective(seen),
        "rest": seen.share.rest,
        "grows": seen.grows,
    }
    group = "large" if seen.group is None else seen.group
    return {"prompt": seen.prompt, "group": group} | {n: finite(x) for n, x in numbers.items()}
