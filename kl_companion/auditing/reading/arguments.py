"""Values that a loss is given for its names, and the place of the loss in what it returns."""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from kl_companion.auditing.reading.heads import HEADS, LIKELIEST, head_value
from kl_companion.auditing.reading.layouts import Layout
from kl_companion.auditing.reading.names import Read, Unread, read_name
from kl_companion.auditing.reading.signatures import refusal
from kl_companion.checks import described
from kl_companion.rollout import Rollout, masked

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


class UndefinedName(Unusable):
    """A reader's loss reads names that nothing in its file defines; no other input mends that."""

    def __init__(self, label: str, function: Any, error: NameError) -> None:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        code = getattr(plain, "__code__", None)
        reads = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"} if code else set()
        there = {*getattr(plain, "__globals__", ()), *dir(builtins)}
        names = sorted({error.name, *(reads - there)})
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
    # values of all answers, where each is asked for alone
    _batch: dict[tuple[str, str], Any] = field(default_factory=dict)

    def of(self, role: str, name: str = "") -> Any:
        """Return the value of a role; ``name`` is the reader's, which may say more."""
        if self.row is None:
            return self._listed(role, name) if self.layout.cut else self._value(role, name)
        if (role, name) not in self._batch:
            self._batch[role, name] = self._listed(role, name)
        x = self._batch[role, name]
        return x[self.row].clone() if isinstance(x, list) or (isinstance(x, torch.Tensor) and x.ndim) else x

    def _listed(self, role: str, name: str) -> Any:
        """Return a value with tensors of tokens as lists, each answer of its own length."""
        x, length = self._value(role, name), self.rollout.tokens.shape[1]
        if not isinstance(x, torch.Tensor) or x.ndim < 2 or role == "prompt_ids":
            return x
        ends = (self._extent().sum(-1).long() + x.shape[1] - length).tolist()
        return [each[:end] for each, end in zip(x, ends, strict=True)]

    def answer(self, row: int) -> Given:
        """Return the values of one answer, tensors of tokens of its own length."""
        return replace(self, row=row)

    def _value(self, role: str, name: str) -> Any:
        for key in ((name, role), (name, f"{role}_all")):  # log-probs that by their use are of all tokens
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
            "lengths": lambda: self._extent().sum(-1),
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
        if not self.layout.shifted:
            return found.clone()
        numbers = torch.linspace(-1, 1, found.shape[-1], dtype=found.dtype)
        beyond = self._beyond("logits", whose, numbers.expand(len(found), self.layout.prompt, -1))
        return torch.cat([beyond[:, 1:], found, beyond[:, :1]], 1)

    def _extent(self) -> torch.Tensor:
        """Return 1 on every token up to the last of the answer, on a tool's text too, [batch, seq]."""
        mask = self.rollout.completion_mask
        return (mask.flip(-1).cumsum(-1).flip(-1) > 0).to(mask.dtype)

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
    """What a model returns: its ``.logits``, and what else is asked of it by name."""

    def __init__(self, given: Given, whose: str) -> None:
        self._given, self._whose = given, whose

    def __getitem__(self, name: Any) -> Any:
        if name == 0:
            return self.logits
        found = read_name(str(name))
        if isinstance(found, Unread):
            raise refusal("the model's output", [found])
        owned = found.role not in ("entropy", "completion_mask") and self._whose
        return self._given.of(f"{self._whose}_{found.role}" if owned else found.role, str(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or isinstance(read_name(name), Unread):
            raise AttributeError(name)
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name; the default where the name is not read."""
        return default if isinstance(read_name(name), Unread) else self[name]


def loss_of(out: Any, rollout: Rollout, label: str, layout: Layout = ALIGNED) -> tuple[torch.Tensor, str]:
    """The loss in what a function returned, reduced to [batch, seq] or a scalar, and how it was found.

    Args:
        out: A tensor, or a tuple, dict or record that holds one.
        rollout: What was passed.
        label: The function's name, for messages.
        layout: Under which it was passed.

    Raises:
        Unusable: no loss in it, of no shape that is known, or NaN.
    """
    x, where = _within(out)
    if not isinstance(x, torch.Tensor):
        raise Unusable(
            f"{label} returned {type(out).__name__}, expected a tensor: a scalar, or one per token"
        )
    mask = rollout.completion_mask
    batch, length = mask.shape
    shape = list(x.shape)
    per_token = [length, length + layout.prompt - 1, length + layout.prompt]  # some with a prompt
    if x.numel() == 1 and shape != [batch]:
        x, how = x.reshape(()), "one number"
    elif shape in ([batch, n] for n in per_token):
        begin = layout.prompt - (layout.wide in ("ahead", "short") or shape[1] < per_token[-1])
        x = x if shape[1] == length else x[:, begin : begin + length]
        how = "one value per token: summed over the tokens of an answer, mean over answers"
    elif shape in ([batch], [batch, 1]):
        x, how = x.mean(), "one value per answer: the mean is taken"
    elif shape == [int(mask.sum())]:
        x, how = x.sum() / batch, "one value per token under the mask: summed, mean over answers"
    else:
        raise Unusable(
            f"{label} returned shape {shape}, expected a scalar, or one per token {[batch, length]}, or one "
            f"per answer {[batch]}"
        )
    if (x if x.ndim == 0 else masked(x, mask)).isnan().any():
        raise Unusable(f"{label} returned NaN on an enumerated batch, expected numbers")
    return x, f"{where}{how}"


def _within(out: Any) -> tuple[Any, str]:
    """Return what may be the loss in what a function returned, and where it was."""
    if isinstance(out, list) and out and all(isinstance(x, torch.Tensor) and x.ndim < 2 for x in out):
        rows = [x.reshape(-1) for x in out]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).squeeze(-1), "a list: "
    if isinstance(out, tuple) and not hasattr(out, "_fields"):
        tensors = [x for x in out if isinstance(x, torch.Tensor)]
        others = sum(x.requires_grad for x in tensors[1:])
        rest = _not_taken([f"{others} more with a gradient"] * bool(others))
        return tensors[0] if tensors else out, f"the first tensor of the tuple{rest}: "
    quoted = isinstance(out, Mapping)
    entries = out if quoted else {n: getattr(out, n, None) for n in _fields(out)}
    named = [n for n, x in entries.items() if isinstance(n, str) and isinstance(x, torch.Tensor)]
    losses = [n for n in named if n == "loss"] or [n for n in named if "loss" in n]
    if not losses:
        return out, ""
    words = [repr(n) if quoted else n for n in losses]
    return entries[losses[0]], f"its {'' if quoted else '.'}{words[0]}{_not_taken(words[1:])}: "


def _fields(record: Any) -> Sequence[str]:
    """Return the names of what may be a loss in a record; of a tensor none."""
    if isinstance(record, torch.Tensor):
        return ()
    known = getattr(record, "_fields", ())
    return ["loss", *known, *(f.name for f in (fields(record) if is_dataclass(record) else ()))]


def _not_taken(others: Iterable[str]) -> str:
    """The end of a sentence on what was taken as the loss, where there were other candidates."""
    return f", not {', '.join(names)}" if (names := list(others)) else ""


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
        said += f"\n  at {theirs[-1].filename}:{theirs[-1].lineno}: {(theirs[-1].line or '').strip()}"
    given = ", ".join(f"{n} {shape_words(v)}" for n, v in passed.items())
    return Unusable(
        f"{said}\n  passed: {given}\n  expected a loss that runs on these; --map NAME=ROLE gives a "
        "parameter another meaning, --set NAME=VALUE another value"
    )
