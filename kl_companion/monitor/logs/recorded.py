"""Findings by the monitor's own columns: strength of beta, pull on length, clamp, causes of a mismatch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kl_companion.monitor.logs.quantities import FEWEST, Quantities
from kl_companion.monitor.logs.sentences import Level, RunVerdict, sentence
from kl_companion.monitor.logs.words import finite, number, percent

# One nat per token is the entropy of a chat model's next token or more: the policy writes another text
FAR, VERY_FAR = 0.3, 1.0
# Rewards of 0 and 1 come to 2 to 4 by themselves, while 7 to 93 % of the answers are right
BETA_TO_NOTE, BETA_TO_ACT = 4.0, 20.0
PULL_TO_NOTE = 0.01  # log-odds of ending per answer and unit of the loss's gradient: less is lost in noise
PULL_SHARE = 0.5  # of the reward's pull: less does not decide about lengths
DEAD_TO_NOTE, DEAD_TO_ACT = 0.01, 0.1  # of the tokens: the far tail of the log-ratios, where the KL sits
EQUAL_TO_NOTE, EQUAL_TO_ACT = 0.5, 0.9  # of the groups: half of the batch gives no reward signal
SETTING = 0.005  # nats per token: a temperature of 0.99 instead of 1 makes as much
ROUNDING = 0.05  # two engines in bfloat16 differ by 0.01 to 0.02; above, something else is unlike
ROUNDING_TO_ACT = 0.3  # ratios of single tokens are off by a third
GROWTH = 3.0  # rounding does not grow with the steps; stale weights do


def far(q: Quantities) -> Iterator[RunVerdict]:
    """An exact KL that is large."""
    kl = q.reference
    nats = q.late(kl.series) if kl is not None and kl.estimator == "exact" else None
    if nats is None or nats < FAR:
        return
    answer = q.recent("kl_of_answers")
    likelier = "" if answer is None else (
        f" A sampled answer is typically {_likelier(answer)} times likelier than under the reference, and "
        "rewards that were fitted on the reference's texts say little about it."
    )  # fmt: skip
    yield sentence("far", _level(nats >= VERY_FAR), nats=nats, likelier=likelier)


def _likelier(nats: float) -> str:
    """Return a factor from its logarithm; beyond a thousand as a power of e."""
    return f"about {number(math.exp(nats))}" if nats < math.log(1000) else f"e^{number(nats)}"


def effective_beta(q: Quantities) -> Iterator[RunVerdict]:
    """A beta that acts like another number."""
    beta, acts = q.setting("beta"), q.recent("effective_beta")
    if not isinstance(beta, int | float) or beta <= 0 or acts is None or acts <= 0:
        return
    factor = max(acts / beta, beta / acts)
    if factor >= BETA_TO_NOTE:
        yield sentence(
            "effective_beta",
            _level(factor >= BETA_TO_ACT),
            beta=float(beta),
            acts=acts,
            factor=factor,
            weaker="weaker" if acts < beta else "stronger",
            larger="larger" if acts < beta else "smaller",
            deviation=acts / beta,
            instead=beta * beta / acts,
        )


def equal_groups(q: Quantities) -> Iterator[RunVerdict]:
    """Groups in which no answer is better than another."""
    share = q.recent("equal_groups")
    if share is not None and share >= EQUAL_TO_NOTE:
        yield sentence("equal_groups", _level(share >= EQUAL_TO_ACT), share=percent(share))


def _level(is_wrong: bool) -> Level:
    return "wrong" if is_wrong else "attention"


def length_pull(q: Quantities) -> Iterator[RunVerdict]:
    """A KL term that makes answers shorter or longer."""
    kl, reward = q.recent("length_pull_kl"), q.recent("length_pull_reward")
    if kl is None or abs(kl) < PULL_TO_NOTE or (reward is not None and abs(kl) < PULL_SHARE * abs(reward)):
        return
    beside = ""
    if reward is not None:
        beside = f", the reward term with {number(abs(reward))} for {_direction(reward)} ones"
    yield sentence("length_pull", direction=_direction(kl), pull=abs(kl), beside=beside)


def _direction(pull: float) -> str:
    return "shorter" if pull > 0 else "longer"


def dead_zone(q: Quantities) -> Iterator[RunVerdict]:
    """Tokens whose gradient a clamp takes away."""
    share, clamp = q.recent("dead_zone"), q.setting("clamp")
    if share is not None and share >= DEAD_TO_NOTE:
        ends = ", ".join("…" if x is None else number(x) for x in clamp or ())
        bounds = f" to [{ends}]" if ends else ""
        yield sentence("dead_zone", _level(share >= DEAD_TO_ACT), bounds=bounds, share=percent(share))


_CAUSES = {
    "temperature": "another temperature",
    "truncation": "a truncated distribution",
    "rounding": "the rest",
}


def mismatch(q: Quantities) -> Iterator[RunVerdict]:
    """Log-probs of the engine that are not the trainer's, with the largest cause."""
    total = q.recent("mismatch")
    if total is None:
        return
    parts = {name: q.recent(f"mismatch_{name}") or 0.0 for name in _CAUSES}
    cause = max(parts, key=lambda name: parts[name])
    settings = [name for name in ("temperature", "truncation") if parts[name] >= SETTING]
    grown = _growth(q)
    if not settings and parts["rounding"] < ROUNDING and not (grown and parts["rounding"] >= SETTING):
        return
    kl, apart = q.recent("kl"), q.recent("mismatch_kl")
    outweighs = bool(kl and apart and apart >= kl)
    shares = ", ".join(f"{number(parts[n])} by {_CAUSES[n]}" for n in sorted(parts, key=lambda n: -parts[n]))
    beside = "" if kl is None or apart is None else (
        f" KL(engine, trainer) is {number(apart)} nats per token, beside {number(kl)} to the reference"
        + (": the samples are further from the policy than it is from the reference." if outweighs else ".")
    )  # fmt: skip
    yield sentence(
        "mismatch",
        _level(outweighs or parts["rounding"] >= ROUNDING_TO_ACT),
        total=total,
        cause=_CAUSES[cause].replace("the rest", "rounding or other weights"),
        shares=shares,
        also=f" The rest has grown by a factor of {number(grown)} over the run." if grown else "",
        beside=beside,
        todo=" ".join(_repair(q, name, grown) for name in (settings or ["rounding"])),
    )


