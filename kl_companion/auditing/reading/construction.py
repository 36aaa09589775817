"""Make something that can be called out of a function, a method, a class or a module, from its defaults."""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, is_dataclass
from enum import Enum
from importlib.resources import files
from types import MethodType
from typing import Any

from kl_companion.auditing.reading.arguments import Given, Unusable
from kl_companion.auditing.reading.batches import HelperFunction, Model, read_model
from kl_companion.auditing.reading.heads import LIKELIEST, MOST, SIZE
from kl_companion.auditing.reading.helpers import usual_imports
from kl_companion.auditing.reading.names import Read, owner_of_model
from kl_companion.auditing.reading.stand_ins import Absent, Bystander, MissingOption
from kl_companion.auditing.reading.text import FunctionText
from kl_companion.checks import unknown_name

OPTIONS = r"(.*_)?(config|cfg|args|options|opts|hparams)"  # names of records of options
NAMES = tomllib.loads((files(__package__) / "calls.toml").read_text("utf-8"))
PADDING = "id of padding, which no answer contains"
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Chosen:
    """What the reader sets, ``{"beta": 0.1, "config.kl_type": "k1"}``, and which of it was used."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = dict(given)
        self.known: set[str] = set()
        self.text = ""  # of the loss
        self.late = False  # whether options are read while the loss runs
        self.used: set[str] = set()
        self.assumed: dict[str, tuple[Any, str]] = {}
        self.defaults: dict[str, Any] = {}  # of a constructor and of its configuration, where nothing is set
        self.values: Given | None = None  # of the call that runs
        self.models: dict[str, Model] = {}  # that an object of the reader's holds, in the call that runs
        self.helpers: set[str] = set()  # functions that are called and are not in the text
        self.keys: dict[str, Read] = {}  # how names were read that the loss asks for while it runs

    def of(self, name: str) -> Any:
        """The value of a parameter; ``MISSING`` where none was set."""
        self.known.add(name)
        if name in self.given:
            self.used.add(name)
            return self.given[name]
        inner = [path for path in self.given if path.startswith(f"{name}.")]
        self.used.update(inner)
        return Options(name, self) if inner else MISSING

    def assume(self, name: str) -> Any:
        """The usual number for a parameter of that name, noted; ``MISSING`` where there is none."""
        if re.fullmatch(OPTIONS, name.rpartition(".")[2].lower()):
            return Options(name, self)
        usual = _usual(name)
        if usual is None:
            return MISSING
        if usual[1] == "clip range" and _only_added(name.rpartition(".")[2], self.text):
            usual = 1e-8, "a small number"
        self.assumed[name] = usual
        return usual[0]

    def model(self, name: str) -> Model | None:
        """The model that an object of the reader's holds under a name; None where that names no model."""
        owner = owner_of_model(name)
        if not owner or name in self.given:
            return None
        if name not in self.models:
            self.models[name] = Model(read_model(name, owner), self.running, self.keys)
        return self.models[name]

    def running(self) -> Given:
        """The values of the call that runs; `Unusable` outside one."""
        if self.values is None:
            raise Unusable("a model is called while its trainer is made, expected that only of the loss")
        return self.values

    @property
    def reads_padding(self) -> bool:
        """Whether an id of padding was assumed, which no answer contains."""
        return any(what == PADDING for _, what in self.assumed.values())

    def finish(self, label: str) -> None:
        """Raise ValueError for a setting that nothing took."""
        for name in self.given:
            if name not in self.used:
                raise unknown_name(f"setting of {label}:", name, self.known or {"(none)"})


class Options:
    """A record of options of which some are set; one that is not is assumed, or asked for by its name."""

    def __init__(self, name: str, settings: Chosen) -> None:
        self._name, self._settings = name, settings
        for path in settings.given:
            if path.startswith(f"{name}."):
                key = path.removeprefix(f"{name}.").partition(".")[0]
                setattr(self, key, settings.of(f"{name}.{key}"))

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        if key == "copy":
            return lambda: self
        path = f"{self._name}.{key}" if self._name else key
        value = self._settings.of(path) if not self._name else MISSING
        value = self._settings.assume(path) if value is MISSING else value
        if value is MISSING:
            raise MissingOption(path)
        return value

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def get(self, key: str, default: Any = None) -> Any:
        """The value of an option; the default where it is not set."""
        return vars(self).get(key, default)


