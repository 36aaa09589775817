"""TRL's GRPO trainer with any estimator of this package as its KL term: one import, one argument.

    from kl_companion.frameworks.trl_trainer import GRPOTrainer  # instead of: from trl import GRPOTrainer

    trainer = GRPOTrainer(model, reward_funcs, args=GRPOConfig(beta=0.01, ...), train_dataset=..., kl="k2")

What the term is comes from `KLTerm`; how strong it is, and what it is measured to, from TRL's own settings:
`beta`, and `sync_ref_model` for an anchor that follows the policy (`ema_anchor` writes those). The policy
loss, its `loss_type`, masks, clipping and gradient accumulation are TRL's code, untouched.

* In the loss the term is aggregated as `loss_type` aggregates the policy's terms. `KLTerm("k3",
  importance="token", ratio="attached")` is TRL's own default, `KLTerm("k3", importance=None)` the same with
  `use_bias_correction_kl=False`.
  TRL divides rewards by a standard deviation by default (`scale_rewards="group"`), so that beta is in units
  of *divided* rewards in the loss. With rewards of 0 and 1 in groups of G that multiplies it by 1/sqrt(G) on
  a prompt that is hardly ever or nearly always solved, and by about 1/2 on one that is solved half the time.
* In the reward the term's value is taken when completions are scored, compared with the mean of the group as
  TRL compares rewards, and subtracted from the advantages. Only `scale_rewards="none"` is accepted: then beta
  is in units of the reward, and with a `loss_type` that weighs all tokens alike (`"dr_grpo"`, `"luspo"`) the
  expected gradient is that of E[reward] - beta KL of sequences, times the (G - 1)/G of a group mean that
  counts the completion itself. Subtracted from rewards that are divided alone it would be beta times
  the spread of the group's rewards, in large groups, and divided with them beta would cancel where rewards
  agree (see `kl_companion.frameworks.worth`).
  PPO's clip acts on the sum, as in every trainer with a KL in the reward.
* Estimators of whole distributions need logits, which TRL's fused head does not give. In the loss the
  policy's forward is then a plain one instead of the fused one, and holds the logits of the completions,
  [batch, seq, vocab]; the reference takes one more forward, without gradient, for every part of a step.
* In the reward a sampled estimator costs one forward of the policy, without gradient, per batch of
  completions (none where TRL has scored them with the policy already: `num_iterations` above 1, vLLM); an
  estimator of whole distributions one of the policy and one of the reference.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch

from kl_companion.estimators.registry import Estimator
from kl_companion.frameworks.trl_settings import check_settings, sample_tokens_only
from kl_companion.kernels.fused import fused_logp, fused_logp_and_entropy
from kl_companion.kl_term import KLTerm, as_term, penalties
from kl_companion.rollout import Rollout, masked
from kl_companion.rollout.vocabularies import common_columns
from kl_companion.token_terms import token_costs, token_terms

KNOWN = "1.16.0"
try:
    with warnings.catch_warnings():  # bars are drawn as text in a notebook without ipywidgets
        warnings.filterwarnings("ignore", message="IProgress not found")
        import trl
        from trl import GRPOTrainer as _Stock
except ModuleNotFoundError as error:
    raise ImportError(
        f"the TRL trainer needs {error.name}, which is not installed: pip install 'kl-companion[trl]' "
        f"(trl {KNOWN} is known to work)",
        name=error.name,
    ) from None

_HOOKS = ("_compute_loss", "_get_per_token_logps_and_entropies", "_generate_and_score_completions")
_lost = [name for name in _HOOKS if not hasattr(_Stock, name)]
if _lost:
    raise ImportError(
        f"trl {trl.__version__} has no GRPOTrainer.{_lost[0]}, through which the KL term is placed: "
        f"pip install 'kl-companion[trl]' 'trl=={KNOWN}' (the version known to work)"
    )
if trl.__version__ != KNOWN:
    warnings.warn(
        f"trl is {trl.__version__}; the KL term was compared with the stock trainer of {KNOWN}", stacklevel=2
    )

# what TRL hands on to models that read more than text
_BESIDES_TEXT = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


def ema_anchor(decay: float, period: int = 1) -> dict[str, Any]:
    """Settings for TRL's `GRPOConfig`: anchor <- decay anchor + (1 - decay) policy, every ``period`` steps.

    The completions of a batch are scored by the anchor as it is when they are drawn.

    Raises:
        ValueError: a decay outside [0, 1) or a period below 1.

    Source: emapg2026, section 4.
    """
    if not 0 <= decay < 1:
        raise ValueError(
            f"decay is {decay}, expected at least 0 and below 1 (a fixed anchor needs no settings)"
        )
    if period < 1:
        raise ValueError(f"period is {period}, expected a whole number of at least 1")
    return {
        "sync_ref_model": True,
        "ref_model_mixup_alpha": round(1 - decay, 15),
        "ref_model_sync_steps": period,
    }


class _Scored(NamedTuple):
    """What the policy's forward inside the loss gave: log-probs [batch, seq], logits [batch, seq, vocab]."""

    logp: torch.Tensor
    logits: torch.Tensor | None


