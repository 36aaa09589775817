"""In the form of ROLL: a worker's loss of logits and a batch of full sequences; TOPR's losses."""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F


@dataclass
class DataProto:
    batch: dict[str, torch.Tensor] = field(default_factory=dict)


def agg_loss(loss_mat: torch.Tensor, loss_mask: torch.Tensor, loss_agg_mode: str) -> torch.Tensor:
    if loss_agg_mode == "token-mean":
        return (loss_mat * loss_mask).sum() / loss_mask.sum()
    if loss_agg_mode == "seq-mean-token-sum":
        return (loss_mat * loss_mask).sum(-1).mean()
    return ((loss_mat * loss_mask).sum(-1) / loss_mask.sum(-1)).mean()


def compute_approx_kl(
    log_probs: torch.Tensor,
    log_probs_base: torch.Tensor,
    action_mask: torch.Tensor | None = None,
    kl_penalty: str = "kl",
) -> torch.Tensor:
    log_ratio = log_probs - log_probs_base
    if kl_penalty == "abs":
        log_ratio = log_ratio.abs()
    elif kl_penalty == "mse":
        log_ratio = 0.5 * log_ratio.square()
    elif kl_penalty == "k3":
        kl = -log_ratio
        log_ratio = torch.clamp(kl.exp() - kl - 1, min=-10, max=10)
    elif kl_penalty == "full":
        log_ratio = F.kl_div(log_probs_base, log_probs, reduction="none", log_target=True).sum(dim=-1)
    return log_ratio if action_mask is None else log_ratio * action_mask


class ActorWorker:
    def __init__(self, kl_loss_coef: float = 0.2, pg_clip: float = 0.2, loss_agg_mode="seq-mean-token-sum"):
        self.kl_loss_coef = kl_loss_coef
        self.pg_clip = pg_clip
        self.loss_agg_mode = loss_agg_mode

    def op_compute_log_probs(self, logits, input_ids, attention_mask):
        labels = input_ids[:, 1:].masked_fill(attention_mask[:, 1:] == 0, 0)
        return logits[:, :-1].log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    def loss_func(self, data: DataProto, output_tensor: torch.Tensor):
        response_mask = data.batch["response_mask"][:, 1:].long()
        old_log_probs, ref_log_probs = data.batch["old_log_probs"], data.batch["ref_log_probs"]
        advantages = data.batch["advantages"]
        log_probs = self.op_compute_log_probs(
            output_tensor, data.batch["input_ids"], data.batch["attention_mask"]
        )
        ratio = (log_probs - old_log_probs).exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.pg_clip, 1 + self.pg_clip) * advantages
        pg_loss = agg_loss(-torch.min(surr1, surr2), response_mask, self.loss_agg_mode)
        kl = compute_approx_kl(log_probs, ref_log_probs, response_mask, kl_penalty="k3")
        kl_loss = agg_loss(kl, response_mask, self.loss_agg_mode)
        total_loss = pg_loss + kl_loss * self.kl_loss_coef
        return total_loss, {
            "actor/kl_loss": kl_loss.detach().item(),
            "actor/pg_loss": pg_loss.detach().item(),
        }


def full_kl_loss(logits, ref_logits, response_mask):
    kl = compute_approx_kl(logits.log_softmax(-1), ref_logits.log_softmax(-1), response_mask, "full")
    return kl.sum() / response_mask.sum()


def topr_loss(log_probs, old_log_probs, scores, response_mask):
    positive = (scores > 0).to(log_probs.dtype)
    seq_log_probs = (log_probs * response_mask).sum(-1)
    seq_ratio = (seq_log_probs - (old_log_probs * response_mask).sum(-1)).exp()
    weight = positive + (1 - positive) * seq_ratio.clamp(0.0, 1.0).detach()
    return -(weight * scores * seq_log_probs).mean()
