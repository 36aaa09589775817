"""TRL: the losses of GRPOTrainer, RLOOTrainer and GKDTrainer in any release, on a stand-in for the trainer.

The stand-in is an object with the attributes that a loss reads, whose forward pass returns the rollout's
log-probs. How TRL makes advantages stands among its lines for several processes, and is a formula here. Its
other losses of distillation are in `trl_distillation`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.installed import Distribution, SourceLocation, Unavailable, statement
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.shipped import Shipped, chosen, class_defaults, written
from kl_companion.rollout import Rollout, masked

__all__ = ["gkd", "grpo", "rloo"]
Forward = tuple[str, Callable[..., Any]]
_REFERENCE = object()
_FORWARDS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")


class Trainer:
    """What a loss reads of its trainer: what is given, then the fields of the configuration."""

    def __init__(self, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """A configuration, and what comes before it."""
        self._config = config
        self.args = SimpleNamespace(**config)
        vars(self).update(given)

    def __getattr__(self, name: str) -> Any:
        if name in self._config:
            return self._config[name]
        raise AttributeError(
            f"the trainer has no {name}: the loss of this release reads what is not stood in for"
        )


class Forgetful:
    """Metrics by name, or by mode and name; nobody reads them."""

    def __getitem__(self, _: str) -> Forgetful:
        return self

    def append(self, _: Any) -> None:
        """Forget a number."""


def _method(trl: Distribution, file: str, name: str, *choices: str) -> str:
    """The first of some methods that a class has, as ``Class.method``."""
    for choice in choices:
        try:
            statement(trl, file, f"{name}.{choice}")
        except Unavailable:
            continue
        return f"{name}.{choice}"
    raise Unavailable(f"{trl.name} {trl.version} has none of {', '.join(choices)} in {name} of {file}")


def _forward(trl: Distribution, file: str, method: str) -> Forward:
    """The forward pass that a loss calls: its name, and from a rollout what it returns.

    It returns log-probs alone, or with the entropies and more.
    """
    name = _method(trl, file, method.partition(".")[0], *_FORWARDS).rpartition(".")[2]
    (target,) = [
        n.targets[0]
        for n in ast.walk(statement(trl, file, method))
        if isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and ast.unparse(n.value.func) == f"self.{name}"
        and "ref" not in ast.unparse(n.targets[0])
    ]

    def forward(rollout: Rollout, model: Any, *_: Any, **__: Any) -> Any:
        logps, entropy = rollout.logp, torch.zeros_like(rollout.sampled_from)
        if model is _REFERENCE:
            logps = rollout.ref_logp
        if isinstance(target, ast.Tuple):
            return (logps, entropy, None)[: len(target.elts)]
        return {"logps": logps, "entropies": entropy} if "entropies" in name else logps

    return name, forward


def stand_in(rollout: Rollout, config: Mapping[str, Any], **given: Any) -> Trainer:
    """What the losses read of a trainer: one process, no clipping metrics kept, no extras."""
    same = SimpleNamespace(
        num_processes=1,
        process_index=0,
        gather=lambda x: x,
        reduce=lambda x, reduction: x,
        gather_for_metrics=lambda x: x,
    )
    common = {
        "_metrics": Forgetful(),
        "_entropy_bonus_enabled": False,
        "aux_loss_enabled": False,
        "accelerator": same,
        "model": SimpleNamespace(training=True),
        "epsilon_low": config.get("epsilon", 0.2),
        "epsilon_high": config.get("epsilon_high") or config.get("epsilon", 0.2),
        "use_vllm": False,
        "current_gradient_accumulation_steps": 1,
        "max_completion_length": rollout.tokens.shape[1],
    }
    return Trainer(config, {**common, **given})


def _trainer(forward: Forward, config: Mapping[str, Any], rollout: Rollout, beta: float = 1.0) -> Trainer:
    """The trainer with that forward pass."""
    name, function = forward
    given = {
        name: partial(function, rollout),
        "ref_model": _REFERENCE,
        "tools": None,
        "control": SimpleNamespace(should_evaluate=False),
        "num_iterations": 2,  # with 1 some releases take the policy itself for the one that sampled
        "beta": beta,
    }
    return stand_in(rollout, {**config, "steps_per_generation": 1, "beta": beta}, **given)


def _inputs(rollout: Rollout, **more: Any) -> dict[str, Any]:
    nothing = rollout.tokens[:, :0]
    return {
        "prompt_ids": nothing,
        "prompt_mask": nothing,
        "completion_ids": rollout.tokens,
        "completion_mask": rollout.completion_mask,
        **more,
    }


def _grpo_loss(
    method: Any,
    forward: Forward,
    config: Mapping[str, Any],
    rollout: Rollout,
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    count = len(rollout.tokens)
    zeros = torch.zeros(count, dtype=rollout.logp.dtype)
    inputs = _inputs(
        rollout,
        advantages=zeros if advantages is None else advantages,
        ref_per_token_logps=rollout.ref_logp,
        old_per_token_logps=rollout.sampled_from,
        num_items_in_batch=torch.tensor(float(count), dtype=rollout.logp.dtype),
    )
    trainer = _trainer(forward, config, rollout, beta=1.0 if advantages is None else 0.0)
    loss: torch.Tensor = method(trainer, None, inputs)
    return loss


_GRPO_OPTIONS = ("loss_type", "importance_sampling_level", "use_bias_correction_kl", "scale_rewards")


def grpo(trl: Distribution, options: Mapping[str, Any]) -> Shipped:
    """GRPOTrainer's KL term."""
    file, settings = "trl/trainer/grpo_trainer.py", "trl/trainer/grpo_config.py"
    defaults = class_defaults(trl, settings, "GRPOConfig")
    config = chosen(defaults, options, f"GRPOConfig of TRL {trl.version}")
    method = _method(trl, file, "GRPOTrainer", "_compute_loss", "compute_loss")
    return Shipped(
        partial(_grpo_loss, link(trl, file, method), _forward(trl, file, method), config),
        written("GRPOConfig", config, ("beta", *_GRPO_OPTIONS), options),
        float(config["beta"]),
        SourceLocation(file, method),
    )