class GRPOTrainer(_Stock):
    """`trl.GRPOTrainer` whose KL term is any registered estimator; see the module's text.

    Args:
        model, reward_funcs, args, others: As TRL's. ``args.beta`` is the coefficient.
        kl: An estimator's name (in the loss, token by token), or a `KLTerm`. None is the stock trainer.

    Raises:
        ValueError: an unknown estimator; ``beta`` 0, with which TRL loads no reference; an estimator of
            whole distributions where there are none (PEFT, whose reference is no model of its own; image
            inputs; a model that returns no logits); a term in the reward where TRL divides the rewards, as it
            does by default; a cost for every token with a ``loss_type`` or ``importance_sampling_level`` that
            knows one advantage per sequence.
    """

    beta: float

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: Any = None,
        *others: Any,
        kl: str | Estimator | KLTerm | None = None,
        **options: Any,
    ) -> None:
        self.kl: Any = None if kl is None else as_term(kl)  # a KLTerm wherever a method below reads it
        self._listening = False
        self._scored: _Scored | None = None
        if self.kl is not None:
            check_settings(self.kl, args)
        super().__init__(model, reward_funcs, args, *others, **options)
        if self.kl is not None and self.kl.needs_logits and self.ref_model is None:
            raise ValueError(
                f"{self.kl.entry.name} needs logits of the reference, which is the policy without its PEFT "
                "adapter here: expected a sampled estimator, or training without PEFT"
            )
        if self.kl is not None and self.ref_model is not None:
            sample_tokens_only(self.generation_config, self.model, self.ref_model, self._tokenizer)

    # -- in the loss ---------------------------------------------------------------------------------------

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        if self.kl is None:
            return super()._compute_loss(model, inputs)
        beta = self.beta
        self.beta = 0.0  # TRL's loss without its KL
        self._listening = self.kl.differentiates
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self.beta, self._listening = beta, False
        scored, self._scored = self._scored, None
        if scored is None:
            return loss
        mask = _mask_of(inputs)
        logits, ref_logits = scored.logits, None
        if logits is not None:
            logits, ref_logits = self._over_tokens(logits, self._reference_logits(inputs))
        behavior = inputs.get("old_per_token_logps")
        x = _on_rows(token_terms, self.kl, inputs, mask, scored.logp, behavior, logits, ref_logits)
        self._log_kl(x, mask)
        return loss + beta * self._aggregated(x, mask, inputs)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        **options: Any,
    ) -> Any:
        """TRL's scores; inside the loss they are kept for the KL term, with logits where it needs them."""
        logits = None
        if self._listening and self.kl.needs_logits:
            out, logits = self._scores_with_logits(model, input_ids, attention_mask, logits_to_keep, options)
        else:
            out = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **options
            )
        if self._listening:
            self._scored = _Scored(out[0], logits)
        return out

    def _scores_with_logits(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        keep: int,
        options: dict[str, Any],
    ) -> tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]:
        """Log-probs, entropies and MoE loss as TRL's fused head gives them, and logits, from one forward."""
        self._check_text_only(options)
        more = {"output_router_logits": True} if options.get("compute_aux_loss") else {}
        output, logits = self._plain_forward(model, input_ids, attention_mask, keep, **more)
        inside, tokens = attention_mask[:, -keep:].bool(), input_ids[:, -keep:]
        logp, entropy = fused_logp_and_entropy(logits, tokens, mask=inside)
        return (logp, entropy, output.aux_loss if more else None), logits

    def _plain_forward(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, keep: int, **more: Any
    ) -> tuple[Any, torch.Tensor]:
        """The model's output, and its logits of the completion at the trainer's temperature."""
        with self.accelerator.autocast():
            output = model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                logits_to_keep=keep + 1,
                use_cache=False,
                **more,
            )
        logits = getattr(output, "logits", None)
        if logits is None:
            raise ValueError(
                f"{self.kl.entry.name} needs logits, and {type(model).__name__} returned none: expected a "
                "sampled estimator such as 'k2', or a model that returns them"
            )
        logits = logits[:, -keep - 1 : -1]
        return output, logits if self.temperature == 1 else logits / self.temperature

    def _check_text_only(self, given: dict[str, Any]) -> None:
        besides = next((name for name in _BESIDES_TEXT if given.get(name) is not None), None)
        if besides is not None:
            raise ValueError(
                f"{self.kl.entry.name} needs logits, which are computed from text alone, and got {besides}: "
                "expected a sampled estimator such as 'k2'"
            )

    def _reference_logits(self, inputs: dict[str, Any]) -> torch.Tensor:
        with torch.no_grad():
            return self._plain_forward(self.ref_model, *_texts(inputs))[1]

    def _over_tokens(
        self, logits: torch.Tensor, ref_logits: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both logits over the same tokens, where the models pad one vocabulary to two widths."""
        return common_columns(logits, ref_logits, self._tokenizer)

    def _aggregated(self, x: torch.Tensor, mask: torch.Tensor, inputs: dict[str, Any]) -> torch.Tensor:
        """One number from [batch, seq], with the weights that `loss_type` gives the policy's tokens."""
        kind, training = self.loss_type, self.model.training
        totals = masked(x, mask).sum(-1)
        if kind in ("dapo", "cispo", "vespo"):  # tokens of all processes and parts of the step
            share = (
                self.current_gradient_accumulation_steps / self.args.steps_per_generation if training else 1.0
            )
            tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
            return totals.sum() / (tokens * share)
        if kind in ("grpo", "sapo"):
            mean = (totals / mask.sum(-1).clamp(min=1)).mean()
        elif kind == "bnpo":
            mean = totals.sum() / mask.sum().clamp(min=1)
        elif kind == "dr_grpo":
            mean = totals.mean() / self.max_completion_length
        elif kind == "luspo":
            mean = totals.mean()
        else:
            raise ValueError(f"loss_type is {kind!r}, expected one that trl {KNOWN} knows")
        return mean / (self.current_gradient_accumulation_steps if training else 1)

    # -- in the reward -------------------------------------------------------------------------------------

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output = super()._generate_and_score_completions(inputs)
        if self.kl is None or not self.kl.charges:
            return output
        mask = _mask_of(output)
        with torch.no_grad():
            costs = self._costs(output, mask)
            self._log_kl(costs, mask)
            penalty = self.beta * self._against_group(penalties(self.kl, costs, mask))
        advantages = output["advantages"]
        output["advantages"] = (advantages if penalty.ndim == 1 else advantages.unsqueeze(1)) - penalty
        return output

    def _costs(self, output: dict[str, Any], mask: torch.Tensor) -> torch.Tensor:
        """The estimate at every token of scored completions, [batch, seq], a part of the batch at a time."""
        ids, attention, keep = _texts(output)
        logp = output.get("old_per_token_logps")
        besides = {name: output[name] for name in _BESIDES_TEXT if name in output}
        size = self.args.per_device_train_batch_size
        if not self.kl.needs_logits:
            if logp is None:
                logp, *_ = self._get_per_token_logps_and_entropies(
                    self.model, ids, attention, keep, batch_size=size, **besides
                )
            return _on_rows(token_costs, self.kl, output, mask, logp)
        self._check_text_only(besides)
        parts = []
        for start in range(0, len(ids), size):
            rows = slice(start, start + size)
            part = {name: output[name][rows] for name in ("completion_ids", "ref_per_token_logps")}
            texts = ids[rows], attention[rows], keep
            scores, logits = self._scores_with_logits(self.model, *texts, {})
            logits, ref_logits = self._over_tokens(logits, self._plain_forward(self.ref_model, *texts)[1])
            parts.append(
                _on_rows(token_costs, self.kl, part, mask[rows], scores[0], None, logits, ref_logits)
            )
        return torch.cat(parts)

    def _against_group(self, x: torch.Tensor) -> torch.Tensor:
        """Minus the mean of the prompt's completions, wherever those are: [batch] or [batch, seq]."""
        size = self.num_generations if self.model.training else self.num_generations_eval
        whole = x if x.ndim == 1 else self.accelerator.pad_across_processes(x, dim=1)
        whole = self.accelerator.gather(whole)
        mean = whole.unflatten(0, (-1, size)).mean(1).repeat_interleave(size, dim=0)
        first = self.accelerator.process_index * len(x)
        own = mean[first : first + len(x)]
        return x - (own if x.ndim == 1 else own[:, : x.shape[1]])

    def _log_kl(self, x: torch.Tensor, mask: torch.Tensor) -> None:
        """TRL's metric "kl": the mean over the tokens of all processes."""
        sums = torch.stack([masked(x.detach(), mask).sum(), mask.sum().to(x.dtype)])
        total, tokens = self.accelerator.reduce(sums, reduction="sum")
        self._metrics["train" if self.model.training else "eval"]["kl"].append(
            (total / tokens.clamp(min=1)).item()
        )


def _mask_of(inputs: dict[str, Any]) -> torch.Tensor:
    """1 on the tokens that the policy wrote, [batch, seq]: not those of tools."""
    mask = inputs["completion_mask"]
    return mask * inputs["tool_mask"] if "tool_mask" in inputs else mask


def _texts(inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Token ids and attention mask of prompt and completion, and the length of the completion."""
    both = [torch.cat([inputs[f"prompt_{x}"], inputs[f"completion_{x}"]], dim=1) for x in ("ids", "mask")]
    return both[0], both[1], inputs["completion_ids"].shape[1]


def _on_rows(
    what: Any,
    term: KLTerm,
    inputs: dict[str, Any],
    mask: torch.Tensor,
    logp: torch.Tensor,
    behavior_logp: torch.Tensor | None = None,
    logits: torch.Tensor | None = None,
    ref_logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """``what(term, rollout)`` on the sequences that have a token, zeros elsewhere, [batch, seq].

    TRL masks a whole completion where it was cut off (`mask_truncated_completions`).
    """
    tokens, ref_logp = inputs["completion_ids"], inputs["ref_per_token_logps"]
    if ref_logits is not None:  # the anchor may have moved since TRL scored the completions
        ref_logp = fused_logp(ref_logits, tokens, mask=mask).detach().to(logp.dtype)
    rows = mask.any(-1)
    if not rows.any():
        return logp * 0.0
    given = {
        "tokens": tokens,
        "completion_mask": mask,
        "logp": logp,
        "ref_logp": ref_logp,
        "behavior_logp": behavior_logp,
        "logits": logits,
        "ref_logits": ref_logits,
    }
    chosen: Any = {name: x if x is None or rows.all() else x[rows] for name, x in given.items()}
    x = what(term, Rollout(**chosen))
    return x if rows.all() else x.new_zeros(mask.shape).index_put((rows,), x)
