"""Values that a loss receives for its names, and the refusal of a loss that fails on them."""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from kl_companion.auditing.reading.heads import HEADS, LIKELIEST, head_value
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.auditing.reading.names import Read, Unread, read_name
from kl_companion.auditing.reading.signatures import refusal
from kl_companion.checks import described
from kl_companion.rollout import Rollout, masked

PAD = 7  # id of padding, where the loss asks for one: beyond the vocabulary of every world
_NEVER = -40.0  # logit of an id that no model says
IGNORED = -100  # what labels hold where nothing is to be predicted
ALIGNED = Layout()
# in the name of a mask that is 1 on the prompt and on a tool's text too
ATTENDED = re.compile("att(entio)?n_", re.IGNORECASE)
OF_TOKENS = re.compile("token|select|sampl|action", re.IGNORECASE)  # names that say one number per token
BEFORE = re.compile("old|prev|prox|recompute", re.IGNORECASE)  # of the policy before the first update
_RATIOS = {"log_ratio": "ref", "log_importance_ratio": "behavior", "importance_ratio": "behavior"}
Others = Mapping[tuple[str, str], Rollout]  # by name and role: two inputs may have one name
NO_OTHERS: Others = MappingProxyType({})


class Unusable(ValueError):
    """A reader's loss that does not run, or returns no loss; the message says where and what was passed."""


class NotHere(Unusable):
    """A reader's loss calls what is not here: no other layout and no other input makes it run."""

    in_every_layout = True


class UndefinedName(NotHere):
    """A reader's loss reads names that nothing in its file defines; ``name`` is the first of them."""

    def __init__(self, label: str, function: Any, error: NameError) -> None:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        code = getattr(plain, "__code__", None)
        reads = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"} if code else set()
        there = {*getattr(plain, "__globals__", ()), *dir(builtins)}
        self.name: str = error.name or ""
        names = sorted({self.name, *(reads - there)})
        super().__init__(
            f"{label} reads {' and '.join(names)}, which its text does not define: expected a text with the "
            f"lines of {'it' if len(names) == 1 else 'them'}, or an import of what is installed here"
        )