def _gkd_loss(function: Any, beta: float, rollout: Rollout) -> torch.Tensor:
    labels = rollout.tokens.masked_fill(~rollout.completion_mask.bool(), -100)
    each: torch.Tensor = function(rollout.logits, rollout.ref_logits, labels, beta=beta, reduction="sum")
    return each / len(rollout.tokens)


def gkd(trl: Distribution, options: Mapping[str, Any]) -> Shipped:
    """GKDTrainer's divergence, summed over the tokens of the batch and divided by the number of answers."""
    for folder in ("trl/experimental/gkd", "trl/trainer"):  # it moved
        file = f"{folder}/gkd_trainer.py"
        if (trl.root / file).is_file():
            break
    else:
        raise Unavailable(f"trl {trl.version} has no gkd_trainer.py")
    defaults = class_defaults(trl, f"{folder}/gkd_config.py", "GKDConfig")
    config = chosen(defaults, options, f"GKDConfig of TRL {trl.version}")
    method = "GKDTrainer.generalized_jsd_loss"
    return Shipped(
        partial(_gkd_loss, link(trl, file, method), config["beta"]),
        written("GKDConfig", config, ("beta",), options),
        None,
        SourceLocation(file, method),
        sampled=False,
    )


def _rloo_loss(
    method: Any,
    forward: Forward,
    config: Mapping[str, Any],
    rollout: Rollout,
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    mask = rollout.completion_mask
    kl = masked(rollout.sampled_from - rollout.ref_logp, mask).sum(-1).detach()
    each = -kl if advantages is None else advantages[:, 0]
    inputs = _inputs(rollout, advantages=each, old_logps=masked(rollout.sampled_from, mask).sum(-1))
    loss: torch.Tensor = method(_trainer(forward, config, rollout), None, inputs)
    return loss


def rloo(trl: Distribution, options: Mapping[str, Any]) -> Shipped:
    """RLOOTrainer's loss of minus the KL of each sequence, as its rewards contain it."""
    file, settings = "trl/trainer/rloo_trainer.py", "trl/trainer/rloo_config.py"
    defaults = class_defaults(trl, settings, "RLOOConfig")
    if "beta" not in defaults:
        raise Unavailable(f"trl {trl.version} has an RLOOTrainer that makes its own rollouts in one loop")
    config = chosen(defaults, options, f"RLOOConfig of TRL {trl.version}")
    method = _method(trl, file, "RLOOTrainer", "_compute_loss")
    return Shipped(
        partial(_rloo_loss, link(trl, file, method), _forward(trl, file, method), config),
        written("RLOOConfig", config, ("beta", "normalize_advantages"), options),
        float(config["beta"]),
        SourceLocation(file, method),
    )


def anchor_decay(ref_model_mixup_alpha: float) -> float:
    """The EMA decay of TRL's ``sync_ref_model``: anchor <- alpha x policy + (1 - alpha) x anchor.

    The anchor moves every ``ref_model_sync_steps`` optimizer steps, which is the ``period`` of
    `kl_companion.tabular.follow_anchor`. TRL's defaults, alpha = 0.6 and 512 steps, are a decay of 0.4.

    Raises:
        ValueError: alpha outside [0, 1].
    """
    if not 0 <= ref_model_mixup_alpha <= 1:
        raise ValueError(f"ref_model_mixup_alpha is {ref_model_mixup_alpha}, expected a number from 0 to 1")
    return 1 - ref_model_mixup_alpha
