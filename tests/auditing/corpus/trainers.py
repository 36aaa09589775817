"""Losses of trainers that hold their models, methods without their class, and heads of a real vocabulary."""

import copy

import torch
import torch.nn.functional as F


class OnlineTrainer:
    def __init__(self, model, config, lr=1e-6):
        self.policy = model
        self.reference = copy.deepcopy(model).eval().requires_grad_(False)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.device = next(model.parameters()).device
        self.config = config

    def logps(self, model, batch):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
        picked = batch["input_ids"][:, 1:, None].to(self.device)
        return F.log_softmax(logits, -1).gather(-1, picked).squeeze(-1)

    def compute_loss(self, batch):
        mask = batch["completion_mask"][:, 1:].to(self.device)
        logps = self.logps(self.policy, batch)
        with torch.no_grad():
            ref_logps = self.logps(self.reference, batch)
        surrogate = torch.exp(logps - logps.detach()) * batch["advantages"].unsqueeze(-1)
        penalty = 0.5 * (logps - ref_logps) ** 2
        return ((self.config.kl_weight * penalty - surrogate) * mask).sum(-1).mean()


def loss_of_minibatch(self, batch):
    inside = batch["response_mask"]
    charge = self.kl_ctl.value * (batch["old_logprobs"] - batch["ref_logprobs"])
    to_go = (-charge * inside).flip(-1).cumsum(-1).flip(-1) + batch["rewards"].unsqueeze(-1)
    ratio = (batch["logprobs"] - batch["old_logprobs"]).exp()
    self.logger.log(to_go.mean())
    return -(ratio * to_go * inside).sum(-1).mean()


class LikeliestOfTheTeacher(torch.nn.Module):
    def __init__(self, k=64):
        super().__init__()
        self.k = k

    def forward(self, student_logits, teacher_logits, loss_mask):
        teacher, where = F.log_softmax(teacher_logits, -1).topk(self.k, -1)
        student = F.log_softmax(student_logits, -1).gather(-1, where)
        per_token = (teacher.exp() * (teacher - student)).sum(-1)
        return (per_token * loss_mask).sum(-1).mean()