def _growth(q: Quantities) -> float | None:
    """Return by how much the unexplained part of a mismatch has grown; None where it has not."""
    rest = q.recorded("mismatch_rounding")
    if len(finite(rest)) < FEWEST:
        return None
    first, last = q.early(rest), q.late(rest)
    return last / first if first and last and last >= GROWTH * first else None


def _repair(q: Quantities, cause: str, grown: float | None) -> str:
    if cause == "temperature":
        fit, own = q.recent("engine_temperature"), q.setting("temperature")
        text = "" if fit is None else f" (its samples fit {number(fit)}"
        text += f", the trainer takes {number(own)})" if text and own else ")" if text else ""
        return (
            f"Give engine and trainer one temperature{text}: the trainer has to divide its logits by it "
            "before the softmax."
        )
    if cause == "truncation":
        mass = q.recent("engine_kept")
        text = "" if mass is None else f" (it keeps {percent(mass)} of the probability)"
        return (
            f"Set top-p to 1 and top-k to 0 in the engine{text}, or compute the trainer's log-probs on the "
            "same tokens that the engine kept."
        )
    if grown:
        return "Check that the engine gets the new weights after every update: rounding alone does not grow."
    return (
        "Correct by the ratio of trainer to engine, truncated at about 2, or take one precision and one "
        "kernel on both sides. Check also that the engine has the current weights."
    )


CHECKS = (mismatch, far, dead_zone, effective_beta, equal_groups, length_pull)
