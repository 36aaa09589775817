"""Make one scalar loss of a rollout out of whatever a reader hands in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from kl_companion.auditing.reading.arguments import Given, Unusable, failed, loss_of
from kl_companion.auditing.reading.batches import UserBatch
from kl_companion.auditing.reading.constants import numbers_in
from kl_companion.auditing.reading.construction import (
    Chosen,
    Options,
    callable_of,
    kl_coefficient,
    parameters_of,
    too_many,
)
from kl_companion.auditing.reading.heads import HEADS, LIKELIEST, MOST, SIZE, with_size
from kl_companion.auditing.reading.layouts import MASKS, Layout, ProbedLoss, choose
from kl_companion.auditing.reading.names import Read, Unread, read_name, read_names, refusal
from kl_companion.auditing.reading.precision import CastsAsDoubles, eager
from kl_companion.checks import check_choice
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.keywords import renamed
from kl_companion.kl_term import LEVELS, EstimatorLike, KLTerm
from kl_companion.losses import kl_loss, kl_reward, policy_gradient_loss
from kl_companion.rollout import Rollout, aggregate, masked
from kl_companion.tabular import Loss
from kl_companion.tabular.populations import population_rollout, population_tree
from kl_companion.tabular.scores import SINGLE_PLACEMENTS

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Reading(NamedTuple):
    """How a function of a reader was understood.

    Attributes:
        reads: Its parameters, or the keys that it took of a batch.
        constants: Parameters that hold a number: (name, value, what it is, or "set").
        layout: What the names left open.
        result: How the loss was found in what it returned.
        coefficient: Name and value of the KL coefficient; ("", None) where there is not one such number.
    """

    reads: tuple[Read, ...] = ()
    constants: tuple[tuple[str, Any, str], ...] = ()
    layout: Layout = Layout()
    result: str = ""
    coefficient: tuple[str, float | None] = ("", None)


class Subject(NamedTuple):
    """What is audited.

    Attributes:
        loss: A scalar function of a rollout.
        title: What it is called in a sentence.
        placement: ``"loss"``, or ``"reward"`` where the value of the loss estimates nothing.
        entry: The estimator that was named; None for a function.
        reading: How a function's parameters were read; None for an estimator.
        head: Of how many likeliest tokens a function is given tensors, or finds them itself; 0 of none.
        numbers: Numbers that stand in a function, such as its temperature.
        masked: Whether a function is told which tokens are the policy's own.
    """

    loss: Loss
    title: str
    placement: str
    entry: Estimator | None
    reading: Reading | None = None
    head: int = 0
    numbers: tuple[float, ...] = ()
    masked: bool = False


@renamed(mapped="roles", settings="options")
def as_loss(
    loss: EstimatorLike | KLTerm | Callable[..., Any],
    placement: str = "loss",
    level: str | None = None,
    *,
    roles: Mapping[str, str] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
) -> Loss:
    """A scalar function of a `Rollout`.

    Args:
        loss: A registered estimator; a `KLTerm`; or a function, a method, a class or a module as it stands in
            a trainer. Its parameters are told apart by their names, see
            `kl_companion.auditing.reading.names`; a function of one batch or of one `Rollout` takes from it
            what it reads. It returns a scalar, one value per token, which is summed over tokens, or one per
            answer, of which the mean is taken; alone, or first in a tuple, or as the ``loss`` of a dict or
            record.
        placement: ``"loss"`` differentiates it; ``"reward"`` subtracts its detached value from the
            reward of a REINFORCE loss. A `KLTerm` says it itself, and `level` too.
        level: ``"token"`` or ``"sequence"``: whether an estimator sees tokens or whole sequences. None
            is tokens in the loss and sums over sequences in the reward.
        roles: What a parameter means, {their name: role}, where its name does not say it.
        options: Values of options, of a class's constructor or of fields of its configuration.

    Raises:
        ValueError: unknown name, placement, level, parameter or setting; as `Unusable`, a loss that does not
            run or returns none; a level for a function that reads more than ``logp`` and ``ref_logp``; a
            placement or level beside a `KLTerm`.
    """
    return as_subject(loss, placement, level, roles=roles, options=options).loss


@renamed(mapped="roles", settings="options")
def as_subject(
    loss: EstimatorLike | KLTerm | Callable[..., Any],
    placement: str = "loss",
    level: str | None = None,
    *,
    roles: Mapping[str, str] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
) -> Subject:
    """`as_loss` with what the audit says about it; arguments and errors as there."""
    check_choice("placement", placement, SINGLE_PLACEMENTS)
    usual = "token" if placement == "loss" else "sequence"
    chosen: Any = usual if level is None else level
    check_choice("level", chosen, LEVELS)
    if isinstance(loss, str | Estimator | KLTerm) and (roles or options):
        raise ValueError(f"{loss} got roles or options, expected none: they are for functions")
    if isinstance(loss, KLTerm):
        if placement != "loss" or level is not None:
            raise ValueError(
                f"got a KLTerm and placement={placement!r}, level={level!r}: expected both in the term"
            )
        return _of_term(loss)
    if isinstance(loss, str | Estimator):
        entry = get_estimator(loss)
        return Subject(
            _placed(entry, placement, chosen), f"{entry.name} in the {placement}", placement, entry
        )
    function = _Function(loss, roles, options)
    title = function.label if placement == "loss" else f"{function.label} in the {placement}"
    if level is not None:
        if [r.role for r in function.reads] != ["logp", "ref_logp"]:
            raise ValueError(
                f"level={level!r} got a function of "
                f"{', '.join(r.name for r in function.reads) or 'a rollout'}, expected one of logp and "
                "ref_logp: other functions choose their own level"
            )
        return Subject(_placed(loss, placement, chosen), title, placement, None, function.reading())
    called = function.in_reward if placement == "reward" else function.scalar
    reading, head = function.reading(), function.head
    masked = not MASKS.isdisjoint(r.role for r in reading.reads)
    return Subject(called, title, placement, None, reading, head, function.numbers, masked)


class _Function:
    """A reader's function with what each of its parameters is given."""

    def __init__(self, loss: Any, roles: Mapping[str, str], options: Mapping[str, Any]) -> None:
        self.label = _label(loss)
        self.loss = loss
        chosen = Chosen(options)
        self.function = callable_of(loss, chosen)
        self.roles = roles
        self.batch = ""  # the parameter that takes everything
        self.batch_map: dict[str, str] = {}
        self.reads: list[Read] = []
        self.fixed: dict[str, Any] = {}
        self.keys: dict[str, Read] = {}  # what was taken of a batch
        self.result = ""
        self.likeliest = LIKELIEST
        self.found_likeliest: set[int] = set()  # tokens of heads that the loss finds itself
        self._read(chosen)
        self._head_size(chosen)
        chosen.finish(self.label)
        self.assumed = chosen.assumed
        defaults = (p.default for p in parameters_of(self.function, self.label))
        self.numbers = numbers_in(self.function, [*self.fixed.values(), *defaults, *chosen.defaults.values()])
        self.coefficient = kl_coefficient(self.function, chosen)
        self.layout = self._layout()

    def _read(self, settings: Chosen) -> None:
        """Decide for every parameter: a tensor, a number that was set or assumed, or its default."""
        wanted: list[str] = []
        optional: list[str] = []
        for p in parameters_of(self.function, self.label):
            value = settings.of(p.name)
            if value is not MISSING:
                self.fixed[p.name] = value
            elif p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            elif too_many(p.name, p.default):
                self.fixed[p.name] = settings.assume(p.name)
            elif p.default is p.empty or p.name in self.roles:
                known = isinstance(read_name(p.name), Read) or p.name in self.roles
                assumed = MISSING if known else settings.assume(p.name)
                if assumed is MISSING:
                    wanted.append(p.name)
                else:
                    self.fixed[p.name] = assumed
            elif p.default is None and _is_supplied(p.name):
                optional.append(p.name)
        in_batch = {n.rpartition(".")[2]: r for n, r in self.roles.items() if n not in wanted}
        if len(wanted) == 1 and wanted[0] not in self.roles:
            found = read_name(wanted[0])
            if isinstance(found, Unread) or found.role in ("batch", "rollout"):
                self.batch, wanted = wanted[0], []
        batches = [n for n in wanted if self._role_of(n) in ("batch", "rollout")]
        if not self.batch and len(batches) == 1:
            self.batch = batches[0]
            wanted.remove(batches[0])
        self.batch_map = in_batch if self.batch else {}
        reads, unread = read_names(
            [*wanted, *optional], {n: r for n, r in self.roles.items() if not self.batch or n in wanted}
        )
        unread = [u for u in unread if u.name in wanted]
        if unread:
            raise refusal(self.label, unread)
        if not reads and not self.batch:
            raise ValueError(
                f"{self.label} takes no tensors, expected parameters such as logp, ref_logp, mask or logits, "
                "or one batch"
            )
        self.reads = reads

    def _role_of(self, name: str) -> str:
        """Return the role of a parameter: that of ``roles``, else that of its name; "" where it has none."""
        reading = read_name(name)
        return self.roles.get(name, reading.role if isinstance(reading, Read) else "")

    def _head_size(self, settings: Chosen) -> None:
        """How many tokens a head has: as set, else by default of the loss, of its class or of its options.

        Raises:
            ValueError: a size that was set, and that the worlds are too small for.
        """
        heads = self.batch or any(r.role in HEADS for r in self.reads)
        shapes = {p.name: p.default for p in parameters_of(self.function, self.label)} | settings.defaults
        for name, value in [*settings.given.items(), *shapes.items()]:
            last = name.rpartition(".")[2]
            if re.fullmatch(SIZE, last) or (heads and last == "k"):
                fits = type(value) is int and 1 <= value <= MOST
                if name in settings.given and not fits:
                    raise ValueError(
                        f"{name} is {value}, expected 1 to {MOST} likeliest tokens of a small world"
                    )
                if name in settings.given and heads:
                    settings.used.add(name)
                if fits:
                    self.likeliest = value
                    return

    @property
    def head(self) -> int:
        """See `Subject`."""
        if any(role in HEADS for role in self._roles()):
            return self.likeliest
        found = [k for k in self.found_likeliest if 1 <= k <= MOST]
        return max(found) if found and self._roles() else 0

    def call(self, rollout: Rollout, layout: Layout) -> tuple[torch.Tensor, Given]:
        """The loss on a rollout, [batch, seq] or a scalar, in float64 throughout."""
        given = Given(rollout, layout, self.likeliest)
        passed = {r.name: given.of(r.role, r.name) for r in self.reads} | self.fixed
        if self.batch:
            passed[self.batch] = UserBatch.around(given, self.batch_map, self.keys)
        try:
            with _as_formulas() as seen:
                out = self.function(**passed)
            self.found_likeliest.update(seen.likeliest)
        except Unusable:
            raise
        except (Exception, SystemExit) as error:  # the reader's own code: whatever it raises is the answer
            raise failed(self.label, self.function, error, passed) from error
        x, self.result = loss_of(out, rollout, self.label, layout)
        return x, given

    def scalar(self, rollout: Rollout) -> torch.Tensor:
        """The loss as one number."""
        x, _ = self.call(rollout, self.layout)
        return x if x.ndim == 0 else aggregate(x, rollout.completion_mask)

    def in_reward(self, rollout: Rollout) -> torch.Tensor:
        """The REINFORCE loss of minus the values, which are charged as they are."""
        x, _ = self.call(rollout, self.layout)
        if x.ndim < 2:
            raise ValueError("placement='reward' got a scalar, expected one value per token [batch, seq]")
        return policy_gradient_loss(rollout, -masked(x.detach(), rollout.completion_mask).sum(-1))

    def _layout(self) -> Layout:
        """Return the layout of the parameters, see `choose`."""
        annotated = (str(p.annotation) for p in parameters_of(self.function, self.label))
        lists = any(re.search(r"(list|sequence|iterable)\[[^\]]*tensor", x.lower()) for x in annotated)
        try:
            layout = choose(self._probed, self._roles, lists)
        except ValueError:
            if not self.batch:  # a batch may be wanted of another size: its own call says what fails
                raise
            return Layout()
        if layout is None:
            raise Unusable(f"{self.label} shifts ids against logits in a way that is not read here")
        self._check_keys()
        return layout

    def _probed(self, layout: Layout) -> ProbedLoss:
        small = probe()
        x, given = self.call(small, layout)
        assert small.logits is not None
        return ProbedLoss(x, small.logits, small.completion_mask, tuple(given.beyond.values()))

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

    def _roles(self) -> set[str]:
        return {r.role for r in (*self.reads, *self.keys.values())}

    def reading(self) -> Reading:
        """How it was understood."""
        given = {n: v for n, v in self.fixed.items() if n not in self.assumed and not isinstance(v, Options)}
        constants = [(n, v, "set") for n, v in given.items()]
        constants += [(n, v, what) for n, (v, what) in self.assumed.items()]
        reads = (*self.reads, *self.keys.values())
        reads = tuple(
            r._replace(said=with_size(r.said, self.likeliest)) if r.role in HEADS else r for r in reads
        )
        return Reading(reads, tuple(constants), self.layout, self.result, self.coefficient)


