"""Open-On-Policy-Distillation, a fork of slime: a formula, because it is not on the registry.

``--opd-kl-mode`` is used twice: in the advantages (``--opd-kl-coef``, 1.0 by default), and in a loss of its
own (``--opd-explicit-loss-coef``, 0.0 by default). A mode of heads reads the student's k likeliest tokens of
when it sampled, and the teacher's log-probs of those that are in the teacher's own list of likeliest tokens.
In the place of the other log-probs stand those of the student when it sampled.
"""

from __future__ import annotations

from functools import partial

import torch

from kl_companion.auditing.updates.recipe import Recipe
from kl_companion.frameworks.algorithms import Algorithm
from kl_companion.frameworks.formulas import Terms, estimate, in_loss, in_reward
from kl_companion.frameworks.installed import SourceLocation
from kl_companion.frameworks.records import Framework, Remedy, Setting
from kl_companion.rollout import Rollout, per_token

_LOSS = "slime/backends/megatron_utils/loss.py"
_ADVANTAGES = SourceLocation(_LOSS, "apply_opd_kl_to_advantages")
_EXPLICIT = SourceLocation(_LOSS, "policy_loss_function")
_UTILS = "slime/utils/ppo_utils.py"
_LEAST = 1e-8  # of a probability whose logarithm is taken
_ALL = 3  # tokens of the audit's vocabulary
_MODES = (
    "full_vocab_topk_reverse_kl",
    "topk_reverse_kl_notail",
    "topk_reverse_kl_notail_sg",
    "topk_reverse_kl_intersect_sg_norm",
)
_GRPO = Algorithm(
    "GRPO",
    Recipe("group_std", eps=1e-6, aggregate="sequence_mean"),
    SourceLocation("slime/ray/rollout.py", "RolloutManager._post_process_rewards"),
    instead="--disable-grpo-std-normalization",
    after=True,
)
_PER_TOKEN = "--calculate-per-token-loss"


def heads(mode: str, k: int, listed: int, rollout: Rollout, *, frozen: bool = False) -> torch.Tensor:
    """A mode of ``--opd-kl-mode`` that reads heads, [batch, seq].

    Args:
        mode: See `_MODES`.
        k: Tokens of the student's head, ``--opd-topk``.
        listed: Tokens of the teacher's list; the same number, unless more are asked for by diagnostics.
        rollout: The samples, with the teacher in the place of the reference.
        frozen: Read the student when it sampled, as in the advantages.
    """
    first = rollout.logp_all if rollout.behavior_logits is None else rollout.behavior_logp_all
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
    held = logp.detach() if mode == "topk_reverse_kl_notail_sg" else logp
    head = (logp.exp() * (held - logq)).sum(-1)
    if mode != "full_vocab_topk_reverse_kl":
        return head
    rest, rest_q = ((1 - x.exp().sum(-1)).clamp(min=_LEAST) for x in (logp, logq))
    return head + rest * (rest / rest_q).log()


def jensen_shannon(rollout: Rollout) -> torch.Tensor:
    """`compute_vocab_parallel_jsd` with its default of equal parts, [batch, seq]."""
    p, q = rollout.logp_all.exp(), rollout.ref_logp_all.exp()
    middle = ((p + q) / 2).log()
    return (p * (rollout.logp_all - middle) + q * (rollout.ref_logp_all - middle)).sum(-1) / 2


def forward_head(k: int, rollout: Rollout) -> torch.Tensor:
    """`compute_vocab_parallel_topk_forward_kl` of the teacher's k likeliest tokens, [batch, seq]."""
    head = rollout.ref_logp_all.topk(k, dim=-1)
    return (head.values.exp() * (head.values - rollout.logp_all.gather(-1, head.indices))).sum(-1)


def reverse_head(k: int, rollout: Rollout) -> torch.Tensor:
    """`compute_vocab_parallel_topk_tail_kl`: the student's k likeliest tokens and one for the rest."""
    index = rollout.logp_all.detach().topk(k, dim=-1).indices
    logp, logq = rollout.logp_all.gather(-1, index), rollout.ref_logp_all.gather(-1, index)
    rest, rest_q = ((1 - x.exp().sum(-1)).clamp(min=_LEAST) for x in (logp, logq))
    return (logp.exp() * (logp - logq)).sum(-1) + rest * (rest / rest_q).log()


def decoded(rollout: Rollout) -> torch.Tensor:
    """`compute_decoded_sequence_kl`: log teacher - log student of the sampled token, [batch, seq]."""
    return rollout.ref_logp - rollout.logp


