"""OpenRLHF's releases: the KL in the reward, the KL in the loss of the actor, and KDLoss."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.checks import unknown_name
from kl_companion.frameworks.history.blocks import Block, block, call
from kl_companion.frameworks.history.shipped import argument_defaults, chosen
from kl_companion.frameworks.history.subjects import FollowedLoss, Project, Shipped
from kl_companion.frameworks.installed import Distribution, SourceLocation, statement, tree_of
from kl_companion.frameworks.linking import link
from kl_companion.rollout import Rollout, credit

_PARSER = "openrlhf/cli/train_ppo_ray.py"
_UTILS, _LOSSES = "openrlhf/models/utils.py", "openrlhf/models/loss.py"
# the method of the actor moved from the trainer of one machine to Ray's
_ACTORS = ("openrlhf/trainer/ray/ppo_actor.py", "openrlhf/trainer/ppo_trainer.py")
# two generations of options: names in one piece, then names of nested groups
_COEFFICIENT = ("init_kl_coef", "algo.kl.init_coef")
_IN_LOSS = ("use_kl_loss", "algo.kl.use_loss")
_ESTIMATOR = ("use_kl_estimator_k3", "kl_estimator", "algo.kl.estimator")
_UNBIASED = ("algo.kl.unbiased_gradient",)
_AGGREGATION = ("actor.loss_agg_mode",)
_NEVER = 1e9  # PPO's clip is left out, as in the adapter


def _settings(openrlhf: Distribution, options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The options of a release that matter here, the reader's in place of the defaults."""
    defaults = argument_defaults(openrlhf, _PARSER)
    config = chosen(
        {n: defaults[n] for n in names if n in defaults},
        options,
        f"train_ppo_ray of OpenRLHF {openrlhf.version}",
    )
    for name, value in options.items():
        allowed = _choices(openrlhf, name)
        if allowed and value not in allowed:
            raise unknown_name(f"--{name} of OpenRLHF {openrlhf.version}", str(value), allowed)
    return config


def _choices(openrlhf: Distribution, name: str) -> list[str]:
    """What the parser allows for an option; [] where it allows anything."""
    for node in ast.walk(tree_of(openrlhf.root / _PARSER)):
        if isinstance(node, ast.Call) and node.args and ast.unparse(node.args[0]) == repr(f"--{name}"):
            found: list[str] = next(
                (ast.literal_eval(k.value) for k in node.keywords if k.arg == "choices"), []
            )
            return found
    return []


def _value(config: Mapping[str, Any], names: tuple[str, ...], otherwise: Any = None) -> Any:
    """That of the one of some names that the release has."""
    return next((config[n] for n in names if n in config), otherwise)


def _estimator(config: Mapping[str, Any]) -> dict[str, Any]:
    """The estimator as the release's function takes it: a name, or whether it is k3."""
    value = _value(config, _ESTIMATOR, "k1")
    return {"use_kl_estimator_k3": value} if isinstance(value, bool) else {"kl_estimator": value}


def _nested(config: Mapping[str, Any]) -> SimpleNamespace:
    """Parsed options as the release reads them: ``algo.kl.estimator`` is an attribute of an attribute."""
    found = SimpleNamespace()
    for dotted, value in config.items():
        *groups, name = dotted.split(".")
        place = found
        for group in groups:
            if not hasattr(place, group):
                setattr(place, group, SimpleNamespace())
            place = getattr(place, group)
        setattr(place, name, value)
    return found


def _words(config: Mapping[str, Any], on: tuple[str, ...] = ()) -> str:
    """The command line: a flag is named where it is on."""
    flags = {n: x for n, x in config.items() if n not in on and x is not False}
    shown = [*(f"--{n}" for n in on), *(f"--{n}" if x is True else f"--{n} {x}" for n, x in flags.items())]
    return " ".join(shown)


def _policy(
    openrlhf: Distribution, config: Mapping[str, Any], advantages: torch.Tensor, rollout: Rollout
) -> Any:
    """The release's policy loss of some advantages."""
    mode, count = _value(config, _AGGREGATION), len(rollout.tokens)
    known = dict.fromkeys(("clip_eps", "clip_eps_low", "clip_eps_high"), _NEVER)
    if mode is not None:
        known["token_level_loss"] = mode == "token-mean"
    policy = call(link(openrlhf, _LOSSES, "PolicyLoss"), **known)
    found = call(
        policy.forward,
        log_probs=rollout.logp,
        old_log_probs=rollout.sampled_from,
        advantages=advantages,
        action_mask=rollout.completion_mask,
        batch_num_tokens=count,
        global_batch_size=count,
    )
    return found[0] if isinstance(found, tuple) else found


