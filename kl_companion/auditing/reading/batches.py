"""A batch that answers to the names that trainers use."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch

from kl_companion.auditing.reading.arguments import Given, NotHere, Unusable
from kl_companion.auditing.reading.heads import HEADS
from kl_companion.auditing.reading.names import OWNED, RESULTS, Read, Unread, read_name, result_of
from kl_companion.auditing.reading.roles import HELPER, OWNERS, PREFIX
from kl_companion.auditing.reading.signatures import read_names, refusal
from kl_companion.auditing.reading.stand_ins import Absent
from kl_companion.auditing.reading.text import assigned_names
from kl_companion.rollout import Rollout

_EVERYTHING = ("batch", "rollout")
_OWN_ADAPTERS = re.compile("default|policy|actor|student|train.*|model|current")


class Model:
    """A model, a policy or an agent that is called; without its adapter it is the reference.

    Args:
        reading: How its name was read: of a parameter, or of an attribute of a trainer.
        values: Returns those of the call that runs.
        keys: Gets the reading once it is called; None of a parameter, which is read before.
    """

    converted: Callable[[Any], Any] = staticmethod(lambda x: x)  # into arrays of another library
    device = torch.device("cpu")

    def __init__(
        self, reading: Read, values: Callable[[], Given], keys: dict[str, Read] | None = None
    ) -> None:
        self._reading, self._values, self._keys, self._base = reading, values, keys, False
        self.training = True

    def _of(self, quantity: str) -> Any:
        """Return what the model says in the call that runs."""
        given, read = self._values(), self._reading
        if self._keys is not None:
            self._keys[read.name] = read
        if (moved := given.others.get((read.name, read.role))) is not None and not self._base:
            given = replace(given, rollout=moved, others={})
        owner = "ref_" if self._base else read.role.removesuffix("outputs")
        if quantity not in ("logits", "distribution"):
            return given.of(f"{owner}{quantity}" if quantity in OWNED else quantity, "token_level")
        logits, layout = given.of(f"{owner}logits"), given.layout
        if not (layout.padded or layout.shifted or layout.cut or layout.packed):  # on padding models agree
            logits = logits.where(given.rollout.completion_mask.bool().unsqueeze(-1), 0.0)
        if quantity == "logits":
            return logits
        return torch.distributions.Categorical(logits=logits, validate_args=False)

    def __call__(self, *_: Any, **__: Any) -> Any:
        """Return the outputs, whatever it is called with; what the text reads of them where it says more."""
        text = self._values().text
        names = assigned_names(sys._getframe(1), self._reading.name)
        asked = RESULTS["called"].get(result_of(names[0]), "") if len(names) == 1 else ""
        distribution = text.has(RESULTS["used"]) and not text.has(r"Categorical\(")
        return self.converted(self._of("distribution" if distribution else asked or "outputs"))

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Return a method that returns what its name says, or the names to which its results are assigned.

        Raises:
            AttributeError: neither says it.
        """
        try:
            text = None if method.startswith("_") else self._values().text
        except Unusable:  # a trainer is constructed
            text = None
        if text is None:
            raise AttributeError(method)
        return lambda *_, **__: self.results(method, assigned_names(sys._getframe(1), method))

    def results(self, method: str, names: list[str]) -> Any:
        """Return what the names say to which the results of a method are assigned, or its own name.

        Raises:
            AttributeError: neither says it.
        """
        order = RESULTS["order"].get(method, ()) if len(names) < 2 else ()
        several = names if len(names) > 1 else []
        quantities = [*order] or [result_of(name) for name in several or [method]]
        if not all(quantities):
            quantities = [result_of(name) for name in names]
        if not (quantities and all(quantities)):
            unknown = [n for n in names or [method] if not result_of(n)]
            raise AttributeError(
                f"{method}, whose result {' and '.join(unknown)} is not known by its name: assign it to "
                f"names such as {', '.join(RESULTS['words'])}"
            )
        values = tuple(self.converted(self._of(quantity)) for quantity in quantities)
        return values if several or order else values[0]

    @property
    def owner(self) -> str:
        """The owner of its numbers, a key of `OWNERS`; the reference inside another adapter."""
        own = next(o for o in OWNERS if self._reading.role == f"{PREFIX[o]}outputs")
        return "reference" if self._base else own

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Yield one number, for an optimizer or a device that is asked for."""
        yield torch.nn.Parameter(torch.zeros(()))

    def __deepcopy__(self, _: Any) -> Model:
        """Return the reference: that is what a trainer copies its policy for."""
        return Model(read_model(f"ref_{self._reading.name}", "reference"), self._values, self._keys)

    def eval(self, *_: Any, **__: Any) -> Model:
        """Return the model: it has no dropout, is on its device and needs no wrapper."""
        return self

    train = to = requires_grad_ = unwrap_model = eval
    module = property(eval)

    def set_adapter(self, name: Any) -> None:
        """Be the reference from now on under the name of an adapter that is not the policy's."""
        self._base = _OWN_ADAPTERS.fullmatch(str(name)) is None

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Return what is the reference's inside, as a model does whose adapter is off."""
        self._base = True
        try:
            yield
        finally:
            self._base = False


