"""What every public function of a rollout keeps, over one registry: none of its own tests asks it again.

A mask is deletion in value and gradient, whatever stands outside it; a dtype is kept; the order of answers
plays no part; logits that are shifted row by row say the same.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kl_book.names import kl
from kl_companion import ESTIMATORS, KLTerm, Rollout
from kl_companion.policy_losses.ratio_losses import POLICY_LOSSES, policy_loss
from kl_companion.token_terms import token_costs, token_terms
from tests.support.rollouts import drawn

BATCH, SEQ, VOCAB = 4, 5, 6
MASK = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1], [0, 0, 1, 1, 0], [1, 0, 0, 0, 0]])
PROMPTS = torch.tensor([7, -1, 7, -1])
OF_LOGITS = ("f_divergence(pearson)", "top_k_reverse_kl(2)", "top_k_f_divergence(pearson, 1, generic)")
HEAD = ("top_k_forward_kl(3, published)", "truncated_kl(2)")
ESTIMATED = [*(name for name, e in ESTIMATORS.items() if e.inputs != "top_k"), *OF_LOGITS, *HEAD]
ATTACHED: dict[str, Any] = {"ratio": "attached", "clip": (0.5, 2.0)}
TERMS = {
    "importance": {"importance": "token"},
    "importance of a prefix": {"importance": "prefix", "how": "sequence_mean", **ATTACHED},
    "importance of a sequence": {"importance": "sequence", "how": "constant", "length": 4.0, **ATTACHED},
    "sequence": {"level": "sequence"},
    "score": {"credit": 1.0},
    "discounted score": {"credit": 0.5},
}
PARTITIONS = ("importance", "lower_bound", "value_others")
Function = Callable[[Rollout], torch.Tensor]


def of(name: str, *args: Any, **options: Any) -> Function:
    return lambda rollout: getattr(kl, name)(rollout, *args, **options)


def ratio_loss(name: str) -> Function:
    """A policy loss of ratios, with an advantage for every token."""
    return lambda r: policy_loss(name, r.logp - r.sampled_from, r.ref_logp, r.completion_mask)  # type: ignore[arg-type]


CALLS: dict[str, Function] = {
    **{f"per_token, {x}": lambda r, x=x: kl.per_token(x, r) for x in ESTIMATED},
    **{f"kl_loss, {x}": of("kl_loss", x) for x in ESTIMATED if x not in HEAD},
    **{f"kl_loss, {x}": of("kl_loss", "k3", **options) for x, options in TERMS.items()},
    **{f"kl_terms, {x}": of("kl_terms", "k3", **options) for x, options in TERMS.items()},
    "kl_loss, mean over tokens": of("kl_loss", "k2", how="token_mean"),
    "kl_reward": of("kl_reward", "k3"),
    "kl_reward, discounted": of("kl_reward", "k3", level="token", credit=0.5),
    "kl_reward, exact": of("kl_reward", "exact_kl", level="token", credit=None),
    "kl_reward, head": of("kl_reward", "top_k_reverse_kl(2)"),
    "policy_gradient_loss": lambda r: kl.policy_gradient_loss(r, r.rewards),
    "policy_gradient_loss, tokens": lambda r: kl.policy_gradient_loss(r, r.ref_logp, how="token_mean"),
    **{f"importance_ratio, {x}": of("importance_ratio", scope=x) for x in ("token", "prefix", "sequence")},
    "importance_weight": of("importance_weight", scope="sequence"),
    **{f"target_loss, {x}": of("target_loss", "k4", partition=x) for x in PARTITIONS},
    **{f"log_partition, {x}": of("log_partition", x) for x in PARTITIONS},
    "target_loss, masked": of("target_loss", "k5", importance="sequence", mask=(0.2, 0.3)),
    **{name: of(name) for name in ("apa_loss", "rwr_loss")},
    **{f"reinforce_loss, {x}": of("reinforce_loss", centering=x) for x in ("mean", "standardized")},
    **{f"f_policy_loss, {x}": of("f_policy_loss", x, beta=3.0) for x in ("pearson", "jensen_shannon")},
    "terms": lambda r: token_terms(KLTerm("k3"), r),
    "terms, by kernels": lambda r: token_terms(KLTerm("exact_kl"), r),
    "terms, head": lambda r: token_terms(KLTerm("top_k_reverse_kl(2)"), r),
    "terms, discounted": lambda r: token_terms(KLTerm("exact_kl", "score", credit=0.5), r),
    "costs": lambda r: token_costs(KLTerm("k3", "reward"), r),
    **{f"policy_loss, {x}": ratio_loss(x) for x in POLICY_LOSSES},
}
COUNTS_COLUMNS = [name for name in CALLS if "discounted" in name]  # credit fades with every column
OF_SAMPLES = {"logp", "ref_logp", "behavior_logp"}
SCORES = {"logits", "ref_logits", "behavior_logits"}


def tensors(dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Every tensor of a batch of two prompts, whose logits say its log-probs."""
    rewards = torch.tensor([1.0, 0.0, -0.5, 2.0], dtype=dtype)
    return {**drawn(MASK, VOCAB, dtype), "rewards": rewards, "prompt_index": PROMPTS}


