"""A language model and a trainer with the few attributes that the doctor reads, without transformers."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn


class Tokenizer:
    """Fifteen plain tokens, padding and the end."""

    eos_token_id, pad_token_id, all_special_ids = 2, 0, (0, 1, 2)

    def __len__(self) -> int:
        return 18


class Blocks(nn.Module):
    """An embedding in the place of a transformer's blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(18, 3)

    def forward(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
        """Hidden states."""
        return SimpleNamespace(last_hidden_state=self.embed_tokens(input_ids))


class Model(nn.Module):
    """Blocks, an output layer, and a scale between them that is the model's own code."""

    base_model_prefix = "transformer"

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.transformer, self.lm_head = Blocks(), nn.Linear(3, 18)
        self.dropout, self.scale = nn.Dropout(0.0), scale

    def get_output_embeddings(self) -> nn.Module:
        """The output layer."""
        return self.lm_head

    def set_output_embeddings(self, head: nn.Module) -> None:
        """Another one."""
        self.lm_head = head

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        """Logits."""
        hidden = self.transformer(input_ids, attention_mask=attention_mask).last_hidden_state
        return SimpleNamespace(logits=self.lm_head(self.dropout(hidden)) * self.scale)


class Trainer:
    """REINFORCE with K2 in the loss in the form of TRL's trainers: generate, score, compute the loss.

    Args:
        ref_model: The reference; None for the policy itself.
        **settings: Of its arguments.
    """

    def __init__(self, ref_model: Any = None, **settings: Any) -> None:
        self.model = Model()
        self.ref_model = self.model if ref_model is None else ref_model
        self.processing_class = Tokenizer()
        given = {"gradient_accumulation_steps": 1, "steps_per_generation": 1, "top_p": 1.0, "top_k": 0}
        self.args = SimpleNamespace(
            **{**given, "temperature": 1.0, "per_device_train_batch_size": 2, **settings}
        )
        self.accelerator = SimpleNamespace(unwrap_model=lambda x: x)
        self.state = SimpleNamespace(num_input_tokens_seen=5)
        self.reward_weights, self.reward_funcs = torch.tensor([2.0]), [None]
        self.num_generations, self.num_iterations, self.beta, self.loss_type = 2, 1, 0.5, "grpo"
        self._metrics: dict[str, list[float]] = {"train": [1.0]}
        self.generated = 0

    def _generate(self, prompts: Any) -> Any:
        ids, _, _ = self._tokenize_prompts(prompts)
        return ids, self._generate_single_turn(ids)

    def _tokenize_prompts(self, prompts: Any) -> Any:
        raise NotImplementedError("the doctor replaces it")

    def _generate_single_turn(self, ids: Any) -> Any:
        raise NotImplementedError("the doctor replaces it")

    def _calculate_rewards(self, *_: Any) -> Any:
        raise NotImplementedError("the doctor replaces it")

    def log_probs(self, model: Any, inputs: Any) -> torch.Tensor:
        """Of the completion's tokens."""
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        logits = model(ids, mask).logits[:, inputs["prompt_ids"].shape[1] - 1 : -1] / self.args.temperature
        return logits.log_softmax(-1).gather(-1, inputs["completion_ids"].unsqueeze(-1)).squeeze(-1)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        self.state.num_input_tokens_seen += 100
        self._metrics["train"].append(2.0)
        prompts, answers = self._generate([x["prompt"] for x in inputs])
        width, longest = max(map(len, prompts)), max(map(len, answers))
        rewards = (self._calculate_rewards() * self.reward_weights).sum(-1)
        scored = {
            "prompt_ids": torch.tensor([[0] * (width - len(x)) + x for x in prompts]),
            "prompt_mask": torch.tensor([[0] * (width - len(x)) + [1] * len(x) for x in prompts]),
            "completion_ids": torch.tensor([x + [0] * (longest - len(x)) for x in answers]),
            "completion_mask": torch.tensor([[1] * len(x) + [0] * (longest - len(x)) for x in answers]),
            "advantages": rewards - rewards.mean(),
        }
        with torch.no_grad():
            scored["old_per_token_logps"] = self.log_probs(self.model, scored)
            scored["ref_per_token_logps"] = self.log_probs(self.ref_model, scored)
        return scored

    def compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        """As trainers of transformers have it."""
        assert model.training
        return self._compute_loss(model, inputs)

    def _compute_loss(self, model: Any, inputs: Any) -> torch.Tensor:
        with self.accelerator.autocast():
            logp = self.log_probs(model, inputs)
        ratio = torch.exp(logp - inputs["old_per_token_logps"])
        kl = 0.5 * (logp - inputs["ref_per_token_logps"]) ** 2
        terms = (self.beta * kl - ratio * inputs["advantages"].unsqueeze(1)) * inputs["completion_mask"]
        return terms.sum(-1).mean() / self.current_gradient_accumulation_steps  # type: ignore[attr-defined]


def made(**settings: Any) -> Trainer:
    """A trainer with a reference of its own, ready for training."""
    trainer = Trainer(Model(), **settings)
    trainer.accelerator.autocast = nullcontext
    trainer.current_gradient_accumulation_steps = 1  # type: ignore[attr-defined]
    return trainer