_sampler_k1: Terms = partial(estimate, "k1", of="sampler")
_k1: Terms = partial(estimate, "k1")
_reverse: Terms = partial(per_token, "exact_kl")
_forward: Terms = partial(per_token, "exact_forward_kl")


def _in_advantages(mode: str) -> Setting:
    """The KL of the distributions before a token is the same whatever the token is."""
    return in_reward(
        f"open_opd.advantage_{mode}",
        f"--opd-kl-mode {mode} --opd-kl-coef 1.0 --opd-topk 2",
        partial(heads, mode, 2, 2, frozen=True),
        _ADVANTAGES,
        ahead=False,
        note="Whatever token is sampled is charged the same. Audited with a vocabulary of three.",
        algorithms=(_GRPO,),
    )._replace(sampled=False)


def _explicit(mode: str, k: int, listed: int) -> Setting:
    every = listed == _ALL
    option = f"--opd-kl-mode {mode} --opd-kl-coef 0 --opd-explicit-loss-coef 1.0 --opd-topk {k}"
    more = f" --opd-token-stats --opd-token-stats-topk {listed} {_PER_TOKEN}" if every else ""
    return in_loss(
        f"open_opd.loss_{mode}{'_listed' if every else ''}",
        option + more,
        partial(heads, mode, k, listed),
        _EXPLICIT,
        how="tokens" if every else "sequences",
        note="Audited with a vocabulary of three"
        + (", of which the teacher's list has all." if every else " and heads of two."),
        sampled=False,
        algorithms=(_GRPO,),
    )


def _opsd(
    kind: str, terms: Terms, function: str, *, more: str = "", per_token: bool = False, sampled: bool = False
) -> Setting:
    words = [f"--opd-type opsd --opsd-jsd-coef 1.0 --opsd-loss-type {kind}", more]
    return in_loss(
        f"open_opd.opsd_{kind}",
        " ".join(x for x in (*words, _PER_TOKEN if per_token else "") if x),
        terms,
        SourceLocation(_UTILS, function),
        how="tokens" if per_token else "sequences",
        default="of self-distillation once --opsd-jsd-coef > 0" if kind == "jsd" else "",
        note="Audited with a vocabulary of three." if more else "",
        sampled=sampled,
        algorithms=(_GRPO,),
        beta=0.0 if kind == "jsd" else None,
    )


FRAMEWORK = Framework(
    name="open_opd",
    title="Open-On-Policy-Distillation",
    distribution="",
    versions=("commit 33234e5 (2026-05-01)",),
    settings=(
        in_reward(
            "open_opd.token_reverse_kl",
            "--use-opd --opd-kl-mode token_reverse_kl --opd-kl-coef 1.0",
            _sampler_k1,
            _ADVANTAGES,
            ahead=False,
            default="of on-policy distillation",
            algorithms=(_GRPO,),
            beta=0.0,
        ),
        *(_in_advantages(mode) for mode in _MODES),
        in_loss(
            "open_opd.loss_token_reverse_kl",
            "--opd-kl-mode token_reverse_kl --opd-kl-coef 0 --opd-explicit-loss-coef 1.0",
            _k1,
            _EXPLICIT,
            how="sequences",
            note="The teacher's log-prob is a constant in it.",
            algorithms=(_GRPO,),
        ),
        *(_explicit(mode, 2, 2) for mode in _MODES),
        *(_explicit(mode, 2 if "norm" in mode else 1, _ALL) for mode in _MODES),
        _opsd("jsd", jensen_shannon, "compute_vocab_parallel_jsd"),
        _opsd("reverse_kl", _reverse, "compute_vocab_parallel_reverse_kl"),
        _opsd("forward_kl", _forward, "compute_vocab_parallel_forward_kl"),
        _opsd(
            "topk_forward_kl",
            partial(forward_head, 1),
            "compute_vocab_parallel_topk_forward_kl",
            more="--opsd-topk 1",
            per_token=True,
        ),
        _opsd(
            "topk_tail_kl",
            partial(reverse_head, 1),
            "compute_vocab_parallel_topk_tail_kl",
            more="--opsd-topk 1",
        ),
        _opsd("decoded_kl", decoded, "compute_decoded_sequence_kl", sampled=True),
    ),
    remedy=Remedy(
        sequence=None,
        token="open_opd.token_reverse_kl",
        words="As a loss, reverse_kl of --opsd-loss-type has it for every answer, divided by its length.",
    ),
)
