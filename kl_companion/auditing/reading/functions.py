"""Read a function once: each parameter is an option, a tensor, a model, or the batch of everything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from inspect import Parameter
from typing import Any, NamedTuple

from kl_companion.auditing.reading.batches import read_model
from kl_companion.auditing.reading.construction import OPTIONS, Chosen, callable_of, is_of_training, too_many
from kl_companion.auditing.reading.groups import GroupSize, group_size_of
from kl_companion.auditing.reading.heads import HEADS, LIKELIEST, MOST, SIZE
from kl_companion.auditing.reading.names import OWNED, owner_of_model, read_name
from kl_companion.auditing.reading.request import AuditRequest
from kl_companion.auditing.reading.roles import OWNERS, Read, Unread
from kl_companion.auditing.reading.signatures import read_names, refusal
from kl_companion.auditing.reading.stand_ins import Bystander
from kl_companion.auditing.reading.text import FunctionText, label_of

LISTS = r"(list|sequence|iterable)\[[^\]]*tensor"  # annotations of tensors in lists
EVERYTHING = ("batch", "rollout")  # roles of a parameter that holds all others


class Signature(NamedTuple):
    """A function as its text and its parameters show it, before it runs.

    Attributes:
        label: Its name in a message.
        text: Its text.
        settings: Values of its options, and those that are assumed.
        roles: What the caller says that names mean.
        reads: Parameters that are tensors or models.
        fixed: Parameters that hold a number or another value.
        models: Names of the parameters that are called.
        asks_policy: Whether a model is asked for the policy's numbers.
        batch: The parameter that holds everything; "" for none.
        likeliest: Tokens of a head.
        group: Answers in a group, where it takes a batch for groups of one size.
        size: Answers of which a batch is a multiple.
    """

    label: str
    text: FunctionText
    settings: Chosen
    roles: Mapping[str, str]
    reads: tuple[Read, ...]
    fixed: Mapping[str, Any]
    models: tuple[str, ...]
    asks_policy: bool
    batch: str
    likeliest: int
    group: GroupSize | None
    size: int

    @property
    def keys_mapped(self) -> dict[str, str]:
        """Roles of keys of the batch that the caller names, which are those of no parameter."""
        own = {p.name for p in self.text.parameters}
        return {n.rpartition(".")[2]: r for n, r in self.roles.items() if n not in own} if self.batch else {}


class _Parameters(NamedTuple):
    """The parameters of a function, by what each of them is."""

    fixed: dict[str, Any]
    models: dict[str, str]  # whose they are
    tensors: list[str]
    optional: list[str]  # tensors that may be left out
    lists: set[str]  # of tensors, by their annotation


def read_function(request: AuditRequest) -> Signature:
    """Return the signature of the function, method, class or module of a request.

    Raises:
        ValueError: a class that cannot be constructed, names that are not clear, an option that does not fit.
    """
    label, settings, roles = label_of(request.loss), Chosen(request.options), request.roles
    text = FunctionText(callable_of(request.loss, settings))
    settings.text = text.source
    parameters = _sorted_out(text, settings, roles)
    batch = _holds_everything(parameters.tensors, text, roles)
    asks_policy = _asks_policy(parameters.models, text)
    reads = _read_tensors(parameters, asks_policy, batch, label, roles)
    defaults = {p.name: p.default for p in text.parameters} | settings.defaults
    heads = bool(batch) or any(r.role in HEADS for r in reads)
    likeliest = _head_size(settings, defaults, heads)
    unread = (n.partition(".")[0] for n in settings.given if n not in settings.used)
    if not (settings.late or any(text.has(rf"\b{name}\b") for name in unread)):
        settings.finish(label)
    unmapped = {n: v for n, v in defaults.items() if n not in roles}
    group = group_size_of(text, unmapped | settings.given | parameters.fixed)
    size = request.group_size or (group.size if group else 1)
    return Signature(
        label,
        text,
        settings,
        roles,
        reads,
        parameters.fixed,
        tuple(parameters.models),
        asks_policy,
        batch,
        likeliest,
        group,
        size,
    )


def _sorted_out(text: FunctionText, settings: Chosen, roles: Mapping[str, str]) -> _Parameters:
    """Return the parameters with the numbers that were set or assumed."""
    lists = {p.name for p in text.parameters if re.search(LISTS, str(p.annotation).lower())}
    sorts = _Parameters({}, {}, [], [], lists)
    for p in text.parameters:
        value = settings.of(p.name)
        if value is MISSING and p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        role = _role_of(p.name, roles)
        needed = p.default is p.empty or p.name in roles
        model = _model_of(p.name, text) if needed and not role else ""
        is_number = too_many(p.name, p.default) or (needed and not role and not model)
        if value is MISSING and (is_number or (p.default is None and not needed and _is_options(p, text))):
            value = settings.assume(p.name)
        unread = needed and not (role or model)
        if value is MISSING and unread and (text.passed_on(p.name) or is_of_training(p.name)):
            value = Bystander(p.name, settings.assume)
        if value is not MISSING:
            sorts.fixed[p.name] = value
        elif model:
            sorts.models[p.name] = model
        elif needed:
            sorts.tensors.append(p.name)
        elif p.default is None and _is_supplied(p.name):
            sorts.optional.append(p.name)
    if not (sorts.tensors or sorts.models):  # one that is passed on may hold everything
        alone = [name for name, value in sorts.fixed.items() if isinstance(value, Bystander)]
        fixed = {n: v for n, v in sorts.fixed.items() if n not in alone}
        return sorts._replace(tensors=alone, fixed=fixed)
    return sorts


def _role_of(name: str, roles: Mapping[str, str]) -> str:
    """Return the role of a parameter: the caller's, else that of its name; "" where it has none."""
    reading = read_name(name)
    return roles.get(name, reading.role if isinstance(reading, Read) else "")


