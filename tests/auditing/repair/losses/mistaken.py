# ruff: noqa: W191, E501
"""Losses as trainers write them, each with a mistake in its KL term; what is right stands above each.

x is logp - ref_logp. The gradient of the reverse KL, token by token, is that of x**2 / 2 on fresh samples.
"""

import functools
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from frozen_helpers import low_var_kl, masked_mean, squared_kl


def policy(logp, rewards, mask):
    return -(logp * rewards[:, None] * mask).sum(-1).mean()


# reverse_kl: x**2 / 2 is right and has no gradient, since it is computed under no_grad: the block goes
def in_a_block(logp, ref_logp, rewards, mask, beta=0.05):
    with torch.no_grad():
        # a comment that stays
        kl = logp - ref_logp
        kl = 0.5 * kl**2
    return policy(logp, rewards, mask) + beta * (kl * mask).sum(-1).mean()


# reverse_kl: without the block it is K1, whose gradient is zero on average: both are changed
def k1_in_a_block(logp, ref_logp, rewards, mask, beta=0.05):
    with torch.no_grad():
        kl = logp - ref_logp
    return policy(logp, rewards, mask) + beta * (kl * mask).sum(-1).mean()


# reverse_kl: .detach() where it is added goes
def detached_where_added(logp, ref_logp, rewards, mask, kl_coef: float = 0.02):
    kl = 0.5 * (logp - ref_logp) ** 2
    kl = (kl * mask).sum(-1).mean()
    loss = policy(logp, rewards, mask)
    loss += kl_coef * kl.detach()
    return loss


# reverse_kl: .detach() goes and K1 becomes K2
def detached_k1(logp, ref_logp, rewards, mask, beta=0.01):
    kl = logp - ref_logp
    kl = (kl * mask).sum(-1).mean()
    return policy(logp, rewards, mask) + beta * kl.detach()


