"""What to write instead of a loss that is not what was meant, each proposal audited before it is shown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kl_companion.auditing.fit.findings import Condition, Finding
from kl_companion.auditing.fit.least_squares import degrees
from kl_companion.auditing.judgment.card import WIDTH
from kl_companion.auditing.judgment.inputs import reads_outside as reads_outside
from kl_companion.auditing.judgment.sentences import times
from kl_companion.auditing.judgment.summary import is_beside
from kl_companion.auditing.judgment.verdict import (
    accepts,
    coefficient_for,
    curvature_of,
    remedy_for,
    term_lines,
    wanted_objectives,
)
from kl_companion.auditing.reading.arguments import Given
from kl_companion.auditing.reading.construction import Chosen, callable_of, parameters_of
from kl_companion.auditing.reading.subject import Reading, Subject, as_subject, probe
from kl_companion.auditing.repair.rewrites import (
    Rewritten,
    names_inside,
    names_of_batch,
    repaired,
    undecorated,
)
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import Population, large_batches, population_tree

if TYPE_CHECKING:
    from kl_companion.auditing.judgment.verdict import Audit

_CLOSE = 0.02  # of the usual log-ratios: near the reference, where all estimators of one KL agree
_ALONG = 20.0  # degrees between gradients near the reference whose lengths are compared
_SAME = 0.1  # of a strength, relatively: estimators of one KL differ by less so close to the reference
_OTHER = 3.0  # times the coefficient, to see whether a patch still has it
_NOTHING = 1e-15  # rounding of a value
_CONSTANT = 1e-9
_OURS = {"logp": "logp", "ref_logp": "ref_logp", "behavior_logp": "behavior_logp", "completion_mask": "mask"}
_PASSED: dict[tuple[str, Condition], bool] = {}  # terms that were audited before
_MOST = 24  # changes that are audited
_REDUCTION = (
    "on answers of one length it is what was meant. What differs is how it divides by lengths: take the sum "
    "over the tokens of an answer, or divide by the number of all tokens of the batch"
)


_PADDING = (
    "without padding it is what was meant. Numbers outside the mask change it: multiply the values of tokens "
    "by the mask before they are summed, and divide by what the mask counts"
)
_THIS_TERM = "; this term passes the audit, where yours has its value per token"
_NOT_TRIED = (
    "your own lines are not changed here: log-probs of both models have no names in them, or their source is "
    "not known"
)


class _Place(NamedTuple):
    """The audit of a loss and the objective that was wanted instead.

    Attributes:
        loss: The reader's own.
        audit: Its verdict.
        want: The divergence or objective that was meant.
        look: Audits a loss under one condition.
        roles: See `as_loss`.
        options: See `as_loss`.
        off_policy: Whether stale samples are judged.
    """

    loss: Any
    audit: Audit
    want: str
    look: Callable[..., Finding]
    roles: Mapping[str, str]
    options: Mapping[str, Any]
    off_policy: bool


def instead(
    loss: Any,
    found: Audit,
    want: str,
    look: Callable[..., Finding],
    *,
    roles: Mapping[str, str],
    options: Mapping[str, Any],
    off_policy: bool,
) -> str:
    """Return a change of the reader's own function that passes the audit, else a term in plain PyTorch.

    A change was run, differentiated and audited: it returns what the function returned, it is what was meant
    (on answers of one length, where a mean over each answer stays), as strong near the reference as the loss
    was, also with another coefficient. Otherwise the text says what it lacks, in a comment.

    Args:
        loss: What was audited.
        found: Its verdict.
        want: The divergence or objective that was meant.
        look: Audits a loss under one condition.
        roles: See `as_loss`.
        options: See `as_loss`.
        off_policy: Whether stale samples are judged.
    """
    place = _Place(loss, found, want, look, roles, options, off_policy)
    others: list[str] = []
    tried = False
    for proposal, why in islice(_proposals(place), _MOST):
        tried = True
        notes = _notes(place, proposal)
        if notes is None:
            continue
        text = "\n".join([*_comments(why, *notes), *proposal.diff])
        if not any("as strong" in x for x in notes):
            return text
        others.append(text)
    if others:
        return others[0]
    return _term(place, tried)


def _comments(*sentences: str) -> list[str]:
    return [f"# {line}" for x in sentences for line in textwrap.wrap(x, WIDTH - 4)]


def _proposals(place: _Place) -> Iterator[tuple[Rewritten, str]]:
    """Changes of the reader's function, each with a sentence on the cause, or ""."""
    reading, loss_fn = place.audit.reading, place.audit.loss_fn
    if reading is None or loss_fn is None:
        return
    body = term_lines(place.want, place.audit.findings)
    scale = 1 / curvature_of(place.want)
    if scale != 1:  # as strong near the reference as one KL
        body = [*body[:-1], re_scaled(body[-1], scale)]
    bound: Any = callable_of(place.loss, Chosen(place.options))
    if not hasattr(bound, "__code__"):  # an instance, of a module or with a __call__ of its own
        bound = getattr(bound, "forward", bound.__call__)
    function = getattr(bound, "__func__", bound)
    rollout = probe()
    keys = _OURS | {r.name: _OURS[r.role] for r in reading.reads if r.role in _OURS}
    of_batch = names_of_batch(function, bound, keys)

    def call(changed: Any) -> object:
        return _subject(place, changed).loss(rollout)

    why = ""
    for proposal, sentence in undecorated(function, bound, call):
        yield proposal, sentence
        why = sentence
    # what a loss computes of logits has no column for the prompt, whether or not what it is given has; what
    # it shifts has one less
    inside = reading.layout._replace(wide="short" if reading.layout.prompt == 2 else "")
    for layout in dict.fromkeys((inside, reading.layout)):
        given = Given(rollout, layout._replace(cut=False))
        values = {ours: given.of(role).detach().double() for role, ours in _OURS.items()}
        names = of_batch | names_inside(function, lambda: loss_fn(rollout), values)
        yield from ((proposal, why) for proposal in repaired(function, bound, names, body, call))


