"""Sums over heads of likeliest tokens, and over whole vocabularies, as formulas; [batch, seq]."""

from __future__ import annotations

from typing import Literal

import torch

from kl_companion.estimators.registry import get_estimator
from kl_companion.rollout import Rollout

__all__ = [
    "exact_head_and_sampled_tail",
    "jensen_shannon",
    "mixed_head",
    "policy_head_and_rest",
    "reference_head",
    "sampler_head",
    "student_and_teacher_heads",
]
_LEAST = 1e-8  # of a probability whose logarithm is taken


def _sampler_logp_all(rollout: Rollout) -> torch.Tensor:
    """Log-probs of the policy that sampled, [batch, seq, vocab]; of the policy itself on-policy."""
    return rollout.logp_all if rollout.behavior_logits is None else rollout.behavior_logp_all


def exact_head_and_sampled_tail(
    rollout: Rollout, *, direction: Literal["reverse", "forward"], k: int, kl_iw: bool
) -> torch.Tensor:
    """EMA-PG's `compute_memory_efficient_kl`: an exact head, and a sampled tail outside of it.

    The head is a sum without the constant that makes a Bregman term of it, the tail an estimator whose
    gradient drops that constant. The head of the reverse KL is the sampler's, that of the forward KL the
    reference's. ``kl_iw`` multiplies the tail by the detached ratio to the sampler.
    """
    reverse = direction == "reverse"
    likeliest = _sampler_logp_all(rollout) if reverse else rollout.ref_logp_all
    index = likeliest.detach().topk(k, dim=-1).indices
    logp, ref_logp = rollout.logp_all.gather(-1, index), rollout.ref_logp_all.gather(-1, index)
    head = logp.exp() * (logp - ref_logp) if reverse else ref_logp.exp() * (ref_logp - logp)
    tail = get_estimator("k4" if reverse else "k5").fn(rollout.logp, rollout.ref_logp)
    outside = (index != rollout.tokens.unsqueeze(-1)).all(-1)
    weight = (rollout.logp - rollout.sampled_from).detach().exp() if kl_iw else torch.ones_like(tail)
    return head.sum(-1) + torch.where(outside, weight * tail, 0.0)


def reference_head(rollout: Rollout, *, k: int, ghost: bool = False) -> torch.Tensor:
    """The forward KL over the reference's k likeliest tokens, and with a ghost over one for the rest.

    Megatron-LM's `topk_kl_div`, and `compute_vocab_parallel_topk_forward_kl` of a fork of slime.
    """
    head = rollout.ref_logp_all.topk(k, dim=-1)
    teacher, student = head.values, rollout.logp_all.gather(-1, head.indices)
    if ghost:
        rests = ((1 - x.exp().sum(-1, keepdim=True)).clamp(min=_LEAST).log() for x in (teacher, student))
        teacher, student = (torch.cat(pair, -1) for pair in zip((teacher, student), rests, strict=True))
    return (teacher.exp() * (teacher - student)).sum(-1)


def mixed_head(rollout: Rollout, *, forward: float, k: int) -> torch.Tensor:
    """NeMo-RL's sums over the reference's k likeliest tokens, not renormalized and without a tail.

    ``forward`` is the share of the forward KL; the rest is reverse KL.
    """
    head = rollout.ref_logp_all.topk(k, dim=-1)
    teacher, student = head.values, rollout.logp_all.gather(-1, head.indices)
    reverse = (student.exp() * (student - teacher)).sum(-1)
    return forward * reference_head(rollout, k=k) + (1 - forward) * reverse


def sampler_head(rollout: Rollout, *, k: int) -> torch.Tensor:
    """miles' `_compute_topk_reverse_kl`: the sampler's k likeliest, by its renormalized probabilities.

    It is the same whichever token was sampled.
    """
    head = _sampler_logp_all(rollout).detach().topk(k, dim=-1)
    teacher = rollout.ref_logp_all.gather(-1, head.indices)
    return (head.values.softmax(-1) * (head.values - teacher)).sum(-1)


def student_and_teacher_heads(
    rollout: Rollout, *, mode: str, k: int, listed: int, frozen: bool = False
) -> torch.Tensor:
    """A mode of ``--opd-kl-mode`` of Open-On-Policy-Distillation that reads heads.

    It reads the student's k likeliest tokens of when it sampled, and the teacher's log-probs of those that
    are in the teacher's own list. In the place of the others stand those of the student when it sampled.

    Args:
        rollout: The samples, with the teacher in the place of the reference.
        mode: ``full_vocab_topk_reverse_kl`` or one of ``topk_reverse_kl_notail``, the same ``_sg``, and
            ``topk_reverse_kl_intersect_sg_norm``.
        k: Tokens of the student's head, ``--opd-topk``.
        listed: Tokens of the teacher's list; the same number, unless more are asked for by diagnostics.
        frozen: Read the student when it sampled, as in the advantages.
    """
    first = _sampler_logp_all(rollout)
    index = first.detach().topk(k, dim=-1).indices
    sampler, teacher = (x.detach().gather(-1, index) for x in (first, rollout.ref_logp_all))
    most = min(listed, first.shape[-1])
    list_of_teacher = rollout.ref_logp_all.topk(most, dim=-1).indices
    inside = (index.unsqueeze(-1) == list_of_teacher.unsqueeze(-2)).any(-1)
    logp, logq = sampler if frozen else rollout.logp_all.gather(-1, index), teacher.where(inside, sampler)
    if mode == "topk_reverse_kl_intersect_sg_norm":
        p, q = logp.exp() * inside, logq.exp() * inside
        mass, mass_q = (x.sum(-1, keepdim=True).clamp(min=_LEAST) for x in (p, q))
        return (p / mass * ((logp - mass.log()).detach() - logq + mass_q.log())).sum(-1)
    factor = logp.detach() if mode == "topk_reverse_kl_notail_sg" else logp
    head = (logp.exp() * (factor - logq)).sum(-1)
    return head + _rest(logp, logq) if mode == "full_vocab_topk_reverse_kl" else head


def policy_head_and_rest(rollout: Rollout, *, k: int) -> torch.Tensor:
    """`compute_vocab_parallel_topk_tail_kl`: the student's k likeliest tokens and one for the rest."""
    index = rollout.logp_all.detach().topk(k, dim=-1).indices
    logp, logq = rollout.logp_all.gather(-1, index), rollout.ref_logp_all.gather(-1, index)
    return (logp.exp() * (logp - logq)).sum(-1) + _rest(logp, logq)


def _rest(logp: torch.Tensor, logq: torch.Tensor) -> torch.Tensor:
    """The reverse KL's summand of what two heads leave."""
    rest, rest_q = ((1 - x.exp().sum(-1)).clamp(min=_LEAST) for x in (logp, logq))
    return rest * (rest / rest_q).log()


def jensen_shannon(rollout: Rollout) -> torch.Tensor:
    """`compute_vocab_parallel_jsd` with its default of equal parts."""
    p, q = rollout.logp_all.exp(), rollout.ref_logp_all.exp()
    middle = ((p + q) / 2).log()
    return (p * (rollout.logp_all - middle) + q * (rollout.ref_logp_all - middle)).sum(-1) / 2
