"""Named objectives: scalars of an enumerated world whose exact gradients a loss is compared with.

``sequence_*`` objectives are functions of the whole policy. ``token_*`` ones sum a divergence over the
states that the *sampling* policy visits and hold those visits fixed: what a per-token loss minimizes,
and in general not the gradient of anything (the field has curl); ``policy_token_*`` ones do so over the
states that the *policy* would visit. ``behavior_*`` ones hold the samples themselves fixed; both are
distinct only off-policy. ``sampled_mean_*`` ones divide by the length of the sequence that was sampled,
the sample held fixed; they and the other objectives of lengths are distinct only where lengths vary.

``*_to_sampler`` and ``surrogate_*`` are anchored to the policy that sampled, which follows the policy from
one batch to the next. On fresh samples the former have no gradient, and the latter has that of the reward.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from importlib.resources import files
from itertools import product
from typing import Any

from kl_companion.auditing.worlds.divergences import divergence_objectives
from kl_companion.auditing.worlds.objective import OBJECTIVES as OBJECTIVES
from kl_companion.auditing.worlds.objective import Objective as Objective
from kl_companion.auditing.worlds.objective import Product, make_objective
from kl_companion.auditing.worlds.objective import field as field
from kl_companion.auditing.worlds.objective import fields_and_values as fields_and_values
from kl_companion.auditing.worlds.objective import get_objective as get_objective
from kl_companion.auditing.worlds.objective import register_objective as register_objective
from kl_companion.auditing.worlds.objective import value as value
from kl_companion.auditing.worlds.truncations import MASSES, mass_objectives
from kl_companion.divergences import DIVERGENCES, Divergence

FORWARD_TO_SAMPLER, LIKELIHOOD = "forward_kl_to_sampler", "behavior_log_likelihood"
_ROWS = tomllib.loads((files(__package__) / "objectives.toml").read_text("utf-8"))


def _add(name: str, term: Product, *, source: str = "this book", **texts: Any) -> None:
    """Register a product with its texts. On fresh samples some products coincide with others."""
    on_next_tokens = term.over == "next" or (term.per_length and term.each != "log")
    coincides = term.visits == "policy" or (term.visits == "sampler" and not on_next_tokens)
    OBJECTIVES[name] = make_objective(
        name,
        term.scalar,
        source=source,
        regularizer=term.anchor == "reference",
        rewards=term.rewarded,
        sampler=term.anchor == "sampler",
        off_policy_only=coincides or term.anchor == "sampler",
        lengths_only=term.per_length,
        **texts,
    )


def _add_to_sampler(levels: dict[str, Any], each: dict[str, Any], effect: str, opposite: str) -> None:
    """Register every divergence to the sampler at every level."""
    for (level, where), (kind, (function, what)) in product(levels.items(), each.items()):
        mean = level == "sampled_mean"
        if kind == "forward_kl" and not mean:
            continue
        short = f"{what.partition(',')[0]} to the sampler, {where['short']}"
        _add(
            f"{level}_{kind}_to_sampler",
            Product("sampler", where["over"], function, "sampler", per_length=mean),
            short=short,
            words=f"the {what} to the policy that sampled, {where['words']}",
            effect=effect,
            opposite=opposite.format(short=short),
        )


_to_sampler = _ROWS.pop("to_sampler")
for _name, _row in _ROWS.items():
    _add(_name, Product(**_row.pop("term")), **_row)
_add_to_sampler(**_to_sampler)
for _k in range(1, MASSES + 1):
    OBJECTIVES.update(mass_objectives(_k))


def objectives(
    *,
    off_policy: bool,
    lengths: bool = True,
    heads: bool = True,
    sampler: bool = True,
    members: Collection[Divergence] = (),
) -> dict[str, Objective]:
    """The objectives to try; divergences that were registered later are included.

    Args:
        off_policy: Whether another policy samples.
        lengths: Whether the lengths of sequences vary.
        heads: Whether the loss reads more of a distribution than the sampled token; those that are cut are
            not among them, see `kl_companion.auditing.worlds.truncations`.
        sampler: Whether the loss reads the log-probs of the policy that sampled.
        members: Divergences that are tried too, such as members of a family.
    """
    tried = dict(OBJECTIVES)
    for d in (*DIVERGENCES.values(), *members):
        tried |= {n: o for n, o in divergence_objectives(d).items() if n not in tried}
    tried.pop(FORWARD_TO_SAMPLER)  # the log-likelihood's, with another sign
    return {
        n: o
        for n, o in tried.items()
        if (off_policy or not o.off_policy_only)
        and (lengths or not o.lengths_only)
        and (heads or not o.heads_only)
        and (sampler or not o.sampler)
        and not o.cut
    }


def by_the_sampler(match: dict[str, float], units: dict[str, str]) -> tuple[dict[str, float], dict[str, str]]:
    """Return a sum with the forward KL to the sampler in place of minus the log-likelihood of its samples.

    They have one gradient. A log-likelihood that is minimized beside a distance to the reference is left as
    it is: on stale samples it is a part of such a distance (of K3, say).

    Args:
        match: Objective to coefficient, of a loss that reads the log-probs of the policy that sampled.
        units: Objective to unit.
    """
    coefficient = match.get(LIKELIHOOD, 0.0)
    apart = not any(OBJECTIVES[n].regularizer for n in match)
    if not (coefficient < 0 or (coefficient > 0 and apart)):
        return match, units
    names = {n: FORWARD_TO_SAMPLER if n == LIKELIHOOD else n for n in match}
    signed = {names[n]: -c if n == LIKELIHOOD else c for n, c in match.items()}
    return signed, {names[n]: unit for n, unit in units.items()}