@dataclass(eq=False)
class Given:
    """The values of one rollout under one layout, by role; new tensors, safe to change in place.

    ``others`` has the rollouts from which single inputs are given instead.
    """

    rollout: Rollout
    layout: Layout
    likeliest: int = LIKELIEST  # tokens of a head
    row: int | None = None  # of one answer alone
    others: Others = field(default_factory=dict)
    # the policy's numbers that score no token of an answer, behind the last one and of the prompt
    beyond: dict[str, torch.Tensor] = field(default_factory=dict)
    text: Any = None  # of the function that receives them
    pads: bool = False  # whether padding has an id of its own, `PAD`
    # values of all answers, where each is asked for alone
    _batch: dict[tuple[str, str], Any] = field(default_factory=dict)

    def of(self, role: str, name: str = "") -> Any:
        """Return the value of a role; ``name`` is the reader's, which may say more."""
        if self.row is None:
            apart = self.layout.cut or self.layout.packed
            return self._packed(self._listed(role, name)) if apart else self._value(role, name)
        if (role, name) not in self._batch:
            self._batch[role, name] = self._listed(role, name)
        x = self._batch[role, name]
        return x[self.row].clone() if isinstance(x, list) or (isinstance(x, torch.Tensor) and x.ndim) else x

    def _listed(self, role: str, name: str) -> Any:
        """Return a value with tensors of tokens as lists, each answer of its own length."""
        x, length = self._value(role, name), self.rollout.tokens.shape[1]
        if not isinstance(x, torch.Tensor) or x.ndim < 2 or role == "prompt_ids":
            return x
        if self.layout.packed == "rows":
            own = self.rollout.completion_mask.bool()
            return [each[-length:][row] for each, row in zip(x, own, strict=True)]
        ends = (self._extent().sum(-1).long() + x.shape[1] - length).tolist()
        return [each[:end] for each, end in zip(x, ends, strict=True)]

    def _packed(self, x: Any) -> Any:
        """Return lists of tensors as one row, where the layout has the tokens of all answers in one."""
        if not isinstance(x, list) or not self.layout.packed:
            return x
        row = torch.cat(x)
        return row.unsqueeze(0) if self.layout.packed == "row" else row

    def answer(self, row: int) -> Given:
        """Return the values of one answer, tensors of tokens of its own length."""
        return replace(self, row=row)

    def _value(self, role: str, name: str) -> Any:
        keys = () if self.layout.packed and role == "lengths" else ((name, role), (name, f"{role}_all"))
        for key in keys:  # log-probs that by their use are of all tokens
            if key in self.others:
                return Given(self.others[key], self.layout, self.likeliest)._value(role, name)
        r = self.rollout
        batch, length = r.tokens.shape
        prompt = self.layout.prompt if self.layout.shifted else 0
        values: dict[str, Callable[[], Any]] = {
            "batch_size": lambda: batch,
            "group_size": lambda: batch,
            "max_length": lambda: length,
            "num_tokens": r.completion_mask.sum,
            "rewards": lambda: self._rewards(name),
            "values": lambda: self._columns(torch.zeros(batch, length), None),
            "completion_mask": lambda: self._mask(name),
            "outside_mask": lambda: (self._mask(name) == 0).to(self.layout.mask),
            "sample_mask": lambda: torch.ones(batch, dtype=r.completion_mask.dtype),
            "prompt_length": lambda: torch.full((batch,), prompt) if name.endswith("s") else prompt,
            "lengths": self._lengths,
            "boundaries": lambda: torch.nn.functional.pad(self._lengths().cumsum(0), (1, 0)).int(),
            # where nothing is packed, no position is 0: what begins at 0 is the first token of an answer
            "positions": lambda: self._index(length).expand(batch, -1) + (not self.layout.packed),
            "segments": lambda: torch.arange(batch).unsqueeze(-1).expand(-1, len(self._index(length))),
            "states": lambda: self._index(length).to(r.logp.dtype).repeat(batch, 1),
            "rows": lambda: torch.arange(batch),
            "prompt_index": lambda: torch.zeros(batch, dtype=torch.long),
            "prompt_ids": lambda: torch.zeros(batch, self.layout.prompt, dtype=torch.long),
            **dict.fromkeys(("tokens", "input_ids", "labels"), lambda: self._ids(role)),
            **dict.fromkeys(HEADS, lambda: head_value(role, self._logits, self.likeliest)),
        }
        return values[role]() if role in values else self._owned(role, name)

    def _owned(self, role: str, name: str) -> Any:
        """Return what one of the models says, or two of them."""
        if role in _RATIOS:
            ratio = self._logp("") - self._logp(_RATIOS[role])
            return ratio.exp() if role == "importance_ratio" else ratio
        whose = next((owner for owner in ("ref", "behavior") if role.startswith(f"{owner}_")), "")
        quantity = role.removeprefix(f"{whose}_")
        if whose == "behavior" and self.layout.own_old and BEFORE.search(name):
            own = self._owned(quantity, name)
            return own.detach() if isinstance(own, torch.Tensor) else own
        if quantity == "outputs":
            return Outputs(self, whose)
        if quantity == "sequence_logp":
            return masked(self._scored(whose), self.rollout.completion_mask).sum(-1)
        if quantity == "logp" and (OF_TOKENS.search(name) or not self.layout.whole):
            return self._logp(whose).clone()
        scores = self._logits(whose)
        if quantity == "entropy":
            if not (self.layout.padded or self.layout.shifted):  # padding has no entropy of its own
                scores = scores.where(self.rollout.completion_mask.bool().unsqueeze(-1), 0.0)
            return -(scores.softmax(-1) * scores.log_softmax(-1)).sum(-1)
        if quantity in ("logp", "logp_all"):
            if not self.layout.padded and not self.layout.shifted:  # on padding the models agree
                scores = scores.where(self.rollout.completion_mask.bool().unsqueeze(-1), 0.0)
            return scores.log_softmax(-1)
        return scores.softmax(-1) if quantity == "probs" else scores

    def _logp(self, whose: str) -> torch.Tensor:
        found = self._scored(whose)
        return self._columns(
            found if self.layout.padded else masked(found, self.rollout.completion_mask), whose
        )

    def _scored(self, whose: str) -> torch.Tensor:
        r = self.rollout
        return {"": r.logp, "ref": r.ref_logp, "behavior": r.sampled_from}[whose]

    def _columns(self, x: torch.Tensor, whose: str | None) -> torch.Tensor:
        """Return [batch, seq] with the columns of the layout for the prompt.

        Two tokens of a prompt are scored by every model; values that are no model's are 0 there.
        """
        wide, prompt = self.layout.wide, self.layout.prompt
        if not wide:
            return x
        if prompt == 1 or whose is None:
            return torch.nn.functional.pad(x, (prompt, 0))
        beyond = self._beyond("logp", whose, torch.tensor([-1.5, -0.7], dtype=x.dtype).expand(len(x), 2))
        first, last = beyond.split(1, -1)
        return torch.cat({"own": [last, first, x], "short": [first, x], "ahead": [first, x, last]}[wide], 1)

    def _beyond(self, kind: str, whose: str | None, numbers: torch.Tensor) -> torch.Tensor:
        """Return numbers that score no token of an answer; the policy's are the same tensor for all."""
        if whose:  # another's: of two models that agree, a KL has no gradient that would show
            return numbers / (2 if kind == "logp" else -2)
        return self.beyond.setdefault(kind, numbers.clone().requires_grad_())

    def _logits(self, whose: str) -> torch.Tensor:
        r = self.rollout
        found = getattr(r, f"{whose}_logits" if whose else "logits")
        if found is None and whose == "behavior" and r.logits is not None:
            found = r.logits.detach()
        if found is None:
            raise Unusable("the loss reads logits, and this rollout holds log-probs of sampled tokens only")
        if self.pads:
            found = torch.nn.functional.pad(found, (0, PAD + 1 - found.shape[-1]), value=_NEVER)
        if not self.layout.shifted:
            return found.clone()
        numbers = torch.linspace(-1, 1, found.shape[-1], dtype=found.dtype)
        beyond = self._beyond("logits", whose, numbers.expand(len(found), self.layout.prompt, -1))
        return torch.cat([beyond[:, 1:], found, beyond[:, :1]], 1)

    def _extent(self) -> torch.Tensor:
        """Return 1 on every token up to the last of the answer, on a tool's text too, [batch, seq]."""
        mask = self.rollout.completion_mask
        return (mask.flip(-1).cumsum(-1).flip(-1) > 0).to(mask.dtype)

    def _lengths(self) -> torch.Tensor:
        """Return the number of tokens of every answer, with those of its prompt where they are packed."""
        with_prompt = self.layout.prompt if self.layout.packed and self.layout.shifted else 0
        return self._extent().sum(-1).long() + with_prompt

    def _index(self, length: int) -> torch.Tensor:
        """Return the positions of the longest answer, with those of the prompt where ids have them."""
        return torch.arange(length + (self.layout.prompt if self.layout.shifted else 0))

    def _mask(self, name: str) -> torch.Tensor:
        attended = bool(ATTENDED.search(name))
        mask = self._extent() if attended else self.rollout.completion_mask
        if self.layout.shifted and not self.layout.apart:
            mask = torch.nn.functional.pad(mask, (self.layout.prompt, 0), value=float(attended))
        return mask.to(self.layout.mask, copy=True)

    def _ids(self, role: str) -> torch.Tensor:
        r, layout = self.rollout, self.layout
        ids = r.tokens.clone()
        ignored = IGNORED if role == "labels" and layout.ignored else 0
        if ignored:
            ids = ids.masked_fill(~r.completion_mask.bool(), IGNORED)
        elif self.pads:
            ids = ids.masked_fill(self._extent() == 0, PAD)
        if not layout.shifted or (role == "tokens" and layout.prompt == 1):
            return ids
        return torch.nn.functional.pad(ids, (layout.prompt, 0), value=ignored)

    def _rewards(self, name: str) -> torch.Tensor:
        r = self.rollout
        if r.rewards is None:
            raise Unusable(f"the loss reads {name or 'rewards'}, and this rollout holds none")
        if re.search(r"token_?level", name.lower()):  # an outcome stands at the last token
            last = r.completion_mask.cumsum(-1) == r.completion_mask.sum(-1, keepdim=True)
            each = r.rewards.unsqueeze(-1) * (last & r.completion_mask.bool())
        elif self.layout.per_token:
            each = r.rewards.unsqueeze(-1) * r.completion_mask
        else:
            return r.rewards.clone()
        return self._columns(each, None)


