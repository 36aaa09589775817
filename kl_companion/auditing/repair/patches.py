"""What to write instead of a loss that is not what was meant, each proposal audited before it is shown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from kl_companion.auditing.fit.findings import Condition, Finding
from kl_companion.auditing.judgment.card import WIDTH
from kl_companion.auditing.judgment.inputs import reads_outside
from kl_companion.auditing.judgment.sentences import times
from kl_companion.auditing.judgment.summary import is_beside, minimizes_rewards, wrong_signs
from kl_companion.auditing.judgment.verdict import accepts
from kl_companion.auditing.reading.arguments import Given
from kl_companion.auditing.reading.construction import Chosen, callable_of, parameters_of
from kl_companion.auditing.reading.subject import Subject, as_subject, probe
from kl_companion.auditing.repair.edits import Change, causes, choices, exchanged, signs
from kl_companion.auditing.repair.printing import diff
from kl_companion.auditing.repair.programs import NotedValues, Program
from kl_companion.auditing.repair.remedies import coefficient_for, curvature_of, remedy_for, term_lines
from kl_companion.auditing.repair.strengths import (
    CLOSE,
    CONSTANT,
    SAME,
    at_reference,
    near,
    of_one_length,
    ratio,
)
from kl_companion.auditing.repair.terms import terms, with_ratio
from kl_companion.auditing.worlds.targets import wanted_objectives
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import large_batches

if TYPE_CHECKING:
    from kl_companion.auditing.judgment.verdict import Audit

_OTHER = 3.0  # times the coefficient, to see whether a patch still has it
_FAILS = ValueError, RuntimeError  # the second of torch: of an operation in place, say
_OURS = {"logp": "logp", "ref_logp": "ref_logp", "behavior_logp": "behavior_logp", "completion_mask": "mask"}
_PASSED: dict[tuple[str, Condition], bool] = {}  # terms that were audited before
_MOST = 60  # changes that are audited
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
_LAMBDA = "a lambda has no lines of its own that could be changed"
_MEAN_STAYS = "your mean over each answer stays: each counts once, however long"
_OUTSIDE = "numbers outside the mask still change it: multiply the values of tokens by the mask"
_SIGN = "loss = policy_loss + beta * kl    # with policy_loss = -(ratio * advantages)"
_NEITHER = "near the reference your term does not shrink as a KL does: it is not as strong there"


def instead(
    loss: Any,
    found: Audit,
    want: str,
    look: Callable[..., Finding],
    *,
    remake: Callable[..., Subject],
    options: Mapping[str, Any],
    judged: Sequence[Finding],
) -> str:
    """Return a change of the reader's own functions that passes the audit, else a term in plain PyTorch.

    A change was run, differentiated and audited: the loss returns what it returned, it is what was meant
    (on answers of one length, where a mean over each answer stays), as strong near the reference as it was,
    also with another coefficient. Otherwise the text says what it lacks, in a comment.

    Args:
        loss: What was audited.
        found: Its verdict.
        want: The divergence or objective that was meant.
        look: Audits a loss under one condition.
        remake: Reads the loss again, with ``options``.
        options: What the reader set.
        judged: The findings that the verdict judges by.
    """
    place = _Place(loss, found, want, look, remake, options, judged)
    others: list[str] = []
    tried = False
    for change in islice(place.changes(), _MOST):
        tried = True
        notes = place.notes(change)
        if notes is None:
            continue
        text = "\n".join([*_comments(change.why, *notes), *diff(place.program, change)])
        if not any("as strong" in x for x in notes):
            return text
        others.append(text)
    return others[0] if others else place.term(tried)


def without_block(
    loss: Any, remake: Callable[..., Subject], options: Mapping[str, Any], then: Callable[[], str]
) -> str:
    """Return what takes the gradient of a loss away, as a change after which it has one; "" where unknown.

    Args:
        loss: A loss that has no gradient.
        remake: Reads it again.
        options: What the reader set.
        then: Says what the loss minimizes with the change.
    """
    rollout = probe()
    run = partial(remake(options=options).loss, rollout)
    program = Program(loss, run)
    for change in causes(program, program.noted(run)) if program.functions else ():
        try:
            with program.running(change.edits, change.freed):
                if remake(options=options).loss(rollout).requires_grad:
                    said = f"{change.why} Without it the loss minimizes: {then()}"
                    return "\n".join([*_comments(said), *diff(program, change)])
        except _FAILS:
            continue
    return ""


def _comments(*sentences: str) -> list[str]:
    return [f"# {line}" for x in sentences for line in textwrap.wrap(x, WIDTH - 4)]


@dataclass
class _Place:
    """A loss that was audited, what was wanted instead, and what a change of it is compared with.

    See `instead` for the fields.
    """

    loss: Any
    audit: Audit
    want: str
    look: Callable[..., Finding]
    remake: Callable[..., Subject]
    options: Mapping[str, Any]
    judged: Sequence[Finding]

    def __post_init__(self) -> None:
        """Look at the loss itself."""
        audit = self.audit
        self.wanted = wanted_objectives(self.want)
        conditions = [f.condition for f in self.judged if f.condition is not None]
        self.conditions = conditions or [Condition(False, True, 1.0)]
        self.main = next((c for c in self.conditions if c.eos), self.conditions[0])
        self.fixed = list(dict.fromkeys(c._replace(eos=False) for c in self.conditions))
        if audit.loss_fn is None or audit.reading is None:
            return
        self.loss_fn, self.reading = audit.loss_fn, audit.reading
        self.outside = reads_outside(self.loss_fn)
        self.of_one_length = self.accepted(self.loss_fn, self.fixed)

    def accepted(self, loss_fn: Loss, conditions: Sequence[Condition]) -> bool:
        """Whether a loss is what was wanted under all conditions."""
        findings = (self.look(loss_fn, c) for c in conditions)
        return all(accepts(f, self.wanted) and not minimizes_rewards(f) for f in findings)

    def _measure(self) -> None:
        """Measure what a change is compared with, before any is in force; ValueError where that is NaN."""
        self.near = {size: near(self.loss_fn, size) for size in (CLOSE, CLOSE / 2)}
        places = (self.main, self.fixed[0])
        self.before = {c: (self.look(self.loss_fn, c), at_reference(self.loss_fn, c.eos)) for c in places}
        name, value = self.audit.coefficient
        self.other = {**self.options, name: _OTHER * value} if name and value else None
        if self.other is not None:
            self.near_other = near(self.remake(options=self.other).loss, CLOSE)

    def changes(self) -> Iterator[Change]:
        """Changes of the reader's functions, those that change least first."""
        if self.audit.loss_fn is None or self.audit.reading is None:
            return
        rollout = probe()
        self.program = Program(self.loss, lambda: self.loss_fn(rollout))
        try:
            self._measure()
        except _FAILS:
            return
        if not self.program.functions:
            return
        chosen = Chosen(self.options)
        parameters = parameters_of(callable_of(self.loss, chosen))
        known = {p.name: p.default for p in parameters if p.default is not p.empty}
        yield from choices(self.program, {**chosen.defaults, **known, **self.options})
        negative = any(wrong_signs(f) for f in self.judged)
        if negative:
            yield from signs(self.program)
        yield from exchanged(self.program)
        notes = self.program.noted(lambda: self.loss_fn(rollout))
        blocked = [c for c in causes(self.program, notes) if self._moves(c)]
        yield from blocked
        flipped = [c for c in signs(self.program) if self._moves(c)] if negative else []
        for base in (*blocked, *flipped, Change()):
            yield from self._terms(rollout, notes, base)

    def _terms(self, rollout: Rollout, notes: NotedValues, base: Change) -> Iterator[Change]:
        """A change and a term in place of an expression."""
        agreeing = self.program.noted(lambda: self.loss_fn(_agreeing(rollout)))
        # what a loss computes of logits has no column for the prompt, whether or not what it is given has;
        # what it shifts has one less
        layout = self.reading.layout
        inside = layout._replace(wide="short" if layout.prompt == 2 else "")
        given = [Given(rollout, x._replace(cut=False)) for x in dict.fromkeys((inside, layout))]
        ours = [{name: g.of(role).detach().double() for role, name in _OURS.items()} for g in given]
        body = term_lines(self.want, self.audit.findings)
        scale = 1 / curvature_of(self.want)
        if scale != 1:  # as strong near the reference as one KL
            body = [*body[:-1], re_scaled(body[-1], scale)]
        bodies = [body]
        if "reverse_kl" in self.want:
            bodies.insert(self.audit.placement == "loss", ["kl = logp - ref_logp"])
        for lines in bodies:
            for term in terms(self.program, notes, agreeing, lines, ours, base.freed):
                of_value = lines is body and self.audit.placement == "loss"
                change = base.beside(term._replace(of_value=of_value))
                if change is None:
                    continue
                helper = term.function
                if helper is not None and helper is not self.program.functions[0]:
                    for both in with_ratio(self.program, notes, ours, helper):
                        if (whole := change.beside(both._replace(of_value=of_value))) is not None:
                            yield whole
                yield change

    def _moves(self, change: Change) -> bool:
        """Whether the gradient of the KL term is another with a change."""
        tree = of_one_length(1.0)
        try:
            with self.program.running(change.edits, change.freed):
                after = large_batches(self.remake(options=self.options).loss, tree)
        except _FAILS:
            return False
        before = large_batches(self.loss_fn, tree)
        return bool((after.gradient - before.gradient).norm() > CONSTANT * before.contributions)

    def notes(self, change: Change) -> list[str] | None:
        """Return the sentences that go with a change that passes; None for a change that does not."""
        try:
            with self.program.running(change.edits, change.freed):
                return self._notes(change)
        except _FAILS:
            return None

    def _notes(self, change: Change) -> list[str] | None:
        again = self.remake(options={**self.options, **change.options})
        if again.reading is None or again.reading.result != self.reading.result:
            return None
        if reads_outside(again.loss) and not self.outside:  # the mask was in the expression
            return None
        notes = []
        if not (self._keeps(again.loss, self.main) and self.accepted(again.loss, self.conditions)):
            fixed = self._keeps(again.loss, self.fixed[0]) and self.accepted(again.loss, self.fixed)
            if self.of_one_length or not fixed:
                return None
            notes.append(_OUTSIDE if self.outside else _MEAN_STAYS)
        ratios = [ratio(near(again.loss, s), self.near[s], change.of_value) for s in self.near]
        if math.isnan(ratios[0]):
            return None
        if abs(ratios[1] / ratios[0] - 1) > SAME:
            notes.append(_NEITHER)
        elif abs(ratios[0] - 1) > SAME:
            notes.append(f"near the reference it is {times(ratios[0])} times as strong as your term")
        if self.other is not None:  # with another coefficient, too
            other = near(self.remake(options={**self.other, **change.options}).loss, CLOSE)
            if not abs(ratio(other, self.near_other, change.of_value) / ratios[0] - 1) < SAME:
                return None
        return notes

    def _keeps(self, loss_fn: Loss, condition: Condition) -> bool:
        """Whether what stands beside the KL term, rewards and entropies, is what it was."""
        before, at = self.before[condition]
        if before.matches:
            return _beside(before) == _beside(self.look(loss_fn, condition))
        return bool((at_reference(loss_fn, condition.eos) - at).norm() <= 1e-6 * (1 + at.norm()))

    def term(self, tried: bool) -> str:
        """A term that passes the audit, and why it is no change of the reader's function; or that alone.

        ``tried`` says whether changes of the function were audited.
        """
        audit = self.audit
        if all(accepts(f, self.wanted) for f in self.judged):  # the KL is what it should be
            return _SIGN
        valid = self._passes(remedy_for(self.want, audit.findings, None, beta=1.0))
        own = audit.reading is not None
        if own and self.of_one_length:
            return "\n".join(_comments(f"no patch: {_PADDING if self.outside else _REDUCTION}"))
        why = "no change of one expression of it passes the audit" if tried else _NOT_TRIED
        why = _LAMBDA if getattr(self.loss, "__name__", "") == "<lambda>" else why
        why = why if own else "no term passes the audit"
        if not valid:
            return "\n".join(_comments(f"no patch: {why}"))
        beta = coefficient_for(self.want, audit.findings, audit.same_as, audit.coefficient[1])
        term = remedy_for(self.want, audit.findings, audit.same_as, beta=beta)
        return "\n".join([*(_comments(f"{why}{_THIS_TERM}") if own else []), term])

    def _passes(self, source: str) -> bool:
        """Whether the source of a term, executed, differentiated and audited, is what was wanted, times 1."""
        key = source, self.main._replace(eos=True, scale=1.0)
        if key not in _PASSED:
            scope: dict[str, Any] = {}
            exec(source, scope)
            try:
                after = self.look(as_subject(scope["remedy"]).loss, key[1])
            except ValueError:
                return False
            _PASSED[key] = accepts(after, self.wanted) and any(
                abs(c - 1) < 1e-6 for match in after.matches for n, c in match.items() if n in self.wanted
            )
        return _PASSED[key]


def re_scaled(line: str, scale: float) -> str:
    """Return a line ``kl = ...`` with a factor in front."""
    return line.replace("kl = ", f"kl = {scale:g} * (", 1) + ")"


def _agreeing(rollout: Rollout) -> Rollout:
    """The same rollout with a reference that is the policy."""
    logits = None if rollout.logits is None else rollout.logits.detach()
    return replace(rollout, ref_logp=rollout.logp.detach(), ref_logits=logits)


def _beside(finding: Finding) -> set[str]:
    """The objectives beside the KL term, rewards and entropies, which a remedy leaves alone."""
    return {n for n in (finding.matches[0] if finding.matches else {}) if is_beside(n)}
