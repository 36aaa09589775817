"""A reader's function as a loss of a rollout: what each parameter is given, and which layout runs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import MISSING
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.arguments import (
    NO_OTHERS,
    OF_TOKENS,
    Given,
    Others,
    Unusable,
    failed,
    loss_of,
)
from kl_companion.auditing.reading.axes import LastAxis
from kl_companion.auditing.reading.batches import Model, UserBatch
from kl_companion.auditing.reading.constants import numbers_in
from kl_companion.auditing.reading.construction import (
    OPTIONS,
    Chosen,
    Options,
    callable_of,
    kl_coefficient,
    label_of,
    parameters_of,
    source_of,
    too_many,
)
from kl_companion.auditing.reading.groups import group_size_of, with_group_size
from kl_companion.auditing.reading.heads import HEADS, LIKELIEST, MOST, SIZE, with_size
from kl_companion.auditing.reading.helpers import lent
from kl_companion.auditing.reading.layouts import Layout, ProbedLoss, choose, places_reached
from kl_companion.auditing.reading.names import Read, Unread, owner_of_model, read_name
from kl_companion.auditing.reading.precision import as_formulas
from kl_companion.auditing.reading.request import AuditRequest
from kl_companion.auditing.reading.roles import OWNERS, PREFIX
from kl_companion.auditing.reading.signatures import read_names, refusal
from kl_companion.auditing.reading.stand_ins import MissingOption
from kl_companion.losses import policy_gradient_loss
from kl_companion.rollout import Rollout, aggregate, masked
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import population_rollout, population_tree

ROWS, _PRIME = 64, 61  # answers of a probe; a number that no size of group divides
_EVERYTHING = ("batch", "rollout")


class Reading(NamedTuple):
    """How a function of a reader was understood.

    Attributes:
        reads: Its parameters, or the keys that it took of a batch.
        constants: Parameters that hold a number: (name, value, what it is, or "set").
        layout: What the names left open.
        result: How the loss was found in what it returned.
        coefficient: Name and value of the KL coefficient; ("", None) where there is not one such number.
        notes: Sentences on what was decided by experiment, with what to write for the other choice.
    """

    reads: tuple[Read, ...] = ()
    constants: tuple[tuple[str, Any, str], ...] = ()
    layout: Layout = Layout()
    result: str = ""
    coefficient: tuple[str, float | None] = ("", None)
    notes: tuple[str, ...] = ()


class UserFunction:
    """A reader's function with what each of its parameters is given.

    Attributes:
        label: Its name in a message.
        reads: Parameters that are tensors.
        fixed: Parameters that hold a number or another value.
        batch: The parameter that takes everything, or "".
        keys: Names that were taken of the batch.
        layout: The layout under which it runs.
        group: Answers in a group, where it takes a batch for groups of one size.
    """

    def __init__(self, request: AuditRequest) -> None:
        self.label = label_of(request.loss)
        self.roles = request.roles
        self.settings = Chosen(request.options)
        self.function = callable_of(request.loss, self.settings)
        self.parameters = parameters_of(self.function)
        self.source = source_of(self.function)
        self.models: dict[str, str] = {}  # parameters that are called: whose outputs they return
        self.fixed: dict[str, Any] = {}
        self.keys: dict[str, Read] = {}
        self.result = ""
        self.notes = lent(self.function)
        self.found_likeliest: set[int] = set()  # tokens of heads that the loss finds itself
        tensors, optional = self._numbers()
        self.batch = self._takes_everything(tensors)
        self.batch_map: dict[str, str] = {}
        self.reads = self._tensors([n for n in tensors if n != self.batch], optional)
        self.defaults = {p.name: p.default for p in self.parameters} | self.settings.defaults
        self.likeliest = self._head_size()
        if not self.settings.late:
            self.settings.finish(self.label)
        unmapped = {n: v for n, v in self.defaults.items() if n not in self.roles}
        self.group = group_size_of(self.function, unmapped | self.settings.given | self.fixed)
        size = request.group_size or (self.group.size if self.group else 1)
        self.rows = max(ROWS - ROWS % size, size)
        self.layout = self._layout()
        self.settings.finish(self.label)
        self.numbers = numbers_in(self.function, [*self.fixed.values(), *self.defaults.values()])
        self.coefficient = kl_coefficient(self.function, self.settings)

    def _numbers(self) -> tuple[list[str], list[str]]:
        """Fix the numbers that were set or assumed; return the tensors, and those that may be left out."""
        tensors: list[str] = []
        optional: list[str] = []
        for p in self.parameters:
            value = self.settings.of(p.name)
            if value is MISSING and p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            role = self._role_of(p.name)
            needed = p.default is p.empty or p.name in self.roles
            model = self._called(p.name) if needed and not role else ""
            options = p.default is None and not needed and self._reads_options(p.name)
            is_number = options or too_many(p.name, p.default) or (needed and not role and not model)
            if value is MISSING and is_number:
                value = self.settings.assume(p.name)
            if value is not MISSING:
                self.fixed[p.name] = value
            elif model:
                self.models[p.name] = model
            elif needed:
                tensors.append(p.name)
            elif p.default is None and _is_supplied(p.name):
                optional.append(p.name)
        return tensors, optional

    def _reads_options(self, name: str) -> bool:
        """Whether options that may be None are read, and nothing stands for them there."""
        reads = re.fullmatch(OPTIONS, name) and re.search(rf"\b{name}\.\w", self.source)
        return bool(reads) and not re.search(rf"\b{name} (is|or|if)\b|(if|not) {name}\b", self.source)

    def _called(self, name: str) -> str:
        """Whose model a parameter is, "" where the name is not one of a model or the function calls none."""
        calls = "model" in name.lower() or re.search(rf"\b{name}(?:\.module|\.forward)?\(", self.source)
        return owner_of_model(name) if calls else ""

    def _takes_everything(self, tensors: list[str]) -> str:
        """The parameter that is a batch, "" where none or several are."""
        unread = [n for n in tensors if not self._role_of(n)]
        if len(unread) == len(tensors) == 1:
            return unread[0]
        batches = [n for n in tensors if self._role_of(n) in _EVERYTHING]
        if not batches:  # its entries are read by names
            fields = r"(?:\.\w*(?:log_?p|mask|adv|reward)\w*|\[[\"'])"
            batches = [n for n in unread if re.search(rf"\b{n}{fields}", self.source)]
        return batches[0] if len(batches) == 1 else ""

    def _tensors(self, tensors: list[str], optional: list[str]) -> list[Read]:
        """Read the names of the tensors; ValueError for those that are not clear."""
        mapped = self.roles
        if self.batch:  # what is mapped may be a key of it
            self.batch_map = {n.rpartition(".")[2]: r for n, r in mapped.items() if n not in tensors}
            mapped = {n: r for n, r in mapped.items() if n in tensors}
        reads, unread = read_names([*tensors, *optional], mapped)
        if unread := [u for u in unread if u.name in tensors]:
            raise refusal(self.label, unread)
        if not (reads or self.batch or self.models):
            raise ValueError(
                f"{self.label} takes no tensors, expected parameters such as logp, ref_logp, mask or logits, "
                "or one batch"
            )
        outputs = [
            Read(n, f"{PREFIX[o]}outputs", f"a model that returns the outputs of {OWNERS[o]}")
            for n, o in self.models.items()
        ]
        return [*outputs, *reads]

    def _role_of(self, name: str) -> str:
        """Return the role of a parameter: that of ``roles``, else that of its name; "" where it has none."""
        reading = read_name(name)
        return self.roles.get(name, reading.role if isinstance(reading, Read) else "")

    def _head_size(self) -> int:
        """How many tokens a head has: as set, else by default of the loss, of its class or of its options.

        Raises:
            ValueError: a size that was set, and that the worlds are too small for.
        """
        heads = self.batch or any(r.role in HEADS for r in self.reads)
        given = self.settings.given
        for name, value in [*given.items(), *self.defaults.items()]:
            if not re.fullmatch(f"k|{SIZE}" if heads else SIZE, name.rpartition(".")[2]):
                continue
            fits = type(value) is int and 1 <= value <= MOST
            if name in given and not fits:
                raise ValueError(f"{name} is {value}, expected 1 to {MOST} likeliest tokens of a small world")
            if name in given and heads:
                self.settings.used.add(name)
            if fits:
                return int(value)
        return LIKELIEST

    @property
    def head(self) -> int:
        """See `kl_companion.auditing.reading.subject.Subject`."""
        if any(role in HEADS for role in self._roles()):
            return self.likeliest
        found = [k for k in self.found_likeliest if 1 <= k <= MOST]
        return max(found) if found and self._roles() else 0

    def call(
        self,
        rollout: Rollout,
        layout: Layout,
        watch: LastAxis | None = None,
        others: Others = NO_OTHERS,
    ) -> tuple[torch.Tensor, Given]:
        """The loss on a rollout, [batch, seq] or a scalar, in float64 throughout."""
        given = Given(rollout, layout, self.likeliest, others=others)
        passed = {r.name: given.of(r.role, r.name) for r in self.reads} | self.fixed
        passed |= {n: Model(passed[n], given) for n in self.models}
        if self.batch:
            passed[self.batch] = UserBatch.around(given, self.batch_map, self.keys)
            vars(passed[self.batch])["_beside"] = {r.role for r in self.reads}
        if watch is not None:
            watch.given = [passed[r.name] for r in self._undecided() if r.name in passed]
        named = dict(passed)
        first = [
            named.pop(p.name) for p in self.parameters if p.kind is p.POSITIONAL_ONLY and p.name in named
        ]
        try:
            with as_formulas() as seen, watch or nullcontext(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of batches that are smaller than the reader's
                out = self.function(*first, **named)
            self.found_likeliest.update(seen.likeliest)
        except Unusable:
            raise
        except (Exception, SystemExit) as error:  # the reader's own code: whatever it raises is the answer
            raise failed(self.label, self.function, error, passed) from error
        x, self.result = loss_of(out, rollout, self.label, layout)
        return x, given

    def scalar(
        self, rollout: Rollout, others: Others = NO_OTHERS, layout: Layout | None = None
    ) -> torch.Tensor:
        """The loss as one number; ``others`` has the rollouts from which single inputs are given."""
        x, _ = self.call(rollout, layout or self.layout, others=others)
        return x if x.ndim == 0 else aggregate(x, rollout.completion_mask)

    def in_reward(self, rollout: Rollout, others: Others = NO_OTHERS, /) -> torch.Tensor:
        """The REINFORCE loss of minus the values, which are charged as they are."""
        x, _ = self.call(rollout, self.layout, others=others)
        if x.ndim < 2:
            raise ValueError("placement='reward' got a scalar, expected one value per token [batch, seq]")
        return policy_gradient_loss(rollout, -masked(x.detach(), rollout.completion_mask).sum(-1))

    def _layout(self) -> Layout:
        """Return the layout under which the loss runs, and sums over the axis that it means, see `choose`."""
        error: ValueError = Unusable(f"{self.label} shifts ids against logits in a way that is not read here")
        layout, reason = None, ""
        try:
            layout = self._chosen()
        except ValueError as failed_first:
            error = failed_first
        if (undecided := self._undecided()) and layout is not None:
            watch = LastAxis()
            self.call(probe(self.rows), layout, watch)
            reason = watch.reason
        if undecided and (reason or layout is None):
            with suppress(ValueError):
                whole = self._chosen(among_all=True)
                self.notes += [_of_all(undecided, reason)] if whole and reason else []
                layout = whole or layout
        if layout is not None:
            self._check_keys()
            probed = self._probed(layout)
            if probed.loss.requires_grad and not places_reached(probed)[0]:
                self.notes.append("The first token of an answer gets no gradient")
            return layout
        if self.batch and not isinstance(error, MissingOption):
            return Layout()  # a batch may be wanted of another size: its own call says what fails
        if isinstance(error, Unusable) and self.rows == ROWS:
            raise with_group_size(error, self._chosen) from error
        raise error

    def _chosen(self, rows: int = 0, *, among_all: bool = False) -> Layout | None:
        """Return the layout that `choose` takes, on so many answers; ValueError where none runs."""
        self.rows = rows or self.rows
        annotated = " ".join(str(p.annotation) for p in self.parameters)
        lists = re.search(r"(list|sequence|iterable)\[[^\]]*tensor", annotated.lower())
        return choose(self._probed, self._roles, lists is not None, among_all)

    def _probed(self, layout: Layout) -> ProbedLoss:
        small = probe(self.rows)
        x, given = self.call(small, layout)
        assert small.logits is not None
        return ProbedLoss(x, small.logits, small.completion_mask, tuple(given.beyond.values()))

    def _undecided(self) -> list[Read]:
        """Log-probs of which the name does not say whether they are of the sampled token."""
        decided = {**self.roles, **self.batch_map}
        return [
            r
            for r in self.named
            if r.role.endswith("logp")
            and not r.role.endswith("sequence_logp")
            and r.name not in decided
            and not OF_TOKENS.search(r.name)
        ]

    def _check_keys(self) -> None:
        """Raise ValueError where two names of a batch and of parameters are read as one thing."""
        names = list(self.keys)
        mapped = {n: r for n, r in self.batch_map.items() if n in names}
        reads, unread = read_names(names, mapped)
        self.keys.update({r.name: r for r in reads if r.role in HEADS})
        decided = {r.role for r in self.reads}
        for name, read in self.keys.items():
            twice = read.role in decided and not read.role.startswith(("behavior_", "completion_mask"))
            if twice and name not in mapped:
                why = f"a parameter is read as the same already: {read.said}"
                unread.append(Unread(f"{self.batch}.{name}", why, (read.role,)))
        if unread:
            raise refusal(self.label, unread)

    @property
    def named(self) -> list[Read]:
        """How parameters and keys were read."""
        return [*self.reads, *self.keys.values()]

    def _roles(self) -> set[str]:
        return {r.role for r in self.named}

    def reading(self) -> Reading:
        """How it was understood."""
        assumed = self.settings.assumed
        fixed = {n: v for n, v in self.fixed.items() if n not in assumed and not isinstance(v, Options)}
        constants = [(n, v, "set") for n, v in fixed.items()]
        constants += [(n, v, what) for n, (v, what) in assumed.items()]
        reads = tuple(map(self._in_words, self.named))
        return Reading(reads, tuple(constants), self.layout, self.result, self.coefficient, tuple(self.notes))

    def _in_words(self, read: Read) -> Read:
        if read.role in HEADS:
            return read._replace(said=with_size(read.said, self.likeliest))
        if self.layout.whole and any(read.name == r.name for r in self._undecided()):
            return read._replace(role=f"{read.role}_all", said=f"{read.said}, whole vocabulary")
        return read


def probe(rows: int = ROWS) -> Rollout:
    """A small batch on which a loss is run to see how it reads its inputs: stale samples, many lengths."""
    rollout = population_rollout(population_tree(4, 3, parts=4, eos=True, off_policy=True))
    return rollout if rows == ROWS else rollout.repeated(torch.arange(rows) % ROWS)


def check_rows(loss_fn: Loss) -> None:
    """Raise `Unusable` for a loss that wants groups of some size, with the option that says the size."""
    try:
        loss_fn(probe(_PRIME))
    except Unusable as error:
        if (refusal := with_group_size(error, lambda rows: loss_fn(probe(rows)))) is not error:
            raise refusal from error


def _of_all(reads: Sequence[Read], reason: str) -> str:
    """Return the sentence on log-probs that are of the whole vocabulary by their use."""
    names = " and ".join(r.name for r in reads)
    line = " ".join(f"--map {r.name}={r.role}" for r in reads)
    return (
        f"{names} {'is' if len(reads) == 1 else 'are'} read as log-probs of the whole vocabulary: "
        f"{reason}. If of the sampled token only: {line}"
    )


def _is_supplied(name: str) -> bool:
    """Whether an optional tensor is given: a weight that is off by default stays off."""
    found = read_name(name)
    if isinstance(found, Unread):  # of a head whose owner other names may say
        return any(role in HEADS for role in found.suggestions)
    return found.role != "importance_ratio"
