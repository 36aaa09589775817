"""A line that makes a refused loss run: the likely ones, each tried before it is offered."""

from __future__ import annotations

import inspect
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kl_companion.auditing.reading.arguments import Unusable
from kl_companion.auditing.reading.construction import NAMES, Chosen, callable_of
from kl_companion.auditing.reading.names import OWNED, Read, read_name
from kl_companion.auditing.reading.preferences import refuse_preferences
from kl_companion.auditing.reading.request import AuditRequest
from kl_companion.auditing.reading.signatures import UnclearNames
from kl_companion.auditing.reading.stand_ins import MissingOption
from kl_companion.auditing.reading.subject import Subject, probe, subject_of
from kl_companion.auditing.reading.text import FunctionText, label_of
from kl_companion.estimators.registry import Estimator
from kl_companion.kl_term import KLTerm

_SECONDS, _MOST = 2.0, 16  # for all tries together
_PATTERNS = NAMES["repairs"]
_ENDS = sorted(OWNED, key=len, reverse=True)  # of roles: what is left is whose they are


class Repair(NamedTuple):
    """Roles and options to add."""

    roles: dict[str, str]
    options: dict[str, Any]

    def __add__(self, other: Any) -> Repair:
        """Both."""
        return Repair(self.roles | other.roles, self.options | other.options)

    def __str__(self) -> str:
        """As it is typed, and in Python."""
        typed = [f"--map {n}={r}" for n, r in self.roles.items()]
        typed += [f"--set {n}={v}" for n, v in self.options.items()]
        python = ", ".join(f"{k}={v}" for k, v in self._asdict().items() if v)
        return f"{' '.join(typed)} ({python} in Python)"


_NO_REPAIR = Repair({}, {})


def readable(request: AuditRequest) -> Subject:
    """`subject_of`, whose refusal ends with a line that was tried and runs, or with a function to write.

    Raises:
        PreferenceLoss: a loss of preference pairs.
        ValueError: as `subject_of`.
    """
    if not isinstance(request.loss, str | Estimator | KLTerm):
        refuse_preferences(request.loss, label_of(request.loss), {*request.roles}, request.options)
    try:
        return subject_of(request)
    except (UnclearNames, Unusable) as error:
        if re.search(_PATTERNS["says_what_to_do"], str(error)):
            raise
        line = _help(error, request)
        said = re.sub(r"\nAll roles:.*", "", str(error), flags=re.S) if line[:5] == "Tried" else str(error)
        error.args = (f"{said}\n{line}",)
        raise


def _help(error: ValueError, request: AuditRequest) -> str:
    """The last lines of a refusal."""
    say = request.progress or str
    until = time.process_time() + _SECONDS
    asked = Repair({**request.roles}, {**request.options})
    waiting = [(_NO_REPAIR, error)]
    tried: list[Repair] = []
    while waiting:
        before, why = waiting.pop(0)
        for more in _proposals(why, request.loss, {*asked.roles, *asked.options}):
            if (repair := before + more) in tried:
                continue
            if len(tried) == _MOST or time.process_time() > until:
                return _wrapper(request.loss, len(tried))
            tried.append(repair)
            say(f"As it is, it does not run: trying {repair}")
            try:
                if subject_of(request._replace(**(asked + repair)._asdict())).loss(probe()).requires_grad:
                    return f"Tried, and runs: {repair}. Is it what you mean?"
            except (UnclearNames, Unusable) as again:
                if str(again) != str(why):
                    waiting.append((repair, again))
            except Exception:  # a value that fits nothing
                continue
    return _wrapper(request.loss, len(tried))


