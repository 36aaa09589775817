"""OpenRLHF: the KL in the reward, the KL in the loss of the actor, and KDLoss, in any release.

Advantages and policy loss are those of the installed release. What it imports (DeepSpeed, flash-attention and
more) is not imported: its functions are linked, see `linking`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from kl_companion.auditing.reading.precision import CastsAsDoubles
from kl_companion.checks import unknown_name
from kl_companion.frameworks.blocks import Block, block, call
from kl_companion.frameworks.installed import Distribution, SourceLocation, find, known, statement, tree_of
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.shipped import Shipped, argument_defaults, chosen
from kl_companion.rollout import Rollout, credit

__all__ = ["by", "distillation", "loss", "policy", "reward"]
_PARSER = "openrlhf/cli/train_ppo_ray.py"
_MAKER = "openrlhf/trainer/ppo_utils/experience_maker.py"
_UTILS, _LOSSES = "openrlhf/models/utils.py", "openrlhf/models/loss.py"
# the method of the actor moved from the trainer of one machine to Ray's
_ACTORS = ("openrlhf/trainer/ray/ppo_actor.py", "openrlhf/trainer/ppo_trainer.py")
# two generations of options: names in one piece, then names of nested groups
_COEFFICIENT = ("init_kl_coef", "algo.kl.init_coef")
_IN_LOSS = ("use_kl_loss", "algo.kl.use_loss")
_ESTIMATOR = ("use_kl_estimator_k3", "kl_estimator", "algo.kl.estimator")
_UNBIASED = ("algo.kl.unbiased_gradient",)
_AGGREGATION = ("actor.loss_agg_mode",)
_NEVER = 1e9  # PPO's clip is left out


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


@cache
def _advantages() -> list[Any]:
    """The installed methods that make advantages."""
    given = {"apply_length_penalties": lambda _experiences, _args: None}
    names = ("compute_advantages_and_returns", "get_advantages_and_returns", "get_cumulative_returns")
    openrlhf = find(*known("openrlhf"))
    return [link(openrlhf, _MAKER, f"RemoteExperienceMaker.{name}", given=given) for name in names]


def by(returns: torch.Tensor, *, estimator: str) -> torch.Tensor:
    """`compute_advantages_and_returns`, each row a batch of answers of one token to one prompt."""
    make, given, cumulate = _advantages()
    n = returns.shape[1]
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=n),
        reward=SimpleNamespace(clip_range=None),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
        ),
    )
    maker = SimpleNamespace(
        strategy=SimpleNamespace(args=args),
        advantage_estimator=estimator,
        kl_ctl=SimpleNamespace(value=0.0),
        get_advantages_and_returns=partial(given, None),
        get_cumulative_returns=partial(cumulate, None),
    )

    def one(batch: torch.Tensor) -> torch.Tensor:
        nothing = torch.zeros_like(batch).unsqueeze(1)
        answers = SimpleNamespace(
            rewards=batch, index=range(n), kl=nothing, values=nothing, action_mask=nothing + 1, info={}
        )
        with CastsAsDoubles():
            make(maker, [answers])
        found: torch.Tensor = answers.advantages
        return found.squeeze(1)

    return torch.stack([one(batch) for batch in returns])


def policy(rollout: Rollout, advantages: torch.Tensor) -> torch.Tensor:
    """The installed `PolicyLoss` with its clip, token-mean."""
    count = len(rollout.tokens)
    loss: torch.Tensor = _policy_loss()(
        rollout.logp,
        rollout.sampled_from,
        advantages,
        action_mask=rollout.completion_mask,
        batch_num_tokens=count,
        global_batch_size=count,
    )[0]
    return loss


@cache
def _policy_loss() -> Any:
    return link(find(*known("openrlhf")), _LOSSES, "PolicyLoss")()