def result_of(name: str, given: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """The result, and the gradients by log-probs and logits; of tokens, those under the mask."""
    leaves = {x: given[x].clone().requires_grad_() for x in ("logp", "logits")}
    mask = given["completion_mask"] == 1
    value = CALLS[name](Rollout(**{**given, **leaves}))
    found = [value.detach()]
    if value.requires_grad:
        seen = value[mask] if value.shape == mask.shape else value
        weights = torch.arange(1.0, 1.0 + seen.numel(), dtype=seen.dtype).reshape(seen.shape)
        slopes = torch.autograd.grad((seen * weights).sum(), list(leaves.values()), allow_unused=True)
        found += [x for x in slopes if x is not None]
        assert all(not x[~mask].any() for x in found[1:])  # NaN would be any
    return [x[mask] if x.shape[:2] == mask.shape else x for x in found]


def agree(found: list[torch.Tensor], wanted: list[torch.Tensor], rtol: float = 1e-11) -> None:
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x.double(), y.double(), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e6])
@pytest.mark.parametrize("name", CALLS)
def test_what_stands_outside_the_mask_reaches_nothing(name: str, junk: float) -> None:
    given = tensors()
    for x in OF_SAMPLES | SCORES:
        given[x][MASK == 0] = junk
    given["tokens"][MASK == 0] = -100
    agree(result_of(name, given), result_of(name, tensors()))


@pytest.mark.parametrize("name", [name for name in CALLS if name not in COUNTS_COLUMNS])
def test_a_mask_is_deletion(name: str) -> None:
    order = MASK.argsort(dim=-1, descending=True, stable=True)  # what counts first, in its order
    given = tensors()
    for x in ({"tokens", "completion_mask"}) | OF_SAMPLES:
        given[x] = given[x].gather(1, order)
    for x in SCORES:
        given[x] = given[x].gather(1, order[..., None].expand(-1, -1, VOCAB))
    agree(result_of(name, given), result_of(name, tensors()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_a_dtype_is_kept(name: str, dtype: torch.dtype) -> None:
    value, *slopes = result_of(name, tensors(dtype))
    kernel = name.startswith("terms, ")  # it sums in float32 and leaves its sums there
    assert value.dtype == (torch.float32 if kernel else dtype)
    assert {x.dtype for x in slopes} <= {dtype}
    if dtype == torch.float32:
        agree([value, *slopes], result_of(name, tensors()), 1e-4)


@pytest.mark.parametrize("name", CALLS)
def test_the_order_of_answers_plays_no_part(name: str) -> None:
    order = torch.tensor([2, 0, 3, 1])
    rows = {x: y[order] for x, y in tensors().items()}
    given, turned = CALLS[name](Rollout(**tensors())), CALLS[name](Rollout(**rows))
    agree([turned], [given[order] if given.dim() else given])


@pytest.mark.parametrize("name", CALLS)
def test_a_shift_of_logits_says_the_same(name: str) -> None:
    draw = torch.Generator().manual_seed(1)
    given = tensors()
    for x in SCORES:
        given[x] += 1e3 * torch.randn(BATCH, SEQ, 1, generator=draw, dtype=torch.float64)
    agree(result_of(name, given), result_of(name, tensors()), 1e-9)


def test_no_function_of_a_rollout_is_left_out() -> None:
    of_rollouts = {
        name
        for name in kl
        if inspect.isfunction(getattr(kl, name))
        and "rollout" in inspect.signature(getattr(kl, name)).parameters
    }
    assert of_rollouts <= {name.partition(",")[0] for name in CALLS}