# reverse_kl: .item() goes
def as_a_number(logp, ref_logp, rewards, mask, kl_coef=0.02):
    kl = (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean()
    return policy(logp, rewards, mask) + kl_coef * kl.item()


# reverse_kl: torch.tensor(kl) is a copy without a gradient
def copied(logp, ref_logp, rewards, mask, kl_coef=0.02):
    kl = (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean()
    return policy(logp, rewards, mask) + kl_coef * torch.tensor(kl)


# reverse_kl: .data goes
def of_data(logp, ref_logp, rewards, mask):
    kl = 0.5 * (logp.data - ref_logp) ** 2
    return policy(logp, rewards, mask) + 0.1 * (kl * mask).sum(-1).mean()


@torch.no_grad()
def inner(a, b):
    return a - b


@torch.inference_mode()
def outer(a, b):
    return 0.5 * inner(a, b).pow(2)


# reverse_kl: both decorators go
def two_helpers(logp, ref_logp, rewards, mask, beta=0.1):
    return policy(logp, rewards, mask) + beta * masked_mean(outer(logp, ref_logp), mask)


@torch.no_grad()
def frozen_k3(log_probs, log_probs_base):
    return (log_probs_base - log_probs).exp() - (log_probs_base - log_probs) - 1


# reverse_kl: without no_grad it is K3, the forward KL: both are changed, and the mean over answers stays
def frozen_k3_of_answers(logp, ref_logp, rewards, mask, beta=0.001):
    kl = frozen_k3(logp, ref_logp)
    kl = ((kl * mask).sum(-1) / mask.sum(-1)).mean()
    return policy(logp, rewards, mask) + beta * kl


# reverse_kl: the decorator stands in the other file
def imported(logp, ref_logp, rewards, mask, beta=0.1):
    return policy(logp, rewards, mask) + beta * masked_mean(squared_kl(logp, ref_logp), mask)


# reverse_kl: the helper may be used by others: the call is replaced
def imported_k3(logp, ref_logp, rewards, mask, beta=0.1):
    return policy(logp, rewards, mask) + beta * masked_mean(low_var_kl(logp, ref_logp), mask)


def logged(fn=None, *, name="x"):
    if fn is None:
        return functools.partial(logged, name=name)

    @functools.wraps(fn)
    def called(*args, **kwargs):
        return fn(*args, **kwargs)

    return called


@torch.no_grad()
@logged(name="kl")
def under_another(a, b):
    return 0.5 * (a - b) ** 2


# reverse_kl: no_grad goes, the other decorator stays
@logged(name="loss")
def two_decorators(logp, ref_logp, rewards, mask, beta=0.3):
    return policy(logp, rewards, mask) + beta * masked_mean(under_another(logp, ref_logp), mask)


class Trainer:
    def __init__(self, beta: float = 0.04):
        self.beta = beta

    @staticmethod
    @torch.no_grad()
    def kl(a, b):
        return 0.5 * (a - b) ** 2

    # reverse_kl: no_grad goes, staticmethod stays
    def frozen(self, logp, ref_logp, rewards, mask):
        return policy(logp, rewards, mask) + self.beta * masked_mean(self.kl(logp, ref_logp), mask)

    # reverse_kl: K3 becomes K2
    def compute(self, logp, ref_logp, mask):
        kl = (ref_logp - logp).exp() - 1 - (ref_logp - logp)
        return self.beta * masked_mean(kl, mask)


# reverse_kl: autocast stays, no_grad goes
class Penalty(nn.Module):
    def __init__(self, beta: float = 0.1):
        super().__init__()
        self.beta = beta

    def per_token(self, a, b):
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            kl = (a - b).square() / 2
        return kl

    def forward(self, logp, ref_logp, rewards, mask):
        return policy(logp, rewards, mask) + masked_mean(self.beta * self.per_token(logp, ref_logp), mask)


# reverse_kl: K2 of old samples needs the ratio of policy to sampler, detached
def ppo(logp, old_logp, ref_logp, rewards, mask, beta=0.04):
    ratio = torch.exp(logp - old_logp)
    pg = -torch.min(ratio * rewards[:, None], ratio.clamp(0.8, 1.2) * rewards[:, None])
    kl = torch.exp(ref_logp - logp) - (ref_logp - logp) - 1
    return masked_mean(pg + beta * kl, mask)


# reverse_kl: division by the padded length stays
def over_padded(logp, ref_logp, response_mask, kl_loss_coef=0.001):
    kl = ref_logp - logp
    return ((torch.exp(kl) - kl - 1) * response_mask).sum() / response_mask.shape[-1] * kl_loss_coef


# reverse_kl: the mean over each answer stays
def per_answer_k1(logp, ref_logp, mask, beta=0.1):
    return beta * (((logp - ref_logp) * mask).sum(-1) / mask.sum(-1)).mean()


# reverse_kl: pg - beta * K2 pushes the policy away: a plus
def minus_k2(logp, ref_logp, rewards, mask, beta=0.1):
    kl = ((logp - ref_logp) ** 2 / 2 * mask).sum(-1).mean()
    return policy(logp, rewards, mask) - beta * kl


# reverse_kl: a plus, and K2
def minus_k3(logp, ref_logp, rewards, mask, beta=0.1):
    d = ref_logp - logp
    kl = ((d.exp() - 1 - d) * mask).sum(-1).mean()
    return policy(logp, rewards, mask) - beta * kl


# sequence_reverse_kl: K1 is subtracted from a reward
def added_to_the_reward(logp, ref_logp, rewards, mask, beta=0.1):
    kl = (logp - ref_logp).detach()
    shaped = rewards + beta * (kl * mask).sum(-1)
    return -((logp * mask).sum(-1) * shaped).mean()


# sequence_reverse_kl: in the reward it is K1
def k3_in_the_reward(logp, ref_logp, rewards, mask, beta=0.1):
    d = ref_logp - logp
    kl = (d.exp() - d - 1).detach()
    shaped = rewards - beta * (kl * mask).sum(-1)
    return -((logp * mask).sum(-1) * shaped).mean()


# reverse_kl: the policy loss lacks its minus
def rewards_minimized(logp, ref_logp, rewards, mask, beta=0.1):
    pg = (logp * rewards[:, None] * mask).sum(-1).mean()
    return pg + beta * (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean()


# forward_kl: K2 has the gradient of the reverse KL; K3, exp(-x) - 1 + x, that of the forward KL
def forward_kl_by_k2(logp, ref_logp, mask):
    return (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean()


# reverse_kl: kl_div(a, b) is the KL from b to a
def kl_div_exchanged(logits, ref_logits, mask):
    kl = F.kl_div(logits.log_softmax(-1), ref_logits.softmax(-1), reduction="none").sum(-1)
    return (kl * mask).sum() / mask.sum()


# reverse_kl: the same, of log-probs
def kl_div_of_logs(logits, ref_logits, mask):
    p, q = F.log_softmax(logits, -1), F.log_softmax(ref_logits, -1)
    kl = F.kl_div(p, q, log_target=True, reduction="none").sum(-1)
    return (kl * mask).sum() / mask.sum()


# reverse_kl: the code has K2
def by_option(logp, ref_logp, mask, beta=0.1, kl_type="k3"):
    d = logp - ref_logp
    if kl_type == "k1":
        kl = d
    elif kl_type in ("k2", "mse"):
        kl = 0.5 * d.square()
    else:
        kl = (-d).exp() - 1 + d
    return beta * (kl * mask).sum(-1).mean()


@dataclass
class Config:
    beta: float = 0.1
    kl_estimator: str = "k1"


# reverse_kl: a field of its options
class WithConfig(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config

    def forward(self, logp, ref_logp, mask):
        d = logp - ref_logp
        match self.config.kl_estimator:
            case "k1":
                kl = d
            case "k2":
                kl = 0.5 * d * d
            case _:
                kl = (-d).exp() - 1 + d
        return self.config.beta * (kl * mask).sum(-1).mean()


def approx_kl(lp, rp, kl_estimator="k3"):
    if kl_estimator == "k1":
        return lp - rp
    if kl_estimator == "k2":
        return (lp - rp) ** 2 / 2
    return (rp - lp).exp() - 1 - (rp - lp)


# reverse_kl: another text in the call
def by_argument(logp, ref_logp, mask, beta=0.2):
    return beta * (approx_kl(logp, ref_logp, kl_estimator="k1") * mask).sum(-1).mean()


# reverse_kl: an argument that was left at its default
def by_default(logp, ref_logp, mask, beta=0.2):
    return beta * (approx_kl(logp, ref_logp) * mask).sum(-1).mean()


def k3_of(log_ratio):
    return log_ratio.exp() - 1 - log_ratio


# reverse_kl: in the helper, which nothing else uses, in its own name
def of_log_ratios(logp, ref_logp, mask):
    return (k3_of(ref_logp - logp) * mask).sum(-1).mean()


def shared_k3(a, b):
    return (b - a).exp() - 1 - (b - a)


# reverse_kl: at the call, because ``monitored`` uses the helper too
def of_a_shared_helper(logp, ref_logp, mask):
    kl = shared_k3(logp, ref_logp)
    return (kl * mask).sum(-1).mean()


def monitored(logp, ref_logp):
    return shared_k3(logp, ref_logp).mean()


# reverse_kl: in each micro-batch
def in_micro_batches(logp, ref_logp, mask, beta=0.1):
    loss = 0.0
    for lp, rp, m in zip(logp.split(1), ref_logp.split(1), mask.split(1), strict=True):
        kl = (rp - lp).exp() - 1 - (rp - lp)
        loss += beta * (kl * m).sum() / len(logp)
    return loss


# reverse_kl: the mask is multiplied in place, afterwards
def in_place(logp, ref_logp, mask):
    kl = ref_logp - logp
    kl = kl.exp() - kl - 1
    kl.mul_(mask)
    return kl.sum(-1).mean()


# reverse_kl: an expression over several lines, names in Greek, and the same line twice
def over_lines(logp: torch.Tensor, ref_logp: torch.Tensor, mask: torch.Tensor, beta: float = 0.5):
    δ: torch.Tensor = (
        ref_logp
        - logp
    )
    label = f"kl of {δ.shape} {1 + 1}"
    kl = δ.exp() - 1 - δ
    metric = (label, kl.detach().mean())
    # the loss itself
    kl = δ.exp() - 1 - δ
    return beta * (kl * mask).sum(-1).mean() + 0.0 * metric[1]


def nested(logp, ref_logp, mask):
    def k(a, b):
        d = b - a
        return d.exp() - 1 - d

    return (k(logp, ref_logp) * mask).sum(-1).mean()


def made_with(beta):
    def loss(logp, ref_logp, mask):
        kl = (ref_logp - logp).exp() - 1 - (ref_logp - logp)
        return beta * masked_mean(kl, mask)

    return loss


# reverse_kl: a function that closes over beta
made = made_with(0.25)


# reverse_kl: a function of one line
def on_one_line(logp, ref_logp, mask): return (((ref_logp - logp).exp() - 1 - (ref_logp - logp)) * mask).sum(-1).mean()


# reverse_kl: K1 where tabs indent
def with_tabs(logp, ref_logp, mask):
	kl = logp - ref_logp
	return (kl * mask).sum(-1).mean()
