"""Run a loss on a small batch to find what its names leave open: its layout, and the axis of its sums."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.arguments import OF_TOKENS, NotHere, Unusable
from kl_companion.auditing.reading.axes import LastAxis
from kl_companion.auditing.reading.binding import BoundLoss
from kl_companion.auditing.reading.construction import Options, kl_coefficient
from kl_companion.auditing.reading.functions import LISTS, Signature
from kl_companion.auditing.reading.groups import with_group_size
from kl_companion.auditing.reading.heads import HEADS, LIKELIEST, with_size
from kl_companion.auditing.reading.helpers import lent
from kl_companion.auditing.reading.layouts import Layout, ProbedLoss, choose, places_reached
from kl_companion.auditing.reading.roles import Read, Unread
from kl_companion.auditing.reading.signatures import UnclearNames, read_names, refusal
from kl_companion.auditing.reading.stand_ins import Absent
from kl_companion.rollout import Rollout
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import population_rollout, population_tree

ROWS, _PRIME = 64, 61  # answers of a probe; a number that no size of group divides
NOT_IN_TEXT = "is not in the text: its results are what their names say"
_FEWER = "Instead of the {} likeliest tokens, the {} likeliest of four"
_SLICES = r"split\(|narrow\(|cumsum\(|\w+\[[^\]\n]*\w *: *\w"  # what cuts a row of several answers apart
_ROWS = r"softmax\((?:[^()]|\([^()]*\))*[, ](?:dim *= *|axis *= *)?1 *\)"  # of [total, vocab]

_small_world = cache(partial(population_tree, 4, 3, parts=4, eos=True, off_policy=True))


class Reading(NamedTuple):
    """The reading of a user's function: its inputs, its constants and its layout.

    Attributes:
        reads: Its parameters, or the keys that it took of a batch.
        constants: Parameters that hold a number: (name, value, what it is, or "set").
        layout: What the names left open.
        result: How the loss was found in what it returned.
        coefficient: Name and value of the KL coefficient; ("", None) where there is not one such number.
        notes: Sentences on what was decided by experiment, with what to write for the other choice.
        numbers: Numbers that stand in the function or in its options, such as its temperature.
    """

    reads: tuple[Read, ...] = ()
    constants: tuple[tuple[str, Any, str], ...] = ()
    layout: Layout = Layout()
    result: str = ""
    coefficient: tuple[str, float | None] = ("", None)
    notes: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()


def probe(rows: int = ROWS) -> Rollout:
    """A small batch on which a loss is run to see how it reads its inputs: stale samples, many lengths."""
    rollout = population_rollout(_small_world())
    return rollout if rows == ROWS else rollout.repeated(torch.arange(rows) % ROWS)


def bind(signature: Signature) -> tuple[BoundLoss, Reading]:
    """Return a signature as a function of a rollout under the layout that fits it, and how it was understood.

    Raises:
        ValueError: no layout under which it runs, keys of a batch that are not clear, an option that nothing
            reads.
    """
    experiment = _Experiment(
        BoundLoss(signature, keys=signature.settings.keys), max(ROWS - ROWS % signature.size, signature.size)
    )
    try:
        layout, notes = experiment.layout()
    except Unusable:  # it may run on one group only
        if signature.size == 1 or (experiment := experiment._replace(rows=signature.size)).runs_on_none():
            raise
        layout, notes = experiment.layout()
    loss = replace(experiment.loss, layout=layout)
    settings, fixed = signature.settings, signature.fixed
    settings.finish(signature.label)
    parameters, assumed = signature.text.parameters, settings.assumed
    constants = [
        (n, v, "set") for n, v in fixed.items() if n not in assumed and not isinstance(v, Options | Absent)
    ] + [(n, v, what) for n, (v, what) in assumed.items()]
    defaults = {p.name: p.default for p in parameters} | settings.defaults
    reading = Reading(
        tuple(_in_words(r, loss) for r in loss.named),
        tuple(constants),
        layout,
        loss.result,
        kl_coefficient(parameters, settings),
        tuple(notes),
        signature.text.numbers([*fixed.values(), *defaults.values()]),
    )
    return loss, reading


class _Experiment(NamedTuple):
    """A loss, and how many answers it is run on."""

    loss: BoundLoss
    rows: int

    def run(self, layout: Layout) -> ProbedLoss:
        """Return the loss under a layout with what it is a function of."""
        small = probe(self.rows)
        x, passed = self.loss.call(small, layout)
        assert small.logits is not None
        return ProbedLoss(x, small.logits, small.completion_mask, tuple(passed.beyond.values()))

    def runs_on_none(self) -> bool:
        """Whether the loss runs under no layout."""
        try:
            return self.best() is None
        except ValueError:
            return True

    def best(self, *, among_all: bool = False) -> Layout | None:
        """Return the layout that `choose` takes; ValueError where none runs."""
        parameters = self.loss.signature.text.parameters
        lists = re.search(LISTS, " ".join(str(p.annotation) for p in parameters).lower()) is not None
        text = self.loss.signature.text
        return choose(self.run, self.loss.roles, lists, among_all, text.has(_SLICES), text.has(_ROWS))

    def layout(self) -> tuple[Layout, list[str]]:
        """Return the layout under which the loss runs, and sums over the axis that it means; and notes."""
        signature, notes = self.loss.signature, lent(self.loss.function)
        error: ValueError = Unusable(
            f"{signature.label} shifts ids against logits in a way that is not read here"
        )
        layout, reason = None, ""
        try:
            layout = self.best()
        except NotHere:
            raise
        except ValueError as failed_first:
            error = failed_first
        if (undecided := _undecided(self.loss)) and layout is not None:
            watch = LastAxis(r.name for r in undecided)
            self.loss.call(probe(self.rows), layout, watch=watch)
            reason = watch.reason
        if undecided and (reason or layout is None):
            with suppress(ValueError):
                of_all = self.best(among_all=True)
                notes += [_of_all(undecided, reason)] if of_all and reason else []
                layout = of_all or layout
        if layout is not None:
            _check_keys(self.loss)
            probed = self.run(layout)
            if probed.loss.requires_grad and not places_reached(probed)[0]:
                notes.append("The first token of an answer gets no gradient")
            helpers = sorted(signature.settings.helpers)
            notes += [f"{name} {NOT_IN_TEXT}" for name in helpers]
            if self.loss.cut:
                notes.append(_FEWER.format(self.loss.cut, LIKELIEST))
            return layout, notes
        if signature.batch and not isinstance(error, UnclearNames):
            return Layout(), notes  # a batch may be wanted of another size: its own call says what fails
        if isinstance(error, Unusable) and self.rows == ROWS:
            raise with_group_size(error, lambda rows: self._replace(rows=rows).best()) from error
        raise error


def _undecided(loss: BoundLoss) -> list[Read]:
    """Return log-probs of which the name does not say whether they are of the sampled token."""
    decided = {**loss.signature.roles, **loss.signature.keys_mapped}
    return [
        r
        for r in loss.named
        if r.role.endswith("logp")
        and not r.role.endswith("sequence_logp")
        and r.name not in decided
        and not OF_TOKENS.search(r.name)
    ]


def _check_keys(loss: BoundLoss) -> None:
    """Raise ValueError where two names of a batch and of parameters are read as one thing."""
    signature, names = loss.signature, list(loss.keys)
    mapped = {n: r for n, r in signature.keys_mapped.items() if n in names}
    mapped |= {n: r.role for n, r in loss.keys.items() if r.role.endswith("outputs")}
    reads, unread = read_names(names, mapped)
    loss.keys.update({r.name: r for r in reads if r.role in HEADS})
    decided = {r.role for r in signature.reads}
    for name, read in loss.keys.items():
        twice = read.role in decided and not read.role.startswith(("behavior_", "completion_mask"))
        if twice and name not in mapped:
            why = f"a parameter is read as the same already: {read.said}"
            unread.append(Unread(f"{signature.batch}.{name}", why, (read.role,)))
    if unread:
        raise refusal(signature.label, unread)


def _in_words(read: Read, loss: BoundLoss) -> Read:
    """Return how a name was read, with what the experiments decided."""
    if loss.layout.packed and read.role == "lengths":  # they say where an answer ends, as boundaries do
        return read._replace(role="boundaries")
    if read.role in HEADS:
        return read._replace(said=with_size(read.said, loss.signature.likeliest))
    if loss.layout.whole and any(read.name == r.name for r in _undecided(loss)):
        return read._replace(role=f"{read.role}_all", said=f"{read.said}, whole vocabulary")
    return read


def _of_all(reads: Sequence[Read], reason: str) -> str:
    """Return the sentence on log-probs that are of the whole vocabulary by their use."""
    names = " and ".join(r.name for r in reads)
    line = " ".join(f"--map {r.name}={r.role}" for r in reads)
    return (
        f"{names} {'is' if len(reads) == 1 else 'are'} read as log-probs of the whole vocabulary: "
        f"{reason}. If of the sampled token only: {line}"
    )


def check_rows(loss_fn: Loss) -> None:
    """Raise `Unusable` for a loss that wants groups of some size, with the option that says the size."""
    try:
        loss_fn(probe(_PRIME))
    except Unusable as error:
        if (better := with_group_size(error, lambda rows: loss_fn(probe(rows)))) is not error:
            raise better from error
