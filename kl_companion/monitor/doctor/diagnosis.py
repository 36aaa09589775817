"""`diagnose`: run a trainer's own code on a small world, and say what its step does."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kl_companion.checks import check_scalar, check_whole
from kl_companion.monitor.doctor.checks import all_findings
from kl_companion.monitor.doctor.findings import DoctorFinding, finding
from kl_companion.monitor.doctor.lines import first_not_finite
from kl_companion.monitor.doctor.probing import Probe
from kl_companion.monitor.doctor.readings import words
from kl_companion.monitor.doctor.step import ExaminedStep
from kl_companion.monitor.doctor.subject import Declared, Examinable, Examined, NotFinite
from kl_companion.monitor.doctor.trainers import ExaminedTrainer, is_trainer
from kl_companion.monitor.doctor.whole_update import audited
from kl_companion.monitor.doctor.world import Ids
from kl_companion.monitor.given import engine_of
from kl_companion.monitor.mismatch import Engine

_WIDTH = 80
_MARKS = {"fine": "ok", "attention": "look", "unchecked": "?", "wrong": "WRONG"}


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor found; ``str()`` is what the command line prints.

    Attributes:
        title: What was examined.
        findings: What was looked at, in the order of a forward pass.
        update: The audit of the whole update, or of a distillation's loss; None where none was asked for.
        unread: Why there is none, where it was asked for.
    """

    title: str
    findings: tuple[DoctorFinding, ...]
    update: Any = None
    unread: str = ""

    @property
    def wrong(self) -> tuple[DoctorFinding, ...]:
        """What is to be mended."""
        return tuple(f for f in self.findings if f.level == "wrong")

    @property
    def unchecked(self) -> tuple[DoctorFinding, ...]:
        """Checks that matter and could not be made."""
        return tuple(f for f in self.findings if f.level == "unchecked")

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong, and everything that was asked for could be checked."""
        return self.status == 0

    @property
    def status(self) -> int:
        """Exit status: 0 nothing is wrong, 1 something is, 3 something that matters could not be checked."""
        return 1 if self.wrong else 3 if self.unchecked or self.unread else 0

    def __str__(self) -> str:
        lines = [self.headline, ""]
        for each in self.findings:
            lines += _lines(each)
        if self.update is not None:
            lines += ["", str(self.update)]
        if self.unread:
            lines += ["", *textwrap.wrap(f"No audit of the whole update: {self.unread}", _WIDTH)]
        return "\n".join(lines)

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        looks = sum(f.level == "attention" for f in self.findings)
        more = f"; {_count(looks, 'thing')} to look at" if looks else ""
        names = words([f.name for f in self.unchecked])
        more += f"; could not check: {names}" if names else ""
        more += "; the whole update could not be audited" if self.unread else ""
        if not self.wrong:
            return f"{self.title}: nothing is wrong{more}."
        return f"{self.title}: {_count(len(self.wrong), 'mistake')}{more}."

    def to_dict(self) -> dict[str, Any]:
        """The same as data for JSON."""
        return {
            "title": self.title,
            "healthy": self.healthy,
            "status": self.status,
            "findings": [
                {
                    "name": f.name,
                    "level": f.level,
                    "fault": f.fault,
                    "said": f.said,
                    "line": None if f.line is None else str(f.line),
                    "instead": f.instead,
                }
                for f in self.findings
            ],
            "update": None if self.update is None else self.update.to_dict(),
            "unread": self.unread,
        }


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _lines(finding: DoctorFinding) -> list[str]:
    mark = f"{_MARKS[finding.level]:>5}  "
    out = textwrap.wrap(finding.said, _WIDTH, initial_indent=mark, subsequent_indent=" " * 7)
    if finding.line is not None and finding.level != "fine":
        out.append(f"       at {finding.line}")
    if finding.instead and finding.level != "fine":
        out += textwrap.wrap(finding.instead, _WIDTH, initial_indent="       -> ", subsequent_indent=" " * 10)
    return out


def diagnose(
    trainer: Any,
    *,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    updates: int | None = None,
    accumulate: int | None = None,
    beta: float | None = None,
    engine: bool | None = None,
    reference: torch.nn.Module | None = None,
    alignment: str = "completion",
    ids: Ids | None = None,
    summed: bool = False,
    update: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Run a trainer's own code for log-probs, advantages and loss on a small world; say what its step does.

    A table of next-token logits takes the model's place, every answer of a small world is enumerated, and
    gradients are compared between worlds that differ in one thing: the reference, a reward, the policy that
    sampled, the number of micro-batches. Nothing of the trainer is changed in the end.

    Args:
        trainer: A trainer object of TRL (GRPO, RLOO, distillation, GKD, or derived from them), made as for
            training; an `Examinable`, such as the `Settings` of `kl_companion.llm`; or a function
            ``step(model, batch)``, or ``step(model, ref_model, batch)``, that gives its loss or calls
            ``backward`` on it. Its batch answers to the names that trainers use.
        temperature: Of the sampler, where the trainer does not say it.
        top_p: Of the sampler, likewise.
        top_k: Of the sampler, likewise.
        updates: Optimizer steps on one batch of answers, where the trainer does not say it.
        accumulate: Micro-batches of a step, where the trainer does not say it.
        beta: The KL coefficient, where the trainer does not say it.
        engine: Whether the old log-probs of a step's batch are those of its sampling engine, truncation and
            all.
        reference: Of a step that uses a reference without being given it: that model.
        alignment: Of masks and log-probs in a step's batch: ``"completion"`` [batch, seq], ``"full"`` one per
            input id, ``"shifted"`` one per input id but the first.
        ids: Token ids that a step's code expects.
        summed: Whether a step's gradients are added up over micro-batches, and not averaged.
        update: Whether the whole update is audited too, which takes most of the time.
        progress: Called with a line of text now and then.

    Raises:
        ValueError: neither such a trainer nor such a function; a setting outside its range; options of a step
            for a trainer; any of these options for an `Examinable`, which has all of them.
    """
    sampler: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    engine_of(Engine(**{name: x for name, x in sampler.items() if x is not None}))
    if beta is not None:
        check_scalar("beta", beta, least=0.0)
    for name, count in (("updates", updates), ("accumulate", accumulate)):
        check_whole(name, 1 if count is None else count, 1)
    options = {
        **sampler,
        "updates": updates,
        "accumulate": accumulate,
        "beta": beta,
        "engine": engine,
    }
    given: dict[str, Any] = {name: x for name, x in options.items() if x is not None}
    of_a_step = {
        "reference": reference is not None,
        "alignment": alignment != "completion",
        "ids": ids is not None,
        "summed": summed,
    }
    superfluous = [name for name, set_ in of_a_step.items() if set_]
    superfluous += list(given) if isinstance(trainer, Examinable) else []
    subject: Examined
    if superfluous and (is_trainer(trainer) or isinstance(trainer, Examinable)):
        raise ValueError(
            f"{type(trainer).__name__} got {', '.join(superfluous)}, expected none of them: it has its own"
        )
    if is_trainer(trainer):
        subject = ExaminedTrainer(trainer)
        subject.declared = subject.declared._replace(**given)
    elif isinstance(trainer, Examinable):
        subject = trainer.examined()
    elif callable(trainer):
        subject = ExaminedStep(
            trainer,
            Declared(**given),
            alignment=alignment,
            reference=reference,
            ids=ids or Ids(),
            summed=summed,
        )
    else:
        raise ValueError(
            f"trainer is a {type(trainer).__name__}, expected a trainer object of TRL or a function "
            "step(model, batch)"
        )
    return examine(subject, update=update, progress=progress)


def examine(
    subject: Examined, *, update: bool = True, progress: Callable[[str], None] | None = None
) -> Diagnosis:
    """Everything that is looked at, of any `Examined`; arguments as in `diagnose`."""
    if isinstance(subject, ExaminedStep):
        try:
            subject.settle()
        except NotFinite as error:
            at = first_not_finite(subject.trace)
            return Diagnosis(subject.title, (finding("loss.not-finite", at, value=error),))
    findings = all_findings(Probe(subject), progress)
    card, unread = None, ""
    if update:
        try:
            card = audited(subject, progress)
        except ValueError as error:  # what is wrong may be what makes it impossible
            unread = str(error)
    if isinstance(subject, ExaminedStep):
        subject.state.restore()
    return Diagnosis(subject.title, findings, card, unread)