def re_scaled(line: str, scale: float) -> str:
    """Return a line ``kl = ...`` with a factor in front."""
    return line.replace("kl = ", f"kl = {scale:g} * (", 1) + ")"


def _subject(place: _Place, function: Any, options: Mapping[str, Any] | None = None) -> Subject:
    """A changed function, read as the reader's own was."""
    reading = place.audit.reading or Reading()
    taken = {p.name for p in parameters_of(function, "")}
    read = {r.name: r.role for r in reading.reads}
    return as_subject(
        function,
        roles={**{n: r for n, r in read.items() if n in taken}, **place.roles},
        options={n: v for n, v in (options or place.options).items() if n in taken},
    )


def _notes(place: _Place, proposal: Rewritten) -> list[str] | None:
    """Return the sentences that go with a change that passes; None for a change that does not."""
    audit, wanted = place.audit, wanted_objectives(place.want)
    try:
        again = _subject(place, proposal.function)
        if again.reading is None or audit.reading is None or again.reading.result != audit.reading.result:
            return None
        if audit.loss_fn is None or (reads_outside(again.loss) and not reads_outside(audit.loss_fn)):
            return None  # the mask was in the expression
        notes = []
        after = place.look(again.loss, Condition(place.off_policy, True, 1.0))
        beside = _beside(after) == _beside(audit.main)
        if not (accepts(after, wanted) and beside):
            fixed = Condition(place.off_policy, False, 1.0)
            before, after = place.look(audit.loss_fn, fixed), place.look(again.loss, fixed)
            if accepts(before, wanted) or not accepts(after, wanted) or _beside(after) != _beside(before):
                return None
            notes.append("your mean over each answer stays: each counts once, however long")
        ratio = strength(again.loss, audit.loss_fn)
        if math.isnan(ratio):
            return None
        if abs(strength(again.loss, audit.loss_fn, _CLOSE / 2) / ratio - 1) > _SAME:
            notes.append(
                "near the reference your term does not shrink as a KL does: it is not as strong there"
            )
        elif abs(ratio - 1) > _SAME:
            notes.append(f"near the reference it is {times(ratio)} times as strong as your term")
        return notes if _has_coefficient(place, proposal, ratio) else None
    except ValueError:
        return None


def _has_coefficient(place: _Place, proposal: Rewritten, ratio: float) -> bool:
    """Whether a change has the coefficient of the loss, where that is a parameter: with another, too."""
    name, value = place.audit.coefficient
    parameters = {p.name for p in parameters_of(proposal.function, "")}
    if name not in parameters or not value:
        return True
    options = {**place.options, name: _OTHER * value}
    before = as_subject(place.loss, roles=place.roles, options=options)
    again = strength(_subject(place, proposal.function, options).loss, before.loss)
    return abs(again / ratio - 1) < _SAME