def _is_options(parameter: Parameter, text: FunctionText) -> bool:
    """Whether a parameter is options that may be None, and are read without asking for None."""
    name = parameter.name
    reads = re.fullmatch(OPTIONS, name) is not None and text.has(rf"\b{name}\.\w")
    return reads and not text.has(rf"\b{name} (is|or|if)\b|(if|not) {name}\b")


def _model_of(name: str, text: FunctionText) -> str:
    """Return whose model a parameter is; "" where its name is of no model or the function calls none."""
    called = text.called(name)
    return owner_of_model(name, called=called) if called or "model" in name.lower() else ""


def _asks_policy(models: Mapping[str, str], text: FunctionText) -> bool:
    """Whether the function asks a model for the policy's numbers: a parameter, or what its trainer holds."""
    of_self = re.findall(r"\bself\.(\w+)(?:\.\w+)*\(", text.source)
    return "policy" in [*models.values(), *map(owner_of_model, of_self)]


def _is_supplied(name: str) -> bool:
    """Whether an optional tensor is passed: a weight that is off by default stays off."""
    reading = read_name(name)
    if isinstance(reading, Unread):  # of a head whose owner other names may say
        return any(role in HEADS for role in reading.suggestions)
    return reading.role != "importance_ratio"


def _holds_everything(tensors: Sequence[str], text: FunctionText, roles: Mapping[str, str]) -> str:
    """Return the parameter that is a batch, "" where none or several are."""
    unread = [n for n in tensors if not _role_of(n, roles)]
    if len(unread) == len(tensors) == 1:
        return unread[0]
    batches = [n for n in tensors if _role_of(n, roles) in EVERYTHING]
    if not batches:  # its entries are read by names
        fields = r"(?:\.\w*(?:log_?p|mask|adv|reward)\w*|\[[\"'])"
        batches = [n for n in unread if text.has(rf"\b{n}{fields}")]
    return batches[0] if len(batches) == 1 else ""


def _read_tensors(
    parameters: _Parameters, asks_policy: bool, batch: str, label: str, roles: Mapping[str, str]
) -> tuple[Read, ...]:
    """Read the names of models and tensors; ValueError for those that are not clear."""
    tensors = [n for n in parameters.tensors if n != batch]
    # what is mapped may be a key of the batch
    mapped = {n: r for n, r in roles.items() if n in tensors} if batch else roles
    reads, unread = read_names([*tensors, *parameters.optional], mapped)
    reads = [_of_list(r) if r.name in parameters.lists else r for r in reads]
    if unread := [u for u in unread if u.name in tensors]:
        raise refusal(label, unread)
    if asks_policy:  # its numbers are computed here: others are those of before
        reads = [_of_before(r) for r in reads]
    if not (reads or batch or parameters.models):
        raise ValueError(
            f"{label} takes no tensors, expected parameters such as logp, ref_logp, mask or logits, or one "
            "batch"
        )
    return (*(read_model(n, owner) for n, owner in parameters.models.items()), *reads)


def _of_list(read: Read) -> Read:
    """Return log-probs of sequences, in a list of tensors, as those of the tokens of each."""
    role = read.role.replace("sequence_logp", "logp")
    said = read.said.replace(OWNED["sequence_logp"][0], OWNED["logp"][0])
    return read._replace(role=role, said=said)


def _of_before(read: Read) -> Read:
    """Return log-probs of which the name says no owner as the sampler's."""
    if read.role != "logp" or not read.by_default:
        return read
    said = f"{OWNED['logp'][0]} of {OWNERS['behavior']}"
    note = "read as the sampler's because a model is asked for the policy's"
    return Read(read.name, "behavior_logp", said, note)


def _head_size(settings: Chosen, defaults: Mapping[str, Any], heads: bool) -> int:
    """Return how many tokens a head has: as set, else by default of the loss, of its class or of its options.

    Args:
        settings: What the caller set.
        defaults: Of parameters and options.
        heads: Whether tensors of a head are read, or may be.

    Raises:
        ValueError: a size that was set, and that the worlds are too small for.
    """
    for name, value in [*settings.given.items(), *defaults.items()]:
        if not re.fullmatch(f"k|{SIZE}" if heads else SIZE, name.rpartition(".")[2]):
            continue
        fits = type(value) is int and 1 <= value <= MOST
        if name in settings.given and not fits:
            raise ValueError(f"{name} is {value}, expected 1 to {MOST} likeliest tokens of a small world")
        if name in settings.given and heads:
            settings.used.add(name)
        if fits:
            return int(value)
    return LIKELIEST
