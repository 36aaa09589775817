"""The shape of a run by its rows: growth, single spikes, resets, cut answers, collapse, constants."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from statistics import fmean, pstdev

from kl_companion.monitor.logs.inequalities import token_of_excess
from kl_companion.monitor.logs.keys import VOCABULARIES
from kl_companion.monitor.logs.quantities import FEWEST, KlNumber, Quantities
from kl_companion.monitor.logs.rows import as_number
from kl_companion.monitor.logs.sentences import RunVerdict, sentence, steps_text
from kl_companion.monitor.logs.words import LEAST_KL, finite, median, number, percent, quoted

PLAIN = ("K1", "K2", "K3")
SPIKE = 4.0  # times the median of the neighbors
NEIGHBORS = 5
FEW_TOKENS = 0.5  # of a number, by the at most eight tokens that are kept of an observation
CUT = 0.15  # of the answers end at the limit
COLLAPSE = 0.2  # of the value at the start
UNIFORM = 0.01  # nats below ln V
CONSTANT = 0.15  # of the mean: the span of a number that does not move
LR_MOVES = 2.0  # a factor of the learning rate after which a drift would have another size
FELL = 0.25  # of the row before: a reset


def rows_of(q: Quantities, series: Sequence[float]) -> list[tuple[float, float]]:
    """Return step and value of the rows in which a number is known."""
    return [(s, x) for s, x in zip(q.log.steps, series, strict=False) if math.isfinite(x)]


def reference_kl(q: Quantities) -> KlNumber | None:
    """Return the KL to the reference where it has numbers, and is not only named like one."""
    kl = q.reference
    return kl if kl is not None and any(finite(kl.series)) else None


def spikes(q: Quantities) -> Iterator[RunVerdict]:
    """Single rows far above their neighbors, with the one token or answer that is enough for it."""
    for kl in (reference_kl(q), q.logged):
        if kl is not None and kl.estimator in (*PLAIN, "exact"):
            yield from _spikes(q, kl)


def _spikes(q: Quantities, kl: KlNumber) -> Iterator[RunVerdict]:
    rows = rows_of(q, kl.series)
    if kl is q.logged:
        from kl_companion.monitor.logs.recorded_tokens import steps_of_no_sample

        rows = [row for row in rows if row[0] not in steps_of_no_sample(q)]
    single, least = [], LEAST_KL if q.log.recorded else 0.0
    low = dict(zip(q.log.steps, q.recorded("kl_low"), strict=False)) if kl.estimator == "exact" else {}
    for i in range(2, len(rows) - 1):
        near = [x for _, x in rows[max(0, i - NEIGHBORS) : i] + rows[i + 1 : i + 1 + NEIGHBORS]]
        level = median(near) or 0.0
        back = max(rows[i - 1][1], rows[i + 1][1]) < 0.5 * rows[i][1]
        if low.get(rows[i][0], math.inf) <= level:
            continue
        if len(near) >= NEIGHBORS and level > least and rows[i][1] > SPIKE * level and back:
            single.append((rows[i][1] / level, rows[i][0], rows[i][1], level))
    if not single:
        return
    times, step, value, level = max(single)
    yield sentence(
        "spike",
        key=kl.key,
        value=value,
        times=times,
        normal=level,
        grad=_gradient(q, step),
        more=f" Other rows that stand out in the same way: {len(single) - 1}." if len(single) > 1 else "",
        cause=_cause(q, kl, step, value - level),
        step=step,
    )


def _gradient(q: Quantities, step: float) -> str:
    """Return how far the norm of the gradient stands out in the same row."""
    norms = dict(rows_of(q, q.series("grad_norm")))
    usual = _usual(list(norms.values()))
    if step not in norms or not usual or norms[step] < SPIKE * usual:
        return ""
    return f", with a gradient of {number(norms[step])} ({number(norms[step] / usual)} times its usual size)"


def _usual(norms: list[float]) -> float:
    """Return the median of the first, the middle or the last third, whichever is the largest."""
    third = max(1, len(norms) // 3)
    parts = (norms[:third], norms[third : 2 * third], norms[2 * third :])
    return max(median(part) or 0.0 for part in parts)


def large_gradients(q: Quantities) -> Iterator[RunVerdict]:
    """Rows whose gradient is far above all others, with the KL of these rows."""
    norms, kl = rows_of(q, q.series("grad_norm")), reference_kl(q)
    usual = _usual([x for _, x in norms])
    large = [(x, s) for s, x in norms if x > 10 * usual]
    if len(norms) < FEWEST or usual <= 0 or not large or kl is None:
        return
    norm, step = max(large)
    there = dict(rows_of(q, kl.series)).get(step)
    beside = "" if there is None else f" {kl.key} is {number(there)} there."
    more = f" Other rows above 10 times: {len(large) - 1}." if len(large) > 1 else ""
    yield sentence(
        "large_gradient",
        key=q.keys["grad_norm"],
        norm=norm,
        times=norm / usual,
        beside=beside,
        more=more,
        step=step,
    )


def _cause(q: Quantities, kl: KlNumber, step: float, excess: float) -> str:
    """Return how few tokens are enough for a spike."""
    row = list(q.log.steps).index(step)
    if kl.estimator == "exact":
        return _OF_THE_BATCH
    if kl is q.logged:
        return _few_tokens(q, row)
    tokens, lengths = q.tokens(row), q.series("length")
    length = lengths[row] if lengths else math.nan
    if kl.estimator == "K3" and tokens:
        r = token_of_excess(excess, tokens)
        return "" if r is None else (
            f" On {number(tokens)} tokens an excess of {number(excess)} is one token with a log-ratio of "
            f"{number(r)}."
        )  # fmt: skip
    if kl.estimator == "K3" and math.isfinite(length):
        each = token_of_excess(excess, length)
        ten = token_of_excess(excess, 10 * length)
        if each is not None and ten is not None:
            return (
                f" One token is enough: with a log-ratio of {number(each)} if the row were one answer of "
                f"{number(length)} tokens, {number(ten)} with ten answers (--answers says how many)."
            )
    if kl.estimator == "K1" and tokens:
        return f" On {number(tokens)} tokens it is one answer of {number(excess * tokens)} nats."
    return ""


_OF_THE_BATCH = (
    " But an exact KL has no noise of the sampled token: that batch had prompts on which the two models "
    "differ, or the policy moved and came back."
)


def _few_tokens(q: Quantities, row: int) -> str:
    """Return which share of a logged number the tokens make that the monitor has kept."""
    from kl_companion.monitor.logs.recorded_tokens import share_of_tokens, tokens_at

    share, tokens = share_of_tokens(q, row), tokens_at(q, q.log.steps[row])
    if share is None or share < FEW_TOKENS:
        return ""
    return (
        f" Here {len(tokens)} of {q.observed_tokens()[row]:,.0f} tokens make {percent(min(share, 1))} of it; "
        f"the first is {quoted(tokens[0])} with a log-ratio of {number(tokens[0].log_ratio)}."
    )


def resets(q: Quantities) -> Iterator[RunVerdict]:
    """A saw-tooth: the KL falls to a fraction several times, each after it has grown."""
    kl = reference_kl(q)
    rows = rows_of(q, kl.series) if kl else []
    if kl is None or len(rows) < 3 * FEWEST:
        return
    level = median([x for _, x in rows]) or 0.0
    falls = [
        i
        for i in range(2, len(rows))
        if rows[i][1] < FELL * rows[i - 1][1]
        and rows[i - 1][1] > level
        and rows[i - 1][1] < 2 * rows[i - 2][1]
    ]
    gaps = [b - a for a, b in itertools.pairwise(falls)]
    if len(falls) >= 3 and min(gaps) >= 3 and max(gaps) - min(gaps) <= max(2, 0.2 * fmean(gaps)):
        steps = [rows[i][0] for i in falls]
        period = fmean(b - a for a, b in itertools.pairwise(steps))
        yield sentence("resets", key=kl.key, steps=steps_text(steps), period=period)


def growth(q: Quantities) -> Iterator[RunVerdict]:
    """A KL that leaves its start, compared with the summed learning rate."""
    kl = reference_kl(q)
    rows = rows_of(q, kl.series) if kl else []
    if kl is None or len(rows) < FEWEST or not kl.metrics or kl.estimator not in (*PLAIN, "exact"):
        return
    positive = [(s, x) for s, x in rows if x > 0]
    if len(positive) < FEWEST:
        return
    third = len(rows) // 3
    begin, middle, end = (
        fmean(x for _, x in part) for part in (rows[:3], rows[third : 2 * third], rows[-third:])
    )
    if end > 3 * begin > 0 and end > 1.3 * middle:
        yield sentence("still_growing", key=kl.key, begin=begin, middle=middle, end=end, early=_early(rows))
    elif end > 3 * begin > 0:
        yield sentence("plateau", key=kl.key, begin=begin, middle=middle, end=end)


def _early(rows: list[tuple[float, float]]) -> str:
    """Return a note where the log is the beginning of a run."""
    if len(rows) > 20 or rows[0][0] > 2:
        return ""
    return _BEGINNING


_BEGINNING = (
    " It is the beginning of a run: at first a KL grows as the square of the summed learning rate, with a "
    "warm-up faster than the square of the steps."
)


def constant_kl(q: Quantities) -> Iterator[RunVerdict]:
    """A KL that does not move while the learning rate does."""
    rates = [x for x in finite(q.series("lr")) if x > 0]
    if len(rates) < 4 or max(rates) < LR_MOVES * min(rates):
        return
    kl = reference_kl(q)
    rows = rows_of(q, kl.series) if kl else []
    times = max(rates) / min(rates)
    if kl is not None and len(rows) >= 4 and _is_constant([x for _, x in rows]):
        low, high = min(x for _, x in rows), max(x for _, x in rows)
        later = rows[0][0] > 2 or q.log.counted
        yield sentence(
            "constant_kl", key=kl.key, low=low, high=high, times=times, later=_LATER if later else ""
        )
    for old in (x for x in q.kls if x.pair in ("new/old", "old/new") and x.estimator == "K2"):
        values = finite(old.series)
        if len(values) >= 4 and max(rates) > 4 * min(rates) and _is_constant(values) and min(values) > 1e-5:
            yield sentence("constant_ratio", key=old.key, low=min(values), high=max(values), times=times)


_LATER = " The first rows of the run, which are not in this log, would tell them apart."


def _is_constant(values: list[float]) -> bool:
    middle = fmean(values)
    return (
        middle > 0
        and max(values) - min(values) < CONSTANT * middle
        and pstdev(values) < 0.5 * CONSTANT * middle
    )


def uniform_policy(q: Quantities) -> Iterator[RunVerdict]:
    """An entropy at the logarithm of a vocabulary."""
    entropy = rows_of(q, q.series("entropy"))
    size = as_number(q.setting("vocabulary"))
    sizes = {int(size): "its vocabulary"} if size and size > 1 else VOCABULARIES
    late = q.late(q.series("entropy"))
    if late is None or late < 6:
        return
    near = [v for v in sizes if -1e-3 < math.log(v) - late < UNIFORM]
    if not near:
        return
    names = " or ".join(f"{v:,} ({sizes[v]})" for v in near)
    start = next(s for s, x in entropy if abs(x - late) < 5 * UNIFORM)
    yield sentence("uniform", entropy=f"{late:.2f}", names=names, step=start)


def cut_answers(q: Quantities) -> Iterator[RunVerdict]:
    """Answers that end at the limit of the length."""
    ends = finite(q.series("ends"))
    if ends and not any(ends):
        yield sentence("no_end", key=q.keys["ends"], rows=len(ends))
    share, lengths = finite(q.series("clipped")), rows_of(q, q.series("length"))
    few = len(q.log.steps) < FEWEST
    late = fmean(share) if share and few else q.late(q.series("clipped"))
    if late is not None and late >= CUT:
        longest = finite(q.series("longest"))
        limit = f" at {number(max(longest))} tokens" if longest and late > 0.9 else ""
        first = share[0]
        yield sentence("cut", key=q.keys["clipped"], late=percent(late), first=percent(first), limit=limit)
    elif not share and len(lengths) >= FEWEST:
        cap = max(x for _, x in lengths)
        full = [s for s, x in lengths if x >= cap * (1 - 1e-6)]
        if FEWEST <= len(full) < len(lengths) and lengths[-1][1] >= cap * (1 - 1e-6):
            yield sentence("at_the_cap", key=q.keys["length"], cap=cap, rows=len(full), step=full[0])


def collapse(q: Quantities) -> Iterator[RunVerdict]:
    """Entropy or length that falls to a fraction of its start."""
    for name in ("entropy", "length"):
        series = q.series(name)
        first, last = q.early(series), q.late(series)
        if first is None or last is None or first <= 0 or len(q.log.steps) < FEWEST:
            continue
        if last < COLLAPSE * first and last >= 0:
            capped = name == "entropy" and any(True for _ in cut_answers(q))
            yield sentence(
                f"{name}_collapse", key=q.keys[name], first=first, last=last, loops=_LOOPS if capped else ""
            )


_LOOPS = " With answers that run to the limit this is usually endless repetition."


def rewards_of_nothing(q: Quantities) -> Iterator[RunVerdict]:
    """A reward that is the same number throughout while the KL moves."""
    rows, kl = rows_of(q, q.series("reward")), reference_kl(q)
    rewards = [x for _, x in rows]
    if len(rewards) < FEWEST or kl is None:
        return
    if max(rewards) != min(rewards):
        same = next((i for i, x in enumerate(reversed(rewards)) if x != rewards[-1]), 0)
        if same >= FEWEST:
            since = rows[-same][0]
            yield sentence("dead_reward", key=q.keys["reward"], value=rewards[-1], rows=same, step=since)
        return
    yield sentence("constant_reward", key=q.keys["reward"], value=rewards[0], kl=kl.key)


CHECKS = (
    uniform_policy,
    spikes,
    large_gradients,
    resets,
    cut_answers,
    collapse,
    rewards_of_nothing,
    constant_kl,
    growth,
)