def is_of_training(name: str) -> bool:
    """Whether a name is of a logger, a callback or the like, which takes what it is given."""
    return re.fullmatch(NAMES["of_training"], name) is not None


class Surroundings:
    """Attributes of a trainer, or names of a file, that a loss reads and its text does not define.

    Args:
        settings: What the reader sets.
        text: Of the loss.
        prefix: In front of the names, ``"self."`` or nothing.
    """

    def __init__(self, settings: Chosen, text: str, prefix: str = "") -> None:
        self._settings, self._prefix, self._options = settings, prefix, Options("", settings)
        name = rf"(?<![\w.]){re.escape(prefix)}(\w+)"
        self._called, self._records = (set(re.findall(f"{name}{after}", text)) for after in (r"\(", r"\.\w"))

    def value(self, name: str) -> Any:
        """A model, an option or a record of them, a logger, or a function that is not in the text.

        Raises:
            MissingOption: nothing says its value.
        """
        settings = self._settings
        if name in (imports := usual_imports()):
            return imports[name]
        if is_of_training(name) and name not in settings.given:
            return Bystander(name, settings.assume)
        if (model := settings.model(name)) is not None:
            return model
        if name not in settings.given:
            if name in self._called:
                return HelperFunction(f"{self._prefix}{name}", settings)
            if name in self._records:
                return Options(name, settings)
        return getattr(self._options, name)


def _only_added(name: str, text: str) -> bool:
    """Whether a number is added in a text, and never to or from 1 as the width of a clip is."""
    terms = re.findall(rf"(\S+) *[-+] *(?:\w+\.)*{name}\b", text)
    return bool(terms) and not any(re.search(r"(?<![\w.])1(?:\.0*)?$", term) for term in terms)


def _usual(name: str) -> tuple[Any, str] | None:
    """Return the usual number for a parameter, and what it is; None where its name does not say it."""
    name = name.removesuffix(".value").rpartition(".")[2].lower()
    if re.fullmatch(f"k|{SIZE}", name):
        return LIKELIEST, "likeliest tokens"
    found = (x for x in NAMES["usual"] if re.fullmatch(x["name"], name))
    return next(((x["value"], x["what"]) for x in found), None)


def kl_coefficient(parameters: Iterable[inspect.Parameter], settings: Chosen) -> tuple[str, float | None]:
    """Return name and value of the one number that is called like a KL coefficient; ("", None) without one.

    Args:
        parameters: Of what `callable_of` returned for these settings.
        settings: What the reader set, after `callable_of` has read it.
    """
    numbers = dict(settings.defaults)
    numbers |= {p.name: 1.0 if p.default is p.empty else p.default for p in parameters}
    numbers |= {n: value for n, (value, _) in settings.assumed.items()}
    for name, value in settings.given.items():  # a field is set by its name or by its path
        numbers[next((n for n in numbers if n.endswith(f".{name}")), name)] = value
    numbers = {n: v for n, v in numbers.items() if (_usual(n) or "")[1:] == ("KL coefficient",)}
    if len(numbers) != 1:
        return "", None
    ((name, value),) = numbers.items()
    return name, float(value) if isinstance(value, int | float) else None


def too_many(name: str, default: Any) -> bool:
    """Whether a default is a number of likeliest tokens of a real vocabulary."""
    return type(default) is int and default > MOST and re.fullmatch(SIZE, name) is not None


