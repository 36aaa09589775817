"""A line that makes a refused loss run: the likely ones, each tried before it is offered."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from kl_companion.auditing.reading.arguments import Unusable
from kl_companion.auditing.reading.construction import Chosen, callable_of, parameters_of, source_of
from kl_companion.auditing.reading.functions import label_of, probe
from kl_companion.auditing.reading.names import Read, read_name
from kl_companion.auditing.reading.preferences import refuse_preferences
from kl_companion.auditing.reading.signatures import UnclearNames
from kl_companion.auditing.reading.stand_ins import MissingOption
from kl_companion.auditing.reading.subject import NOTHING, Subject, as_subject
from kl_companion.estimators.registry import Estimator
from kl_companion.kl_term import KLTerm

_SECONDS, _MOST = 2.0, 16  # for all tries together
# in the name of what is a number more often than a tensor
_NUMBER = "weight|scale|coef|factor|norm|count|num|size|eps|delta|tau|gamma|alpha|lambda|step|value|temp|lr"
_FLAG = r"(use|is|has|do|enable|apply|with|return)_.*|.*_(enabled|only)|debug|verbose"
_KINDS = "k3 low_var_kl k1 kl k2 mse"  # of a KL, in options
# what else a name may mean where the loss does not run on the first
_INSTEAD = {"logp": ("sequence_logp", "logp_all"), "tokens": ("input_ids", "labels"), "labels": ("tokens",)}


class Repair(NamedTuple):
    """Roles and options to add."""

    roles: dict[str, str]
    options: dict[str, Any]

    def __add__(self, other: Any) -> Repair:
        """Both."""
        return Repair(self.roles | other.roles, self.options | other.options)

    @property
    def words(self) -> str:
        """As it is typed."""
        typed = [f"--map {n}={r}" for n, r in self.roles.items()]
        return " ".join([*typed, *(f"--set {n}={v}" for n, v in self.options.items())])


def readable(
    loss: Any,
    placement: str = "loss",
    level: str | None = None,
    *,
    roles: Mapping[str, str] = NOTHING,
    options: Mapping[str, Any] = NOTHING,
    group_size: int | None = None,
) -> Subject:
    """`as_subject`, whose refusal ends with a line that was tried and runs, or with a function to write.

    Args:
        loss: See `as_subject`.
        placement: See `as_subject`.
        level: See `as_subject`.
        roles: See `as_subject`.
        options: See `as_subject`.
        group_size: See `as_subject`.

    Raises:
        PreferenceLoss: a loss of preference pairs.
        ValueError: as `as_subject`.
    """
    if not isinstance(loss, str | Estimator | KLTerm):
        refuse_preferences(loss, label_of(loss), {*roles}, options)

    def read(repair: Repair) -> Subject:
        return as_subject(
            loss,
            placement,
            level,
            roles={**roles, **repair.roles},
            options={**options, **repair.options},
            group_size=group_size,
        )

    try:
        return read(Repair({}, {}))
    except (UnclearNames, Unusable) as error:
        if re.search("--group-size|not installed here|stand in for", str(error)):  # it says what to do
            raise
        line = _help(error, loss, read, {*roles, *options})
        said = str(error)
        if line.startswith("Tried"):
            said = re.sub(r"\nAll roles:.*", "", said, flags=re.S)
        error.args = (f"{said}\n{line}",)
        raise


def _help(error: ValueError, loss: Any, read: Callable[[Repair], Subject], decided: set[str]) -> str:
    """The last lines of a refusal."""
    until = time.process_time() + _SECONDS
    waiting: list[tuple[Repair, ValueError]] = [(Repair({}, {}), error)]
    tried: list[Repair] = []
    while waiting:
        before, why = waiting.pop(0)
        for more in _proposals(why, loss, decided):
            repair = before + more
            if repair in tried:
                continue
            if len(tried) == _MOST or time.process_time() > until:
                return _wrapper(loss, len(tried))
            tried.append(repair)
            try:
                if read(repair).loss(probe()).requires_grad:
                    python = ", ".join(f"{k}={v}" for k, v in repair._asdict().items() if v)
                    return f"Tried, and runs: {repair.words} ({python} in Python). Is it what you mean?"
            except (UnclearNames, Unusable) as again:
                if str(again) != str(why):
                    waiting.append((repair, again))
            except Exception:  # a value that fits nothing
                continue
    return _wrapper(loss, len(tried))


def _proposals(error: ValueError, loss: Any, decided: set[str]) -> Iterator[Repair]:
    """What may be added, the likeliest first."""
    if isinstance(error, MissingOption):
        for value in _values(error.path, loss):
            yield Repair({}, {error.path: value})
    elif isinstance(error, UnclearNames):
        choices = []
        for u in error.unread:
            one, as_number = Repair({}, {u.name: 1}), re.search(_NUMBER, u.name.lower())
            named = [Repair({u.name: role}, {}) for role in u.suggestions[:3]]
            choices.append([one, *named] if as_number else [*named, one])
        ranked = itertools.product(*(enumerate(c) for c in choices))
        for picked in sorted(ranked, key=lambda p: sum(i for i, _ in p))[:_MOST]:
            yield sum((x for _, x in picked), Repair({}, {}))
    else:
        function = callable_of(loss, Chosen({}))
        names = {p.name: read_name(p.name) for p in parameters_of(function, "") if p.name not in decided}
        for part, others in _INSTEAD.items():
            same = {n: r.role for n, r in names.items() if isinstance(r, Read) and r.role.endswith(part)}
            for other in others if same else ():
                yield Repair({n: role.removesuffix(part) + other for n, role in same.items()}, {})
        for name in names:
            yield Repair({}, {name: 1})


def _values(path: str, loss: Any) -> list[Any]:
    """Values of an option: what the code compares it with, else a flag's or a number."""
    name = path.rpartition(".")[2]
    source = source_of(callable_of(loss, Chosen({})))
    compared = re.findall(rf"\b{name}[\"'\])]*\s*(?:==|in)\s*([^\n:]+)", source)
    texts = [x for part in compared for x in re.findall(r"[\"']([\w.-]+)[\"']", part)]
    if not texts and re.search("type|mode|kind|method|estimator", name.lower()):  # compared somewhere else
        texts = _KINDS.split()
    return texts[:6] or ([False, True] if re.fullmatch(_FLAG, name.lower()) else [1, False])


def _wrapper(loss: Any, tried: int) -> str:
    """A function to write, where no line was found."""
    try:
        function = callable_of(loss, Chosen({}))
        wanted = [p.name for p in parameters_of(function, "") if p.default is p.empty]
    except ValueError:
        wanted = []
    found = {n: r.role for n in wanted if isinstance(r := read_name(n), Read)}
    parameters = list(dict.fromkeys([*found.values(), "logp", "ref_logp", "completion_mask"]))
    call = ", ".join(f"{n}={found.get(n, '...')}" for n in wanted)
    name = label_of(loss)
    return "\n".join(
        [
            f"None of {tried} likely lines makes it run. Audit a function of what an audit has:",
            f"    def audited({', '.join(parameters[:5])}):",
            "        # what your code wants, made of these",
            f"        return {name}({call})",
        ]
    )
