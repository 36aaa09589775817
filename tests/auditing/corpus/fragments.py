"""Losses that call what stands in other files: methods, globals of a script, adapters, tokenizers."""

# ruff: noqa: F821

import torch
import torch.nn.functional as F
from torch.distributions import Categorical, kl_divergence


class GroupTrainer:
    def compute_loss(self, model, inputs, return_outputs=False):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        mask = inputs["completion_mask"]
        logps = self._get_per_token_logps(model, ids, mask.size(1))
        with torch.no_grad():
            ref_logps = self._get_per_token_logps(self.ref_model, ids, mask.size(1)).detach()
        gap = ref_logps - logps
        surrogate = (logps - logps.detach()).exp() * inputs["advantages"].unsqueeze(1)
        loss = ((self.beta * (gap.exp() - gap - 1) - surrogate) * mask).sum(1).mean()
        self._metrics["kl"].append(self.accelerator.gather_for_metrics(gap.detach()).mean().item())
        return loss


def loss_of_buffer(data):
    obs, act, adv, old = data["obs_buf"], data["act_buf"], data["adv_buf"], data["logp_buf"].to(device)
    _, logp = ac.pi(obs, act)
    ratio = torch.exp(logp - old)
    inside = data["mask_buf"]
    clipped = torch.clamp(ratio, 1 - clip_ratio, 1 + clip_ratio) * adv.unsqueeze(-1)
    return -(torch.min(ratio * adv.unsqueeze(-1), clipped) * inside).sum(-1).mean()


def engine_step(engine, batch):
    start, ids = batch["prompt_len"], batch["inputs"].to(engine.device)
    logits = engine(ids).logits[:, :-1]
    logps = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)[:, start - 1 :]
    half = 0.5 * (logps - batch["ref_logps"]) ** 2
    real = (ids[:, start:] != tokenizer.pad_token_id).int()
    return (train_config.beta * half * real).sum(-1).mean()


def adapter_kl(self, model, inputs, outputs):
    with torch.inference_mode():
        model.module.set_adapter(self.args.ref_adapter_name)
        reference = model.module(**inputs)
        model.module.set_adapter("default")
    inside = inputs.get("labels")[..., 1:] != -100
    own = Categorical(logits=outputs.logits[..., :-1, :])
    each = kl_divergence(own, Categorical(logits=reference.logits[..., :-1, :]))
    return (each * inside).sum(-1).mean()


def soft_and_hard(student_logits, teacher_logits, labels, temperature=2.0, alpha=0.5):
    soft = F.kl_div(
        F.log_softmax(student_logits / temperature, dim=1),
        F.softmax(teacher_logits / temperature, dim=1),
        reduction="batchmean",
    )
    return alpha * soft * temperature**2 + (1 - alpha) * F.cross_entropy(student_logits, labels)


class PenaltyAgent:
    def update(self, states, actions, log_probs_old, old_probs, advantages):
        probs = self.policy_net(states)
        log_probs = torch.log(probs.gather(1, actions.unsqueeze(1))).squeeze()
        ratio = torch.exp(log_probs - log_probs_old)
        kl = (old_probs * (torch.log(old_probs + EPS) - torch.log(probs + EPS))).sum(dim=1).mean()
        return -(ratio * advantages).mean() + self.kl_coef * kl


def one_logit_more(logits, input_ids, ref_logp, advantages, completion_mask, beta=0.5):
    logits = logits[:, :-1]
    ids = input_ids[:, -logits.size(1) :]
    logp = logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    charge = advantages.unsqueeze(-1) - beta * (logp - ref_logp).detach()
    return -(logp * charge * completion_mask).sum(-1).mean()


class Likelihoods:
    def loss_fn(self, batch):
        logps = self.get_batch_logps(batch["logits"], batch["input_ids"], batch["response_mask"])
        charge = self.args.kl_coef * (logps - batch["ref_logps"]).detach()
        return ((charge - batch["advantages"].unsqueeze(-1)) * logps * batch["response_mask"]).sum(-1).mean()


def items_of_a_batch(model, batch):
    batch = {name: x.to("cpu") for name, x in batch.items()}
    logits = model(**batch).logits
    logp = logits.log_softmax(-1).gather(-1, batch["labels"].clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return (0.5 * (logp - batch["ref_logps"]) ** 2 * batch["loss_mask"]).sum(-1).mean()
