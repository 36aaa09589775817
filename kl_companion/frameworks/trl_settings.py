"""Settings of TRL's GRPO trainer that go with a KL term, and those that do not."""

from __future__ import annotations

from typing import Any

from kl_companion.kl_term import KLTerm
from kl_companion.rollout.vocabularies import token_count


def check_settings(term: KLTerm, args: Any) -> None:
    """Raise ValueError for settings with which beta would not be the coefficient of the term.

    Args:
        term: The KL term.
        args: TRL's `GRPOConfig`, or None for its defaults.
    """
    beta = 0.0 if args is None else args.beta
    if beta == 0:
        raise ValueError(
            f"kl={term.entry.name!r} got beta = {beta}: expected GRPOConfig(beta=...) above 0, because "
            "TRL loads no reference model without it"
        )
    if not term.charges:
        return
    for name, undivided in (("scale_rewards", "none"), ("multi_objective_aggregation", "sum_then_normalize")):
        if getattr(args, name) != undivided:
            raise ValueError(
                f"placement={term.placement!r} got {name}={getattr(args, name)!r}, which divides the "
                "rewards by a standard deviation, so that beta would not be in units of the reward: expected "
                f"{undivided!r}, with which the trainer maximizes E[reward] - beta KL"
            )
    if term.level == "sequence":
        return
    for name, refused in (("loss_type", "vespo"), ("importance_sampling_level", "sequence")):
        if getattr(args, name) == refused:
            raise ValueError(
                f"placement={term.placement!r} at level='token' got {name}={refused!r}, which weights "
                "whole sequences: expected level='sequence'"
            )


def sample_tokens_only(generation_config: Any, model: Any, ref_model: Any, tokenizer: Any) -> None:
    """Keep the sampler of transformers from padding ids that the reference, which has fewer, cannot read.

    vLLM samples as its own settings say.

    Args:
        generation_config: Of the trainer; its ``suppress_tokens`` is extended in place.
        model: The policy.
        ref_model: The reference.
        tokenizer: Of both.
    """
    width, ref_width = (m.config.get_text_config().vocab_size for m in (model, ref_model))
    count = token_count(tokenizer)
    if count is not None and width > ref_width:
        suppressed = {*range(min(count, ref_width), width), *(generation_config.suppress_tokens or ())}
        generation_config.suppress_tokens = sorted(suppressed)