def _proposals(error: ValueError, loss: Any, decided: set[str]) -> Iterator[Repair]:
    """What may be added, the likeliest first."""
    if isinstance(error, MissingOption):
        yield from (Repair({}, {error.path: value}) for value in _values(error.path, loss))
    elif isinstance(error, UnclearNames):
        choices, text = [], _text(loss)
        source = text.source if text else ""
        file = source + text.whole if text else ""  # what is passed on is used elsewhere
        for u in error.unread:
            outside = re.search(_PATTERNS["outside"].format(name=re.escape(u.name)), source)
            suggested = _by_use(u.suggestions, u.name, file)
            roles = (
                suggested[::-1]
                if outside and suggested[1:] == ("outside_mask",)
                else suggested[:3] or _PATTERNS["unnamed"]
            )
            named = [Repair({u.name: role}, {}) for role in roles]
            number = not u.suggestions or re.search(_PATTERNS["number"], u.name.lower())
            first = 0 if number else len(named)
            choices.append([*named[:first], Repair({}, {u.name: 1}), *named[first:]])
        ranked = sorted(itertools.product(*map(enumerate, choices)), key=lambda p: sum(i for i, _ in p))
        found = (sum((x for _, x in picked), _NO_REPAIR) for picked in ranked)
        apart = (x for x in found if len({*x.roles.values()}) == len(x.roles))  # no two are the same thing
        yield from itertools.islice(apart, _MOST)
    else:
        names = {p.name: read_name(p.name) for p in _parameters(loss) if p.name not in decided}
        for part, others in _PATTERNS["instead"].items():
            same = {n: r.role for n, r in names.items() if isinstance(r, Read) and r.role.endswith(part)}
            for other in others if same else ():
                yield Repair({n: role.removesuffix(part) + other for n, role in same.items()}, {})
        yield from (Repair({}, {name: 1}) for name in names)


def _by_use(roles: Sequence[str], name: str, text: str) -> Sequence[str]:
    """Return roles of what is done with a name where the text shows it: a softmax is of logits."""
    patterns = [(re.compile(pattern.format(name=re.escape(name))), use) for pattern, use in _PATTERNS["used"]]
    uses = [(match.start(), use) for pattern, use in patterns if (match := pattern.search(text))]
    if not (uses and roles):
        return roles
    owners = dict.fromkeys(r.removesuffix(next(q for q in (*_ENDS, r) if r.endswith(q))) for r in roles)
    return [f"{owner}{min(uses)[1]}" for owner in owners]


def _text(loss: Any) -> FunctionText | None:
    """Return the text of a loss; None where it cannot be constructed."""
    try:
        return FunctionText(callable_of(loss, Chosen({})))
    except ValueError:
        return None


def _parameters(loss: Any) -> list[inspect.Parameter]:
    return text.parameters if (text := _text(loss)) else []


def _source(loss: Any) -> str:
    return text.source if (text := _text(loss)) else ""


def _values(path: str, loss: Any) -> list[Any]:
    """Values of an option: what the code compares it with, else a flag's or a number."""
    name = path.rpartition(".")[2]
    source = _source(loss)
    compared = re.findall(rf"\b{name}[\"'\])]*\s*(?:==|in)\s*([^\n:]+)", source)
    texts = [x for part in compared for x in re.findall(r"[\"']([\w.-]+)[\"']", part)]
    if not texts and re.search(_PATTERNS["choice"], name.lower()):  # compared somewhere else
        texts = _PATTERNS["kinds"]
    return texts[:6] or (_switched(name) if re.fullmatch(_PATTERNS["flag"], name.lower()) else [1, False])


def _switched(name: str) -> list[bool]:
    """A flag's values: what concerns the KL is on."""
    return [True] if "kl" in name.lower() else [False, True]


def _wrapper(loss: Any, tried: int) -> str:
    """A function to write, where no line was found."""
    needed = [p.name for p in _parameters(loss) if p.default is p.empty]
    found = {n: r.role for n in needed if isinstance(r := read_name(n), Read)}
    parameters = list(dict.fromkeys([*found.values(), "logp", "ref_logp", "completion_mask"]))
    call = ", ".join(f"{n}={found.get(n, '...')}" for n in needed)
    return (
        f"None of {tried} likely lines makes it run. Audit a function of what an audit has:\n"
        f"    def audited({', '.join(parameters[:5])}):\n"
        "        # what your code wants, made of these\n"
        f"        return {label_of(loss)}({call})"
    )