class Outputs:
    """What a model returns: its ``.logits``, and what is read of it by name; as a tensor, its logits."""

    def __init__(self, given: Given, whose: str) -> None:
        self._given, self._whose = given, whose

    def __getitem__(self, name: Any) -> Any:
        if not isinstance(name, str | int):
            return self.logits[name]
        if name == 0:
            return self.logits
        found = read_name(str(name))
        if isinstance(found, Unread):
            raise refusal("the model's output", [found])
        owned = found.role not in ("entropy", "completion_mask") and self._whose
        return self._given.of(f"{self._whose}_{found.role}" if owned else found.role, str(name))

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.Tensor, name) and name != "values":
            return getattr(self.logits, name)
        if name.startswith("_") or isinstance(read_name(name), Unread):
            raise AttributeError(name)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name; the default where the name is not read."""
        return default if isinstance(read_name(name), Unread) else self[name]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute with the logits: a model may return nothing else."""
        tensors = [x.logits if isinstance(x, Outputs) else x for x in args]
        return func(*tensors, **(kwargs or {}))

    def __sub__(self, other: Any) -> Any:
        return self.logits - other

    def __truediv__(self, other: Any) -> Any:
        return self.logits / other

    def __mul__(self, other: Any) -> Any:
        return self.logits * other