def _reward_loss(openrlhf: Distribution, config: Mapping[str, Any], rollout: Rollout) -> torch.Tensor:
    mask, policy, reference = rollout.completion_mask, rollout.sampled_from, rollout.ref_logp
    known = {"log_probs": policy, "log_probs_base": reference, "action_mask": mask, **_estimator(config)}
    kl = call(link(openrlhf, _UTILS, "compute_approx_kl"), **known)
    nothing = torch.zeros(len(mask), dtype=kl.dtype)
    rewards = call(link(openrlhf, _UTILS, "compute_reward"), r=nothing, kl_coef=1.0, kl=kl, **known)
    rewards = rewards[0] if isinstance(rewards, tuple) else rewards  # the oldest returns the KL too
    loss: torch.Tensor = _policy(openrlhf, config, credit(rewards, mask), rollout)
    return loss


def reward(openrlhf: Distribution, options: Mapping[str, Any]) -> Shipped:
    """The KL that is subtracted from the reward of each token: returns of discount 1, no clip."""
    config = _settings(openrlhf, options, *_COEFFICIENT, *_ESTIMATOR, *_AGGREGATION)
    return Shipped(
        partial(_reward_loss, openrlhf, config),
        _words(config),
        float(_value(config, _COEFFICIENT)),
        SourceLocation(_UTILS, "compute_approx_kl"),
    )


def _actor_loss(run: Block, config: Mapping[str, Any], rollout: Rollout) -> torch.Tensor:
    count = len(rollout.tokens)
    args = _nested(config)
    args.packing_samples = False
    read = {
        "self": SimpleNamespace(args=args, initial_model=True),
        "experience": SimpleNamespace(action_mask=rollout.completion_mask, info={}),
        "action_log_probs": rollout.logp,
        "base_action_log_probs": rollout.ref_logp,
        "old_action_log_probs": rollout.sampled_from,
        "loss_batch_info": {"dp_size": 1, "batch_num_tokens": count, "global_batch_size": count},
    }
    loss: torch.Tensor = run(read)["kl_loss"]
    return loss


def loss(openrlhf: Distribution, options: Mapping[str, Any]) -> Shipped:
    """The KL that the actor adds to its loss."""
    run, place = _block(openrlhf)
    config = _settings(openrlhf, options, *_COEFFICIENT, *_ESTIMATOR, *_UNBIASED, *_AGGREGATION)
    defaults = argument_defaults(openrlhf, _PARSER)
    flag = next(n for n in _IN_LOSS if n in defaults)
    return Shipped(
        partial(_actor_loss, run, config),
        _words(config, (flag,)),
        float(_value(config, _COEFFICIENT)) if defaults[flag] else 0.0,
        place,
    )


def _block(openrlhf: Distribution) -> tuple[Block, SourceLocation]:
    dotted = any(n in argument_defaults(openrlhf, _PARSER) for n in _IN_LOSS[1:])
    return block(openrlhf, _ACTORS, "use_loss" if dotted else "use_kl_loss", "compute_approx_kl")


def _distilled(function: Any, rollout: Rollout) -> torch.Tensor:
    labels = rollout.tokens.masked_fill(~rollout.completion_mask.bool(), -100)
    found: torch.Tensor = function.forward(rollout.logits, rollout.ref_logits, labels)
    return found


def distillation(openrlhf: Distribution, options: Mapping[str, Any]) -> Shipped:
    """KDLoss of labels that lie on the logits that predict them; train_kd's lie one place later."""
    method = "KDLoss.forward"
    statement(openrlhf, _LOSSES, method)
    parser = "openrlhf/cli/train_kd.py"
    defaults = argument_defaults(openrlhf, parser)
    config = chosen({"kd_coef": defaults["kd_coef"]}, options, f"train_kd of OpenRLHF {openrlhf.version}")
    return Shipped(
        partial(_distilled, link(openrlhf, _LOSSES, "KDLoss")()),
        f"train_kd --kd_coef {config['kd_coef']}",
        None,
        SourceLocation(_LOSSES, method),
        sampled=False,
    )


PROJECT = Project(
    "openrlhf",
    "openrlhf",
    "0.3.6.post1",
    (
        FollowedLoss("openrlhf.reward", "the KL in the reward", reward, "reverse_kl"),
        FollowedLoss(
            "openrlhf.loss",
            "the KL in the loss of the actor, once it is asked for",
            loss,
            "reverse_kl",
            ({"algo.kl.estimator": "k3", "algo.kl.unbiased_gradient": True}, {"kl_estimator": "k2"}),
        ),
        FollowedLoss(
            "openrlhf.distillation",
            "KDLoss of train_kd, on labels in line with the logits",
            distillation,
            "forward_kl",
        ),
    ),
)
