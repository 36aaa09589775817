"""All settings of a training run that the notebooks offer, in one record that is checked when made."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, get_args

from kl_companion.checks import check_choice, check_whole
from kl_companion.estimators.registry import Estimator
from kl_companion.estimators.sampled import FORMS, Form
from kl_companion.kl_term import KLTerm, Level, Placement
from kl_companion.rollout import CENTERINGS, Aggregate, Centering, Scope
from kl_companion.rollout.aggregation import check_aggregate

AnchorKind = Literal["fixed", "ema", "taught"]
Baseline = Literal["group", "batch"]
PenaltyFrom = Literal["sampler", "policy"]
Optimizer = Literal["adam", "sgd"]
Precision = Literal["float32", "bfloat16"]
CHOICES = {
    "anchor": get_args(AnchorKind),
    "form": FORMS,
    "penalty_from": get_args(PenaltyFrom),
    "advantages": CENTERINGS,
    "baseline": get_args(Baseline),
    "optimizer": get_args(Optimizer),
    "dtype": get_args(Precision),
}
TOP_K = ("top_k_reverse_kl", "top_k_forward_kl")


@dataclass(frozen=True)
class Settings:
    """The choices of one run; the KL ones first.

    Attributes:
        estimator: A registered name; ``"top_k_reverse_kl"`` and ``"top_k_forward_kl"`` take ``k``, ``form``.
        placement, level, credit: As in `kl_companion.KLTerm`. Where the token-level gradient is right (exact,
            K3++, K4, top-k), that of ``"both"`` is the sequence-level one. One cost per sequence is compared
            with the others like a reward.
        center_costs: Compare a token's credited costs with those of the group's other completions at the same
            position (at level "token", where there are costs).
        beta: KL coefficient, at least 0.
        anchor: What the KL is measured to: the start, an exponential moving average of the policy, or the
            policy after its ``lesson``.
        decay: Of the average: anchor <- decay anchor + (1 - decay) policy, every ``period`` steps.
        period: Steps between two updates of the anchor.
        k: Size of a top-k estimator's head.
        form: Of a top-k estimator, see `kl_companion.estimators.top_k_f_divergence`.
        importance, importance_clip: ``importance`` and ``clip`` of the `kl_companion.KLTerm`.
        penalty_from: Whose log-probs a cost in the reward reads when the sampler is stale.
        advantages: How rewards are compared, see `kl_companion.center`.
        baseline: With the completions of the same prompt, or of the whole batch.
        clip: (low, high) of PPO's clip 1 - low to 1 + high on the token's ratio; None leaves the ratio free.
        lag: The sampler is refreshed every ``lag`` steps: 1 is on-policy.
        inner_steps: Optimizer steps on each batch.
        accumulate: Parts into which a batch is cut to save memory; it changes no result.
        prompts, group: Prompts per step, and completions of each.
        lr, optimizer, max_grad_norm: Adam(.9, .99) or plain SGD; the norm is recorded before it is clipped.
        how, length: From token terms to one number, see `kl_companion.aggregate`. With ``"sum"`` beta is the
            beta of E[reward] - beta KL(sequence).
        temperature: Of the sampler, and of every log-prob in the loss.
        steps, seed: Length of the run; seed of prompts and samples.
        lesson: So many steps, the first of them, are supervised: they raise the log-probability of the right
            answers of prompts x group problems. RL goes on from there with a fresh optimizer.
        dtype: ``"bfloat16"`` runs the forward passes under autocast; weights and log-probs stay float32.
        lora: Rank of LoRA adapters that are trained in place of all weights, and merged at the end; None: all
            weights.

    Raises:
        ValueError: an unknown choice, a number out of range, or choices that do not go together.
    """

    estimator: str = "k2"
    placement: Placement = "loss"
    level: Level = "token"
    credit: float = 1.0
    center_costs: bool = False
    beta: float = 0.1
    anchor: AnchorKind = "fixed"
    decay: float = 0.9
    period: int = 1
    k: int | None = None
    form: Form = "bregman"
    importance: Scope | None = None
    importance_clip: tuple[float, float] | None = None
    penalty_from: PenaltyFrom = "sampler"
    advantages: Centering = "leave_one_out"
    baseline: Baseline = "group"
    clip: tuple[float, float] | None = None
    lag: int = 1
    inner_steps: int = 1
    accumulate: int = 1
    prompts: int = 16
    group: int = 4
    lr: float = 3e-4
    optimizer: Optimizer = "adam"
    max_grad_norm: float | None = 1.0
    how: Aggregate = "sum"
    length: float | None = None
    temperature: float = 1.0
    steps: int = 100
    seed: int = 0
    lesson: int = 0
    dtype: Precision = "float32"
    lora: int | None = None

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            check_choice(name, getattr(self, name), known)
        check_aggregate(self.how, self.length)
        for name in ("period", "lag", "inner_steps", "accumulate", "prompts", "group"):
            check_whole(name, getattr(self, name), 1)
        for name in ("steps", "lesson"):
            check_whole(name, getattr(self, name), 0)
        if self.lora is not None:
            check_whole("lora", self.lora, 1)
        self._check_range("beta", low=0.0)
        self._check_range("decay", low=0.0, high=1.0)
        for name in ("lr", "temperature", *(() if self.max_grad_norm is None else ("max_grad_norm",))):
            self._check_range(name, low=0.0, open_low=True)
        if self.clip is not None:
            object.__setattr__(self, "clip", self._pair("clip", self.clip))
        self._check_estimator()
        self._check_together()

    def _check_range(self, name: str, *, low: float, high: float = math.inf, open_low: bool = False) -> None:
        got = getattr(self, name)
        right = isinstance(got, int | float) and not isinstance(got, bool) and math.isfinite(got)
        if not right or got < low or got > high or (open_low and got == low):
            limits = f"above {low:g}" if open_low else f"of at least {low:g}"
            limits += f" and at most {high:g}" if high < math.inf else ""
            raise ValueError(f"{name} is {got!r}, expected a finite number {limits}")

    def _pair(self, name: str, got: object) -> tuple[float, float]:
        """Two numbers of at least 0; a list, as a notebook's parameters hold it, becomes a tuple."""
        numbers = tuple(got) if isinstance(got, tuple | list) else ()
        right = [isinstance(x, int | float) and math.isfinite(x) and x >= 0 for x in numbers]
        if len(numbers) != 2 or not all(right):
            raise ValueError(f"{name} is {got!r}, expected (low, high), two finite numbers of at least 0")
        return numbers

    def _check_estimator(self) -> None:
        top_k = self.estimator in TOP_K
        if top_k and self.k is None:
            raise ValueError(f"estimator={self.estimator!r} got k=None, expected the size of its head")
        if not top_k and (self.k is not None or self.form != "bregman"):
            raise ValueError(
                f"estimator={self.estimator!r} got k={self.k}, form={self.form!r}, expected None and "
                f"'bregman': they are for {' and '.join(TOP_K)}"
            )

    def _check_together(self) -> None:
        term = self.term  # what its choices cannot be is said there
        object.__setattr__(self, "importance_clip", term.clip)
        if self.center_costs and not (term.charges and self.level == "token"):
            raise ValueError(
                f"center_costs=True got placement={self.placement!r}, level={self.level!r}, expected "
                "placement 'reward' or 'both' and level 'token'"
            )
        if self.group < 2 and (
            self.center_costs
            or (self.baseline == "group" and self.advantages in ("leave_one_out", "standardized"))
        ):
            raise ValueError(
                f"group is {self.group}, expected at least 2 completions of a prompt: nothing is left to "
                f"compare one with (advantages={self.advantages!r}, center_costs={self.center_costs})"
            )
        if self.lora is not None and self.anchor == "ema":
            raise ValueError(
                f"lora is {self.lora} with anchor='ema', expected a fixed anchor: an average of adapters is "
                "not the average of the policies"
            )
        if self.lesson > self.steps or (self.anchor == "taught" and self.lesson == 0):
            least = 1 if self.anchor == "taught" else 0
            raise ValueError(
                f"lesson is {self.lesson} with anchor={self.anchor!r}, expected a number of supervised steps "
                f"from {least} to steps={self.steps}"
            )
        if self.accumulate > self.prompts * self.group:
            raise ValueError(
                f"accumulate is {self.accumulate}, expected at most prompts x group = "
                f"{self.prompts * self.group}"
            )

    @cached_property
    def term(self) -> KLTerm:
        """The KL term, without its coefficient; ValueError for choices that do not go together."""
        name = self.estimator if self.k is None else f"{self.estimator}({self.k}, {self.form})"
        return KLTerm(
            name, self.placement, self.level, self.importance, clip=self.importance_clip, credit=self.credit
        )

    @property
    def entry(self) -> Estimator:
        """The registered estimator."""
        return self.term.entry

    def examined(self) -> Any:
        """Return the loop of these settings, for `kl_companion.monitor.diagnose`."""
        # by name, because the loop itself reads these settings
        return import_module("kl_companion.llm.own_loop").ExaminedLoop(self)

    @property
    def charges(self) -> bool:
        """Whether the KL is a cost that enters the advantages."""
        return self.beta > 0 and self.term.charges

    @property
    def differentiates(self) -> bool:
        """Whether the KL is a term of the loss."""
        return self.beta > 0 and self.term.differentiates

    @property
    def needs_logits(self) -> bool:
        """Whether the KL term reads the reference's next-token distributions."""
        return self.beta > 0 and self.term.needs_logits


def expand(choices: Mapping[str, Any]) -> list[Settings]:
    """One `Settings` for every combination of the values that are lists, the last name varying fastest.

    ``clip`` and ``importance_clip`` are pairs: for several, give a list of pairs.

    Raises:
        ValueError: a name that is no setting, an empty list, or settings that are refused.
    """
    known = [f.name for f in fields(Settings)]
    unknown = [name for name in choices if name not in known]
    if unknown:
        raise ValueError(f"got the setting {unknown[0]!r}, expected one of: {', '.join(known)}")
    axes = []
    for name, value in choices.items():
        pair = name in ("clip", "importance_clip") and value and not isinstance(value[0], list | tuple)
        axes.append(list(value) if isinstance(value, list | tuple) and not pair else [value])
        if not axes[-1]:
            raise ValueError(f"{name} is an empty list, expected at least one value")
    return [Settings(**dict(zip(choices, values, strict=True))) for values in itertools.product(*axes)]