def anchors_apart(reads: Iterable[Read]) -> tuple[str, str] | None:
    """Return names of the policy before the first update and of another sampler; None without both."""
    names = [r.name for r in reads if r.role.startswith("behavior_")]
    old = [n for n in names if BEFORE.search(n)]
    others = [n for n in names if n not in old]
    return (" and ".join(old), " and ".join(others)) if old and others else None


def shape_words(x: Any) -> str:
    """A value as a message says it: ``[36, 2] float64``."""
    if isinstance(x, torch.Tensor):
        return f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}"
    return described(x)


def failed(
    label: str, function: Callable[..., Any], error: BaseException, passed: Mapping[str, Any]
) -> Unusable:
    """The refusal of a loss that raised: its own line, and what was passed to it."""
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        return UndefinedName(label, function, error)
    home = getattr(inspect.unwrap(function), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if home is not None and f.filename == home.co_filename]
    said = f"{label} raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if isinstance(error, SystemExit):
        said = f"{label} called sys.exit({error.code!r})"
    if theirs:
        line = (theirs[-1].line or "").strip()
        said += f"\n  at {theirs[-1].filename}:{theirs[-1].lineno}: {line}"
        if re.search(r"\b(np|numpy)\.\w+\(", line):
            return Unusable(
                f"{said}\n  NumPy computes no gradients: expected the same in torch, which the audit runs"
            )
    if isinstance(module := getattr(error, "obj", None), ModuleType):
        version = getattr(sys.modules[module.__name__.partition(".")[0]], "__version__", "installed")
        return NotHere(f"{said}\n  expected a text that calls what {module.__name__} ({version}) has here")
    given = ", ".join(f"{n} {shape_words(v)}" for n, v in passed.items())
    return Unusable(
        f"{said}\n  passed: {given}\n  expected a loss that runs on these; --map NAME=ROLE gives a "
        "parameter another meaning, --set NAME=VALUE another value"
    )