class HelperFunction:
    """A function that is not in the text: it returns what the names of its results say, of some model.

    Args:
        name: As it is called, ``"self._get_per_token_logps"``.
        settings: Of the loss, `kl_companion.auditing.reading.construction.Chosen`.
    """

    def __init__(self, name: str, settings: Any) -> None:
        self.__name__, self._settings = name, settings

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return log-probs, logits, an entropy or a distribution.

        Raises:
            NotHere: no name says what it returns, or it is given no model, ids or logits of the policy.
        """
        method = self.__name__.rpartition(".")[2]
        names = assigned_names(sys._getframe(1), method)
        self._settings.helpers.add(self.__name__)
        if [result_of(name) for name in names] == ["rewards"]:
            return self._settings.running().of("rewards", names[0])
        owner = _owner_of_results(names, [*args, *kwargs.values()])
        if owner:
            words = f"{HELPER}, whose results are read as {OWNERS[owner]}'s"
            title = self.__name__ if owner == "policy" else f"{self.__name__} ({owner})"
            running, keys = self._settings.running, self._settings.keys
            own = Model(Read(title, f"{PREFIX[owner]}outputs", words), running, keys)
            model = next((x for x in args if isinstance(x, Model) and x.owner == owner), own)
            try:
                return model.results(method, names)
            except AttributeError:  # it returns something else
                pass
        raise NotHere(f"the loss calls {self.__name__}, expected a text with its lines too")


def _owner_of_results(names: Iterable[str], values: Iterable[Any]) -> str:
    """Return whose numbers a function returns; "" of one that is given neither a model nor ids nor logits."""
    read = next((r for n in names if isinstance(r := read_name(n), Read)), None)
    by_name = next((o for o in OWNERS if read and PREFIX[o] and read.role.startswith(PREFIX[o])), "")
    models = [x.owner for x in values if isinstance(x, Model)]
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    logits = [x for x in tensors if x.ndim > 2]
    if models or by_name:
        return by_name or models[0]
    unknown = any(not x.requires_grad for x in logits) and torch.is_grad_enabled()
    ids = [x for x in tensors if not x.is_floating_point()]
    asked = logits or ids or any(isinstance(x, UserBatch | Absent) for x in values)
    return "policy" if asked and not unknown else ""


def read_model(name: str, owner: str) -> Read:
    """Return how the name of a model is read."""
    return Read(name, f"{PREFIX[owner]}outputs", f"a model that returns the outputs of {OWNERS[owner]}")


class UserBatch(Rollout):
    """A batch that answers to the names of trainers: ``batch["old_log_probs"]``, ``batch.response_mask``.

    It is a `Rollout` too, and notes how each name was read.
    """

    converted = staticmethod(lambda x: x)  # into arrays of another library
    _beside: frozenset[str] = frozenset()  # roles of the parameters
    _given: Given
    _mapped: Mapping[str, str]
    _read: dict[str, Read]

    @classmethod
    def around(cls, given: Given, mapped: Mapping[str, str], read: dict[str, Read]) -> UserBatch:
        """Make the batch of these values; names that are asked for are added to ``read``."""
        batch = object.__new__(cls)
        vars(batch).update(vars(given.rollout), _given=given, _mapped=mapped, _read=read)
        return batch

    def _found(self, name: str) -> Read | Unread:
        if name in self._mapped:
            return Read(name, self._mapped[name], "", "as mapped")
        known = self._read.get(name)
        if known is not None and known.role not in HEADS:
            return known
        if name == "prompt_mask" and "prompt_ids" in self._read:
            return Read(name, "prompt_mask", "mask of the prompt: 1 on each of its tokens")
        found = read_name(name)
        asked = isinstance(found, Read) and found.role == "logp" and found.by_default
        if isinstance(found, Read) and (
            found.role in self._beside & OWNED.keys() or (asked and "outputs" in self._beside)
        ):
            note = "read as the sampler's because a parameter is the current policy's"
            said = f"{OWNED[found.role][0]} of {OWNERS['behavior']}"
            return Read(name, f"{PREFIX['behavior']}{found.role}", said, note)
        roles = found.suggestions if isinstance(found, Unread) else (found.role,)
        return self._of_a_head(found, roles[0]) if roles and roles[0] in HEADS else found

    def _of_a_head(self, found: Read | Unread, role: str) -> Read:
        """Read a name beside those that were asked for before; until they decide, as it may be."""
        others = [n for n in self._read if n != found.name and n not in self._mapped]
        mapped = {n: r for n, r in self._mapped.items() if n in self._read}
        reads, _ = read_names([*others, *mapped, found.name], mapped)
        return next((r for r in reads if r.name == found.name), Read(found.name, role, HEADS[role].said))

    def __getitem__(self, name: Any) -> Any:
        if isinstance(name, slice | tuple):  # batch["inputs"] is a tensor of ids to some
            return self["input_ids"][name]
        if not isinstance(name, str):
            raise TypeError(f"the batch was indexed by {name!r}; the audit gives a batch of names")
        found = self._found(name)
        if isinstance(found, Unread):
            raise refusal("the batch", [found])
        if found.role in _EVERYTHING:
            return self
        if found.role == "prompt_mask":
            return self.converted(torch.ones(len(self.tokens), 1, dtype=torch.long))
        self._read[name] = found
        return self.converted(self._given.of(found.role, name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in ("meta_info", "non_tensor_batch", "tensors", "td"):
            return self
        if name in ("shape", "size", "device"):
            return getattr(self["input_ids"], name)
        return self[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and isinstance(self._found(name), Read)

    def __iter__(self) -> Iterator[UserBatch]:
        """Yield every answer as a batch of tensors of its own length."""
        for row in range(len(self.tokens)):
            one = UserBatch.around(self._given.answer(row), self._mapped, self._read)
            vars(one).update(converted=self.converted, _beside=self._beside)
            yield one

    def __len__(self) -> int:
        return len(self.tokens)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name; the default where the name is not read."""
        return self[name] if isinstance(self._found(name), Read) else default

    def keys(self) -> list[str]:
        """Return the names that the text asks a batch for; the package's own where it asks for none."""
        if asked := [name for name in getattr(self._given.text, "asked", ()) if name in self]:
            return asked
        return [f.name for f in fields(Rollout) if getattr(self, f.name) is not None]

    def items(self) -> list[tuple[str, Any]]:
        """Return names and values, see `keys`."""
        return [(name, self[name]) for name in self.keys()]

    def to(self, *_: Any, **__: Any) -> UserBatch:
        """Return the batch: it is where it has to be."""
        return self
