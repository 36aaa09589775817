"""A batch that answers to the names that trainers use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch

from kl_companion.auditing.reading.arguments import Given, Unusable
from kl_companion.auditing.reading.heads import HEADS
from kl_companion.auditing.reading.names import OWNED, RESULTS, Read, Unread, read_name, result_of
from kl_companion.auditing.reading.roles import OWNERS, PREFIX
from kl_companion.auditing.reading.signatures import read_names, refusal
from kl_companion.rollout import Rollout

_EVERYTHING = ("batch", "rollout")


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
        """Return the outputs, whatever it is called with; a distribution where the text asks one for more."""
        text = self._values().text
        distribution = text.has(RESULTS["used"]) and not text.has(r"Categorical\(")
        return self.converted(self._of("distribution" if distribution else "outputs"))

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
        names, order = text.unpacked(method), RESULTS["order"].get(method, ())
        quantities = [result_of(name) for name in names] or [*order] or [result_of(method)]
        if not all(quantities):
            unknown = [n for n, q in zip(names or [method], quantities, strict=True) if not q]
            raise AttributeError(
                f"{method}, whose result {' and '.join(unknown)} is not known by its name: assign it to "
                f"names such as {', '.join(RESULTS['words'])}"
            )
        several = bool(names or order)
        return lambda *_, **__: (
            tuple(self.converted(self._of(q)) for q in quantities)
            if several
            else self.converted(self._of(quantities[0]))
        )

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

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Return what is the reference's inside, as a model does whose adapter is off."""
        self._base = True
        try:
            yield
        finally:
            self._base = False


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
        """Return the package's own names of what a batch holds."""
        return [f.name for f in fields(Rollout) if getattr(self, f.name) is not None]

    def to(self, *_: Any, **__: Any) -> UserBatch:
        """Return the batch: it is where it has to be."""
        return self
