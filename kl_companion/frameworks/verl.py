"""verl: the KL in the loss of its actor and the KL in its rewards, in any release.

verl imports Ray, TensorDict and more, which are not imported: its functions are linked, see `linking`. What
they take from there (padding, metrics, batches) is stood in for by the few attributes that they read.
Distillation is in `verl_distillation`; advantages are those of the installed release, in `verl_algorithms`.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.frameworks.blocks import Block, block, call
from kl_companion.frameworks.installed import (
    Distribution,
    SourceLocation,
    tree_of,
)
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.shipped import Shipped, chosen
from kl_companion.frameworks.yaml_defaults import yaml_defaults
from kl_companion.rollout import Rollout, credit

__all__ = ["loss", "reward"]

CORE = "verl/trainer/ppo/core_algos.py"
_TRAINER = "verl/trainer/ppo/ray_trainer.py"
CONFIGS = "verl/trainer/config"
# FSDP's actor runs while a release has it (use_legacy_worker_impl: auto), then the loss of all engines
_LEGACY = ("verl/trainer/ppo/actor/dp_actor.py", "verl/workers/actor/dp_actor.py")
_ENGINE = "verl/workers/utils/losses.py"
_CLIP = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
PLAIN = {"AlgoConfig": type("AlgoConfig", (), {})}
Totals = Callable[[Rollout], dict[str, Any]]
_LOSS = ("kl_loss_coef", "kl_loss_type", "loss_agg_mode", "loss_scale_factor")


class Unlogged:
    """verl's wrapper of a number for its logs, and the ways to gather them: nothing is logged here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Forget a number."""

    def __getattr__(self, _: str) -> None:
        return None

    @staticmethod
    def from_dict(numbers: Any, **_: Any) -> Any:
        """The numbers."""
        return numbers


class Configuration(SimpleNamespace):
    """A configuration as verl's functions read it: attributes, and ``get``."""

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute, or the default."""
        return getattr(self, name, default)


class Batch(dict[str, Any]):
    """A dictionary of tensors with a batch size, which is what is read of verl's data protocol."""

    @property
    def batch_size(self) -> tuple[int]:
        """How many sequences it holds."""
        return (len(next(iter(self.values()))),)


PADDED = {"no_padding_2_padding": lambda x, _: x, "Metric": Unlogged, "AggregationType": Unlogged()}


def global_batch(rollout: Rollout) -> dict[str, Any]:
    """The totals that verl hands to its aggregation; the tokens of the batch are a constant."""
    count = len(rollout.tokens)
    return {"dp_size": 1, "batch_num_tokens": count, "global_batch_size": count, "loss_scale_factor": None}


def _actor(verl: Distribution) -> dict[str, Any]:
    """The defaults of the actor."""
    file = f"{CONFIGS}/actor/actor.yaml"
    if (verl.root / file).is_file():
        return yaml_defaults(verl, file)
    return below("actor_rollout_ref.actor.", yaml_defaults(verl, f"{CONFIGS}/ppo_trainer.yaml"))


