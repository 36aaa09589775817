"""TRL's trainers as they are shipped, and subclasses with one mistake each, marked ``# fault``.

All are made around the tiny model of `kl_companion.frameworks.trl_example`; the doctor would take a real one
in the same way. TRL is imported when the first of them is made.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kl_book.faults.steps import k3_of
from kl_companion.frameworks import trl_example

COPIED: dict[str, Any] = {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 1.0}


def made(kind: str, change: Callable[[type], type] | None = None, **settings: Any) -> Any:
    """A trainer of TRL around a tiny model.

    Args:
        kind: ``"GRPO"``, ``"RLOO"``, ``"Distillation"`` or ``"GKD"``.
        change: Makes a subclass of the trainer's class.
        **settings: Of its configuration; TRL's defaults otherwise, but for what a tiny model on a CPU needs.
    """
    import datasets
    import transformers
    import trl

    with warnings.catch_warnings(action="ignore"):  # what TRL says of experimental trainers is known
        from trl.experimental import gkd

    home = gkd if kind == "GKD" else trl
    trainer, config = (getattr(home, f"{kind}{what}") for what in ("Trainer", "Config"))
    needed = {"use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False}
    with tempfile.TemporaryDirectory() as name, trl_example.quiet():
        start = trl_example.save_start(Path(name) / "start")
        options: dict[str, Any] = {"model": str(start)}
        if kind in ("GRPO", "RLOO"):
            options["reward_funcs"] = trl_example.reward
        else:
            options["teacher_model"] = str(start)
        if kind == "GKD":
            tokenizer = transformers.AutoTokenizer.from_pretrained(start)
            tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
            options["processing_class"] = tokenizer
            turns = [{"role": "user", "content": "12"}, {"role": "assistant", "content": "3"}]
            data: dict[str, list[Any]] = {"messages": [turns]}
        else:
            data = {"prompt": list(trl_example.PROMPTS)}
        return (trainer if change is None else change(trainer))(
            args=config(output_dir=str(Path(name) / "out"), **{**needed, **settings}),
            train_dataset=datasets.Dataset.from_dict(data),
            **options,
        )


def policy_as_reference() -> Any:
    """To save memory."""
    trainer = made("GRPO", beta=0.04)
    trainer.ref_model = trainer.model
    return trainer


def without_temperature(stock: Any) -> Any:
    """Log-probs of its own, without the temperature that samples are drawn with."""

    class WithoutTemperature(stock):
        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *_: Any, **__: Any
        ) -> Any:
            logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
            logp = logits[:, -logits_to_keep - 1 : -1].log_softmax(-1)  # fault
            chosen = logp.gather(-1, input_ids[:, -logits_to_keep:].unsqueeze(-1)).squeeze(-1)
            return chosen, -(logp.exp() * logp).sum(-1), None

    return WithoutTemperature


def own_loss(stock: Any, terms: Callable[..., torch.Tensor]) -> Any:
    """A subclass that writes its own loss, from log-probs that TRL computes."""

    class OwnLoss(stock):
        def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
            attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
            keep = inputs["completion_ids"].shape[1]
            logp, _, _ = self._get_per_token_logps_and_entropies(model, ids, attention, keep)
            return terms(self, logp, inputs)

    return OwnLoss


def times_advantage(stock: Any) -> Any:
    """The KL inside the bracket that advantages multiply."""

    def terms(trainer: Any, logp: torch.Tensor, inputs: Any) -> torch.Tensor:
        kl = k3_of(logp, inputs["ref_per_token_logps"])
        ratio = torch.exp(logp - logp.detach())
        x = -(ratio - trainer.beta * kl) * inputs["advantages"].unsqueeze(1)  # fault
        return (x * inputs["completion_mask"]).sum(-1).mean() / trainer.current_gradient_accumulation_steps

    return own_loss(stock, terms)


def cut_mask(stock: Any) -> Any:
    """A mask that was shifted for labels, on log-probs that are shifted already."""

    def terms(trainer: Any, logp: torch.Tensor, inputs: Any) -> torch.Tensor:
        kl = k3_of(logp, inputs["ref_per_token_logps"])
        x = -torch.exp(logp - logp.detach()) * inputs["advantages"].unsqueeze(1) + trainer.beta * kl
        mask = torch.nn.functional.pad(inputs["completion_mask"][:, 1:], (0, 1))  # fault
        return (x * mask).sum(-1).mean() / trainer.current_gradient_accumulation_steps

    return own_loss(stock, terms)


def not_divided(stock: Any) -> Any:
    """Accumulated and not divided by the number of micro-batches."""

    def terms(trainer: Any, logp: torch.Tensor, inputs: Any) -> torch.Tensor:
        kl = k3_of(logp, inputs["ref_per_token_logps"])
        x = -torch.exp(logp - logp.detach()) * inputs["advantages"].unsqueeze(1) + trainer.beta * kl
        return (x * inputs["completion_mask"]).sum(-1).mean()  # fault

    return own_loss(stock, terms)


def always_new(stock: Any) -> Any:
    """Several updates on a batch, with the ratio to the policy itself."""

    def terms(trainer: Any, logp: torch.Tensor, inputs: Any) -> torch.Tensor:
        kl = k3_of(logp, inputs["ref_per_token_logps"])
        ratio = torch.exp(logp - logp.detach())  # fault
        x = -ratio * inputs["advantages"].unsqueeze(1) + trainer.beta * kl
        return (x * inputs["completion_mask"]).sum(-1).mean() / trainer.current_gradient_accumulation_steps

    return own_loss(stock, terms)


def sign_of_kl(stock: Any) -> Any:
    """RLOO, with the KL of the reference from the policy taken off the reward."""

    class SignOfKL(stock):
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            self.beta: float = -self.beta  # fault
            try:
                return super()._generate_and_score_completions(inputs)
            finally:
                self.beta = -self.beta

    return SignOfKL
