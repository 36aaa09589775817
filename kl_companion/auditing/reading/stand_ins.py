"""Objects that stand for what is not here: names of a module that is not installed, a trainer's loggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING
from types import ModuleType
from typing import Any

import torch

from kl_companion.auditing.reading.arguments import NotHere, Unusable


class MissingOption(NotHere, AttributeError):
    """An option that a loss reads and that has no value; ``path`` is its name.

    It is an AttributeError too, so that the default of ``getattr(config, "clip", 0.2)`` holds.
    """

    def __init__(self, path: str, why: str = "has no value here") -> None:
        super().__init__(
            f"the loss reads {path}, which {why}: write --set {path}=VALUE "
            f'(options={{"{path}": VALUE}} in Python)'
        )
        self.path = path


class Absent:
    """A name that exists while a file is imported and a loss runs, and of which nothing can be computed.

    As a decorator it returns the function, as a base class it is `object`, as an annotation it is itself.

    Args:
        name: Of the object, ``"verl.utils.masked_mean"``.
        kind: ``"module"``; ``"option"``, which can be set; or ``"logger"``, which takes tensors.
    """

    def __init__(self, name: str, kind: str = "module") -> None:
        self._absent, self._kind = name, kind
        self.__name__ = name.rpartition(".")[2]

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__") or key == "_fields":
            raise AttributeError(key)
        return Absent(f"{self._absent}.{key}", self._kind)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A function that is decorated, else another absent object."""
        if self._kind == "module" and any(map(_is_tensor, (*args, *kwargs.values()))):
            raise self._refused()
        one = args[0] if len(args) == 1 and not kwargs else None
        decorated = callable(one) and not isinstance(one, Absent)
        return one if decorated else Absent(f"{self._absent}()", self._kind)

    def __mro_entries__(self, _: tuple[Any, ...]) -> tuple[type, ...]:
        """No base class: what is derived from it is a class of its own."""
        return ()

    def __bool__(self) -> bool:
        return False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Refuse: a number is asked of what is not here."""
        found = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, Absent)]
        raise found[0]._refused() if found else Unusable("the loss computes with what is not here")

    def _refused(self) -> Unusable:
        name = self._absent
        if self._kind == "option":
            return MissingOption(name)
        return Unusable(
            f"the loss computes with {name}, which is not installed here: install {name.partition('.')[0]}, "
            f"or write the few lines of {name.rpartition('.')[2].removesuffix('()')} into the file"
        )


class Bystander(Absent):
    """An object of training, such as a tokenizer, that takes no part in a loss but for its usual numbers.

    Args:
        name: ``"tokenizer"``.
        number: Returns the usual value of ``"tokenizer.pad_token_id"``, and `dataclasses.MISSING` where there
            is none.
    """

    def __init__(self, name: str, number: Callable[[str], Any]) -> None:
        super().__init__(name, "logger")
        self._number = number

    def __getattr__(self, key: str) -> Any:
        value = MISSING if key.startswith("_") else self._number(f"{self._absent}.{key}")
        return super().__getattr__(key) if value is MISSING else value


def _is_tensor(x: Any) -> bool:
    return isinstance(x[0] if isinstance(x, list) and x else x, torch.Tensor)


def _itself(self: Absent, *_: Any) -> Any:
    return self


def _nothing(self: Absent, *_: Any) -> None:
    """Nothing is kept, and exceptions pass."""


def _refuse(self: Absent, *_: Any) -> Any:
    raise self._refused()


_OPERATORS = {
    _itself: "getitem enter or ror",
    _nothing: "setitem exit",
    _refuse: "iter add radd sub rsub mul rmul truediv rtruediv pow rpow neg float int lt gt le ge",
}
for _operator, _names in _OPERATORS.items():
    for _name in _names.split():
        setattr(Absent, f"__{_name}__", _operator)


class AbsentModule(ModuleType):
    """A module that is not installed.

    Args:
        name: Its name.
        members: What stands in for its functions, and every other name is refused; None makes each `Absent`.
    """

    def __init__(self, name: str, members: Mapping[str, Any] | None = None) -> None:
        super().__init__(name)
        self._stands_in = members is not None
        vars(self).update(members or {}, __path__=[])

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        if not self._stands_in:
            return Absent(f"{self.__name__}.{key}")
        package = self.__name__.partition(".")[0]
        raise Unusable(
            f"{self.__name__}.{key} is not among the functions that stand in for {package} here. In a copy "
            f"of the file write\n    import torch\n    torch.{key}(...) or its like, for {package}'s {key}\n"
            "    x.detach() for stop_gradient(x), x.to(dtype) for x.astype(dtype)"
        )