def below(prefix: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """The values whose names begin so, without that."""
    return {n.removeprefix(prefix): x for n, x in found.items() if n.startswith(prefix)}


def only(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The values of those of some names that there are."""
    return {n: found[n] for n in names if n in found}


def _totals(verl: Distribution, rollout: Rollout) -> dict[str, Any]:
    """The totals of the global batch, where the release hands them on; its older actors count their own."""
    old = any((verl.root / file).is_file() for file in _LEGACY)
    return {} if old else global_batch(rollout)


def _tiny() -> Rollout:
    """One token: enough to see that a release has an option's value."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    return Rollout(
        tokens=torch.zeros(1, 1, dtype=torch.long),
        completion_mask=zero + 1,
        logp=zero - 1,
        ref_logp=zero - 2,
    )


def _tried(verl: Distribution, option: str, loss: Callable[[Rollout], torch.Tensor]) -> None:
    """ValueError for a value that the release's functions do not know."""
    try:
        loss(_tiny())
    except NotImplementedError as error:
        raise ValueError(f"verl {verl.version} does not know {option}: its kl_penalty raises") from error


def _actor_loss(verl: Distribution, run: Block, config: Mapping[str, Any], rollout: Rollout) -> torch.Tensor:
    totals = _totals(verl, rollout)
    if totals:
        totals["loss_scale_factor"] = config.get("loss_scale_factor")
    actor = Configuration(**{**config, "kl_loss_coef": 1.0, "global_batch_info": totals})
    batch = {"ref_log_prob": rollout.ref_logp}
    read: dict[str, Any] = {
        "self": SimpleNamespace(config=actor),
        "config": actor,
        **dict.fromkeys(("data", "model_inputs", "micro_batch"), batch),
        **{n: defaultdict(float) for n in ("metrics", "micro_batch_metrics")},
        "log_prob": rollout.logp,
        "response_mask": rollout.completion_mask,
        "loss_agg_mode": config.get("loss_agg_mode"),
        "loss_scale_factor": 1.0,  # of a micro-batch in its mini-batch, for the logs
        "policy_loss": 0.0,
        "Metric": Unlogged,
        "metric_aggregation": None,
    }
    loss: torch.Tensor = run(read)["policy_loss"]
    return loss


def loss(verl: Distribution, options: Mapping[str, Any]) -> Shipped:
    """The KL that the actor adds to its loss."""
    run, place = block(verl, (*_LEGACY, _ENGINE), "use_kl_loss", "kl_penalty")
    defaults = _actor(verl)
    config = chosen(only(defaults, *_LOSS), options, f"the actor of verl {verl.version}")
    shown = words("actor_rollout_ref.actor", "use_kl_loss=True", config, options, _LOSS[:3])
    shipped = Shipped(
        partial(_actor_loss, verl, run, config),
        shown,
        float(config["kl_loss_coef"]) if defaults["use_kl_loss"] else 0.0,
        place,
    )
    _tried(verl, f"kl_loss_type={config['kl_loss_type']}", shipped.loss)
    return shipped


def words(
    prefix: str, on: str, config: Mapping[str, Any], options: Mapping[str, Any], shown: tuple[str, ...]
) -> str:
    """The configuration as a user writes it: what matters here, and what was chosen."""
    fields = [n for n in dict.fromkeys((*shown, *options)) if n in config]
    return f"{prefix}: {', '.join(filter(None, (on, *(f'{n}={config[n]}' for n in fields))))}"


def _policy_loss(verl: Distribution) -> Any:
    """The release's clipped policy loss."""
    names = ("compute_policy_loss_vanilla", "compute_policy_loss")
    defined = {n.name for n in tree_of(verl.root / CORE).body if isinstance(n, ast.FunctionDef)}
    return link(verl, CORE, next(n for n in names if n in defined), given=PLAIN)


def _returns(penalize: Any, kind: str, rollout: Rollout) -> torch.Tensor:
    """Of rewards that are minus the KL, [batch, seq], with discount 1."""
    mask = rollout.completion_mask
    batch = Batch(
        responses=rollout.tokens,
        attention_mask=mask,
        response_mask=mask,
        token_level_scores=torch.zeros_like(rollout.sampled_from),
        old_log_probs=rollout.sampled_from,
        ref_log_prob=rollout.ref_logp,
    )
    control = SimpleNamespace(value=1.0, update=lambda **_: None)
    data, _ = penalize(SimpleNamespace(batch=batch), control, kind)
    return credit(data.batch["token_level_rewards"], mask)


def _reward_loss(
    penalize: Any,
    policy: Any,
    totals: Totals,
    config: Mapping[str, Any],
    rollout: Rollout,
    advantages: torch.Tensor | None = None,
) -> torch.Tensor:
    mask = rollout.completion_mask
    if advantages is None:
        advantages = _returns(penalize, config["kl_penalty"], rollout)
    clip = {n.replace("clip_ratio", "cliprange"): config[n] for n in _CLIP[:3] if n in config}
    found = call(
        policy,
        **clip,
        **only(config, "clip_ratio_c", "loss_agg_mode"),
        old_log_prob=rollout.sampled_from,
        log_prob=rollout.logp,
        advantages=advantages,
        eos_mask=mask,
        response_mask=mask,
        config=Configuration(**{**dict.fromkeys(_CLIP[:3]), **config}, global_batch_info=totals(rollout)),
    )
    total: torch.Tensor = found[0]
    return total


def reward(verl: Distribution, options: Mapping[str, Any]) -> Shipped:
    """The KL that is subtracted from the reward of each token: returns of discount 1, clipped policy loss."""
    algorithm = below("algorithm.", yaml_defaults(verl, f"{CONFIGS}/ppo_trainer.yaml"))
    known = {
        **only(algorithm, "kl_penalty"),
        **only(_actor(verl), "loss_agg_mode", *_CLIP),
    }
    config = chosen(known, options, f"algorithm and actor of verl {verl.version}")
    # before there was an option every run subtracted it, unless the actor had it in its loss
    option = "use_kl_in_reward"
    on = algorithm.get(option, True)
    shipped = Shipped(
        partial(
            _reward_loss,
            link(verl, _TRAINER, "apply_kl_penalty"),
            _policy_loss(verl),
            partial(_totals, verl),
            config,
        ),
        words("algorithm", f"{option}=True" if option in algorithm else "", config, options, ("kl_penalty",)),
        float(algorithm["kl_ctrl.kl_coef"]) if on else 0.0,
        SourceLocation(_TRAINER, "apply_kl_penalty"),
    )
    _tried(verl, f"kl_penalty={config['kl_penalty']}", shipped.loss)
    return shipped