def probe() -> Rollout:
    """A small batch on which a loss is run to see how it reads its inputs: stale samples, many lengths."""
    return population_rollout(population_tree(4, 3, parts=4, eos=True, off_policy=True))


def _is_supplied(name: str) -> bool:
    """Whether an optional tensor is given: a weight that is off by default stays off."""
    found = read_name(name)
    if isinstance(found, Unread):  # of a head whose owner other names may say
        return any(role in HEADS for role in found.suggestions)
    return found.role != "importance_ratio"


@contextmanager
def _as_formulas() -> Iterator[CastsAsDoubles]:
    """New tensors are float64, and functions that were compiled run as they are written."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with eager(), CastsAsDoubles() as seen:
            yield seen
    finally:
        torch.set_default_dtype(before)


def _label(loss: Any) -> str:
    name = getattr(loss, "name", None) or getattr(loss, "__qualname__", None) or type(loss).__name__
    return str(name).rpartition("<locals>.")[2]


def _placed(estimator: Any, placement: str, level: Any) -> Loss:
    if placement == "loss":
        return lambda rollout: kl_loss(rollout, estimator, level=level, importance=None)
    return lambda rollout: policy_gradient_loss(
        rollout, -kl_reward(rollout, estimator, level=level, credit=None)
    )


def _of_term(term: KLTerm) -> Subject:
    """The term where it says that it is: in the loss, in the reward of a REINFORCE loss, or in both."""

    def loss(rollout: Rollout) -> torch.Tensor:
        charged: Any = 0.0
        if term.charges:
            charged = policy_gradient_loss(rollout, -kl_reward(rollout, term, beta=1.0))
        return kl_loss(rollout, term) + charged if term.differentiates else charged

    special = {"both": "loss and in the reward", "score": "loss by its score"}
    title = f"{term.entry.name} in the {special.get(term.placement, term.placement)}"
    return Subject(loss, title, "loss" if term.placement == "loss" else "reward", term.entry)