def strength(loss_fn: Loss, other: Loss | None, size: float = _CLOSE) -> float:
    """Return how many times as strong the KL term of a loss is as that of another, near the reference.

    It is the ratio of two gradients of nearly one direction, and of what the values gain by the distance. NaN
    where neither is known, as where a gradient vanishes and the value does not grow, where they disagree, or
    where the value at the reference is neither 0 nor that of the other.

    Args:
        loss_fn: A scalar function of a rollout.
        other: What it is compared with.
        size: How far the reference is, in units of the usual log-ratios.
    """
    if other is None:
        return math.nan
    (g, v, at), (g0, v0, at0) = _near(loss_fn, size), _near(other, size)
    if min(abs(at), abs(at - at0)) > _CONSTANT * (1 + abs(at0)):  # what is left of another formula
        return math.nan
    ratios = []
    if g.any() and g0.any() and degrees(g, g0) < _ALONG:
        ratios.append((g.norm() / g0.norm()).item())
    if v0 > _NOTHING and v > _NOTHING:
        ratios.append(v / v0)
    agree = ratios and max(ratios) <= (1 + _SAME) * min(ratios)
    return ratios[0] if agree else math.nan


def _near(loss_fn: Loss, size: float) -> tuple[torch.Tensor, float, float]:
    """Gradient of a loss near the reference, how much larger its value is than at the reference, and that."""
    near, at = (large_batches(loss_fn, _of_one_length(x)) for x in (size, 0.0))
    small = near.gradient.norm() < 1e-10 * near.contributions
    gradient = torch.zeros_like(near.gradient) if small else near.gradient
    return gradient.flatten(), near.value - at.value, at.value


@cache
def _of_one_length(size: float) -> Population:
    """A tree whose reference is so far away, without rewards, where a mean of K1 is a mean of the KL."""
    tree = population_tree(3, 2, parts=12, seed=7)
    away = tree.problem.logits - tree.problem.ref_logits
    problem = tree.problem._replace(
        ref_logits=tree.problem.logits - size * away, rewards=torch.zeros_like(tree.problem.rewards)
    )
    return Population(problem, tree.which)


def _beside(finding: Finding) -> set[str]:
    """The objectives beside the KL term, rewards and entropies, which a remedy leaves alone."""
    return {n for n in (finding.matches[0] if finding.matches else {}) if is_beside(n)}


def _term(place: _Place, tried: bool) -> str:
    """A term that passes the audit, and why it is no change of the reader's function; or that alone.

    ``tried`` says whether changes of the function were audited.
    """
    audit, wanted = place.audit, wanted_objectives(place.want)
    condition = Condition(place.off_policy, True, 1.0)
    valid = _passes(place, remedy_for(place.want, audit.findings, None, beta=1.0), condition)
    own = audit.reading is not None
    of_one_length = Condition(place.off_policy, False, 1.0)
    if own and accepts(place.look(audit.loss_fn, of_one_length), wanted):
        cause = _PADDING if audit.loss_fn is not None and reads_outside(audit.loss_fn) else _REDUCTION
        return "\n".join(_comments(f"no patch: {cause}"))
    why = "no change of one expression of it passes the audit" if tried else _NOT_TRIED
    why = why if own else "no term passes the audit"
    if not valid:
        return "\n".join(_comments(f"no patch: {why}"))
    beta = coefficient_for(place.want, audit.findings, audit.same_as, audit.coefficient[1])
    term = remedy_for(place.want, audit.findings, audit.same_as, beta=beta)
    if not own:
        return term
    return "\n".join([*_comments(f"{why}{_THIS_TERM}"), term])


def _passes(place: _Place, source: str, condition: Condition) -> bool:
    """Whether the source of a term, executed, differentiated and audited, is what was wanted, times 1."""
    if (source, condition) not in _PASSED:
        scope: dict[str, Any] = {}
        exec(source, scope)
        wanted = wanted_objectives(place.want)
        try:
            after = place.look(as_subject(scope["remedy"]).loss, condition)
        except ValueError:
            return False
        _PASSED[source, condition] = accepts(after, wanted) and any(
            abs(c - 1) < 1e-6 for match in after.matches for n, c in match.items() if n in wanted
        )
    return _PASSED[source, condition]
