"""What to write instead of a loss that is not what was meant, each proposal audited before it is shown."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from kl_companion.auditing.fit.findings import Condition, Finding
from kl_companion.auditing.fit.fit import LossFit
from kl_companion.auditing.judgment.card import WIDTH
from kl_companion.auditing.judgment.distances import world
from kl_companion.auditing.judgment.inputs import reads_outside
from kl_companion.auditing.judgment.sentences import times
from kl_companion.auditing.judgment.summary import is_beside, minimizes_rewards, wrong_signs
from kl_companion.auditing.judgment.verdict import Audit, accepts
from kl_companion.auditing.reading.arguments import Given
from kl_companion.auditing.reading.construction import Chosen, callable_of
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.auditing.reading.subject import Subject, as_subject, probe
from kl_companion.auditing.reading.text import FunctionText
from kl_companion.auditing.repair.edits import WORDS, Change, causes, choices, exchanged, signs
from kl_companion.auditing.repair.printing import diff
from kl_companion.auditing.repair.programs import NotedValues, Program
from kl_companion.auditing.repair.remedies import (
    chosen_level,
    coefficient_for,
    curvature_of,
    lines_for,
    remedy,
)
from kl_companion.auditing.repair.strengths import (
    CLOSE,
    CONSTANT,
    SAME,
    at_reference,
    near,
    ratio,
)
from kl_companion.auditing.repair.terms import terms
from kl_companion.auditing.worlds.targets import split_want, wanted_objectives
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import large_batches

_OTHER = 3.0  # times the coefficient, to see whether a patch still has it
_FAILS = ValueError, RuntimeError, SyntaxError  # the second of torch: of an operation in place, say
_OURS = {"logp": "logp", "ref_logp": "ref_logp", "behavior_logp": "behavior_logp", "completion_mask": "mask"}
_PASSED: dict[tuple[str, Condition], bool] = {}  # terms that were audited before
_MOST = 60  # changes that are audited


def instead(audit: Audit, fit: LossFit, want: str) -> str:
    """Return a change of the reader's own functions that passes the audit, else a term in plain PyTorch.

    A change was run, differentiated and audited: the loss returns what it returned, it is what was meant
    (on answers of one length, where a mean over each answer stays), as strong near the reference as it was,
    also with another coefficient. Otherwise the text says what it lacks, in a comment.

    Args:
        audit: The verdict on a loss that is not what was meant.
        fit: What it is made of.
        want: The divergence or objective that was meant.
    """
    place = _Place(audit, fit, want)
    weaker = ""
    tried = False
    for change in islice(place.changes(), _MOST):
        tried = True
        sentences = place.sentences(change)
        if sentences is not None:
            text = "\n".join([*_comments(change.why, *sentences), *diff(place.program, change)])
            if not any("as strong" in x for x in sentences):
                return text
            weaker = weaker or text
    return weaker or place.term(tried)


def without_block(subject: Subject, then: Callable[[], str]) -> str:
    """Return what takes the gradient of a loss away, as a change after which it has one; "" where unknown.

    Args:
        subject: A loss that has no gradient.
        then: Says what the loss minimizes with the change.
    """
    rollout, options = probe(), subject.request.options
    run = partial(subject.with_options(options).loss, rollout)
    program = Program(subject.request.loss, run)
    for change in causes(program, program.noted(run)) if program.functions else ():
        try:
            with program.running(change.edits, change.freed):
                if subject.with_options(options).loss(rollout).requires_grad:
                    cause = WORDS["without_gradient"].format(why=change.why, then=then())
                    return "\n".join([*_comments(cause), *diff(program, change)])
        except _FAILS:
            continue
    return ""


def _comments(*sentences: str) -> list[str]:
    return [f"# {line}" for x in sentences for line in textwrap.wrap(x, WIDTH - 4)]


class _Place:
    """A loss that was audited, what was wanted instead, and what a change of it is compared with."""

    def __init__(self, audit: Audit, fit: LossFit, want: str) -> None:
        self.audit, self.judged, self.want = audit, audit.judged, want
        self.look, self.subject = fit.of, fit.plan.subject
        self.loss, self.options = self.subject.request.loss, self.subject.request.options
        self.wanted = wanted_objectives(self.want)
        conditions = [f.condition for f in self.judged if f.condition is not None]
        self.conditions = conditions or [Condition(False, True, 1.0)]
        self.main = next((c for c in self.conditions if c.eos), self.conditions[0])
        self.fixed = list(dict.fromkeys(c._replace(eos=False) for c in self.conditions))
        self.loss_fn, self.reading = self.subject.loss, self.subject.reading
        self.outside = self.reading is not None and reads_outside(self.loss_fn)
        self.of_one_length = self.reading is not None and self.accepted(self.loss_fn, self.fixed)

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
            self.near_other = near(self.subject.with_options(self.other).loss, CLOSE)

    def changes(self) -> Iterator[Change]:
        """Changes of the reader's functions, those that change least first."""
        if self.reading is None:
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
        parameters = FunctionText(callable_of(self.loss, chosen)).parameters
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
            yield from self._terms(rollout, self.reading.layout, notes, base)

    def _terms(self, rollout: Rollout, layout: Layout, notes: NotedValues, base: Change) -> Iterator[Change]:
        """A change and a term in place of an expression."""
        if layout.packed:  # of all answers in one row no term is written
            return
        agreeing = self.program.noted(lambda: self.loss_fn(_agreeing(rollout)))
        # what a loss computes of logits has no column for the prompt, whether or not what it is given has;
        # what it shifts has one less
        inside = layout._replace(wide="short" if layout.prompt == 2 else "")
        given = [Given(rollout, x._replace(cut=False)) for x in dict.fromkeys((inside, layout))]
        ours = [{name: g.of(role).detach().double() for role, name in _OURS.items()} for g in given]
        body = lines_for(split_want(self.want)[1], chosen_level(self.want, self.audit.findings))
        scale = 1 / curvature_of(self.want)
        if scale != 1:  # as strong near the reference as one KL
            body[-1] = body[-1].replace("kl = ", f"kl = {scale:g} * (", 1) + ")"
        bodies = [body]
        if "reverse_kl" in self.want:
            bodies.insert(self.audit.placement == "loss", ["kl = logp - ref_logp"])
        for lines in bodies:
            of_value = lines is body and self.audit.placement == "loss"
            for term in terms(self.program, notes, agreeing, lines, ours, base.freed):
                change = base.beside(term._replace(of_value=of_value))
                if change is not None:
                    yield change

    def _moves(self, change: Change) -> bool:
        """Whether the gradient of the KL term is another with a change."""
        tree = world(1.0, eos=False)
        try:
            with self.program.running(change.edits, change.freed):
                after = large_batches(self.subject.with_options(self.options).loss, tree)
        except _FAILS:
            return False
        before = large_batches(self.loss_fn, tree)
        return bool((after.gradient - before.gradient).norm() > CONSTANT * before.contributions)

    def sentences(self, change: Change) -> list[str] | None:
        """Return the sentences that go with a change that passes; None for a change that does not."""
        try:
            with self.program.running(change.edits, change.freed):
                return self._sentences(change)
        except _FAILS:
            return None

    def _sentences(self, change: Change) -> list[str] | None:
        again = self.subject.with_options({**self.options, **change.options})
        if again.reading is None or self.reading is None or again.reading.result != self.reading.result:
            return None
        if reads_outside(again.loss) and not self.outside:  # the mask was in the expression
            return None
        sentences = []
        if not self._passes(again.loss, self.main, self.conditions):
            if self.of_one_length or not self._passes(again.loss, self.fixed[0], self.fixed):
                return None
            sentences.append(WORDS["outside" if self.outside else "mean_stays"])
        first, closer = (ratio(near(again.loss, s), x, change.of_value) for s, x in self.near.items())
        if math.isnan(first):
            return None
        if abs(closer / first - 1) > SAME:
            sentences.append(WORDS["no_multiple"])
        elif abs(first - 1) > SAME:
            sentences.append(WORDS["multiple"].format(times=times(first)))
        if self.other is not None:  # with another coefficient, too
            other = near(self.subject.with_options({**self.other, **change.options}).loss, CLOSE)
            if not abs(ratio(other, self.near_other, change.of_value) / first - 1) < SAME:
                return None
        return sentences

    def _passes(self, loss_fn: Loss, condition: Condition, conditions: Sequence[Condition]) -> bool:
        """Whether a loss is what was wanted, and what stands beside its KL term is what it was."""
        before, at = self.before[condition]
        if before.matches:
            kept = _beside(before) == _beside(self.look(loss_fn, condition))
        else:
            kept = bool((at_reference(loss_fn, condition.eos) - at).norm() <= 1e-6 * (1 + at.norm()))
        return kept and self.accepted(loss_fn, conditions)

    def term(self, tried: bool) -> str:
        """A term that passes the audit, and why it is no change of the reader's function; or that alone.

        ``tried`` says whether changes of the function were audited.
        """
        audit, findings = self.audit, self.audit.findings
        own = audit.reading is not None
        if all(accepts(f, self.wanted) for f in self.judged):  # the KL is what it should be
            return WORDS["sign"]
        if own and self.of_one_length:
            return "\n".join(_comments(WORDS["padding" if self.outside else "reduction"]))
        reason = "none_passes" if tried else "not_tried"
        reason = "lambda" if getattr(self.loss, "__name__", "") == "<lambda>" else reason
        why = WORDS["why"][reason if own else "no_term"]
        write = partial(remedy, split_want(self.want)[1], level=chosen_level(self.want, findings))
        if not self._term_passes(write(beta=1.0)):
            return "\n".join(_comments(WORDS["no_patch"].format(why=why)))
        term = write(beta=coefficient_for(self.want, findings, audit.same_as, audit.coefficient[1]))
        return "\n".join([*(_comments(WORDS["term"].format(why=why)) if own else []), term])

    def _term_passes(self, source: str) -> bool:
        """Whether the source of a term, executed, differentiated and audited, is what was wanted, times 1."""
        key = source, self.main._replace(eos=True, scale=1.0)
        if key not in _PASSED:
            scope: dict[str, Any] = {}
            exec(source, scope)
            try:
                after = self.look(as_subject(scope["remedy"]).loss, key[1])
            except ValueError:
                return False
            ones = [n for match in after.matches for n, c in match.items() if abs(c - 1) < 1e-6]
            _PASSED[key] = accepts(after, self.wanted) and not self.wanted.isdisjoint(ones)
        return _PASSED[key]


def _agreeing(rollout: Rollout) -> Rollout:
    """The same rollout with a reference that is the policy."""
    logits = None if rollout.logits is None else rollout.logits.detach()
    return replace(rollout, ref_logp=rollout.logp.detach(), ref_logits=logits)


def _beside(finding: Finding) -> set[str]:
    """The objectives beside the KL term, rewards and entropies, which a remedy leaves alone."""
    return {n for n in (finding.matches[0] if finding.matches else {}) if is_beside(n)}