def callable_of(loss: Any, settings: Chosen) -> Callable[..., Any]:
    """Something that takes tensors: a class is constructed from its defaults, and so is a method's.

    A trainer that cannot be constructed is not initialized: what its method reads of ``self`` is an option.

    Raises:
        Unusable: a class that needs what has no default.
    """
    if isinstance(loss, type):
        made = _construct(loss, settings)
        if not callable(made):
            raise Unusable(f"{loss.__name__} has no forward and no __call__, expected one, or a method of it")
        return made
    owner = _owner_of(loss)
    if owner is None and not _wants_self(loss):
        return loss
    text = FunctionText(loss).source
    if owner is None:  # a method without its class
        return MethodType(loss, _uninitialized(object, settings, text))
    instance = None
    if any("__init__" in vars(cls) for cls in owner.__mro__[:-1]):  # else others set what it reads of self
        with suppress(Exception, SystemExit):  # it loads a model, or wants what only a run of training has
            instance = _construct(owner, settings)
    instance = _uninitialized(owner, settings, text) if instance is None else instance
    return getattr(instance, loss.__name__)


def _uninitialized(cls: type, settings: Chosen, text: str) -> Any:
    """An instance that was never initialized, whose missing attributes are models and options."""
    surroundings = Surroundings(settings, text, "self.")
    settings.late = True
    bare: Any = type(cls.__name__, (cls,), {"__getattr__": lambda self, key: surroundings.value(key)})
    bare.__abstractmethods__ = frozenset()
    return object.__new__(bare)


def _wants_self(function: Any) -> bool:
    return inspect.isfunction(function) and [*inspect.signature(function).parameters][:1] == ["self"]


def _owner_of(function: Any) -> type | None:
    """The class of a method that was taken from the class itself, and so wants a ``self``."""
    if not _wants_self(function) or "." not in function.__qualname__:
        return None
    found: Any = sys.modules.get(function.__module__)
    for part in function.__qualname__.split(".")[:-1]:
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise Unusable(
            f"{function.__qualname__} wants a self, and its class is not at the top of its file: pass the "
            "method of an instance"
        )
    return found


def _construct(cls: type, settings: Chosen, path: str = "") -> Any:
    """An instance from the defaults and what was set, likewise of a dataclass of options that it takes.

    Args:
        cls: A class, or a dataclass of options.
        settings: Values by name, of options by path or by name.
        path: Of options, in front of their names: ``"config."``.
    """
    if inspect.isabstract(cls):
        raise Unusable(f"{cls.__name__} is abstract, expected a class that defines its methods")
    hints = _hints(vars(cls).get("__init__", cls))
    arguments: dict[str, Any] = {}
    for name, p in inspect.signature(cls).parameters.items():
        if p.kind in _VARIADIC:
            continue
        hint, full = hints.get(name), f"{path}{name}"
        value: Any = MISSING
        if isinstance(hint, type) and is_dataclass(hint) and not path and name not in settings.given:
            value = _construct(hint, settings, f"{name}.")
        for key in (full, name):
            value = settings.of(key) if value is MISSING else value
        if value is MISSING and (p.default is p.empty or too_many(name, p.default)):
            value = settings.assume(name)
        if value is MISSING and p.default in (p.empty, None):
            value = settings.model(name) or value
        if value is MISSING and p.default is p.empty:
            value = Absent(full, "option")
        if value is not MISSING:
            arguments[name] = _member(value, hint)
        elif repr(p.default) != "<factory>":  # of a dataclass
            settings.defaults[full] = p.default
    try:
        return cls(**arguments)
    except (Exception, SystemExit) as error:
        unset = [f"{path}{n}" for n, v in arguments.items() if isinstance(v, Absent)]
        lacks = "".join(
            f": {n} has no default, expected --set {n}=VALUE, or --set {n}.FIELD=VALUE for each field "
            "that is read of it (options= in Python)"
            for n in unset[:1]
        )
        raise Unusable(f"{cls.__name__} cannot be constructed ({error}){lacks}") from error


def _hints(of: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(of)
    except Exception:  # names that exist for a type checker only
        return {}


def _member(value: Any, hint: Any) -> Any:
    """The member of an enumeration that a text names, where one is expected; else the value."""
    if not (isinstance(hint, type) and issubclass(hint, Enum)) or isinstance(value, hint):
        return value
    members = [m for m in hint if value == m.value or str(value).lower() == m.name.lower()]
    if not members:
        raise unknown_name(f"member of {hint.__name__}:", str(value), [m.name for m in hint])
    return members[0]
