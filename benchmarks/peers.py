"""The variants: each computes loss and gradient of a work in its own way.

A variant takes `Inputs` and returns (loss, gradients). Loss: the mean over tokens, as a tensor without graph.
Gradients: of the logits, or of hidden states and weight. Peers are called as they are installed:

* TRL 1.16: `GKDTrainer.generalized_jsd_loss` with beta = 1 is KL(policy || reference), in the dtype of the
  logits; `ChunkedDivergenceFunction` the same from hidden states; `selective_log_softmax`.
* Liger 0.8.5: its chunked JSD with beta = 1, hard loss 0, is the same KL, as a mean over tokens. The folder
  `.audit` is put on the path; `chunked_loss` is plain torch and its package imports without Triton.
  Its Triton kernels (`LigerKLDivLossFunction`: forward KL only; `LigerJSDFunction`) need a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from benchmarks.works import FORMULAS, Inputs
from kl_companion.estimators import sampled
from kl_companion.kernels import fused

ROOT = Path(__file__).resolve().parents[1]
Outcome = tuple[torch.Tensor, tuple[torch.Tensor, ...]]
FLOORS = ("roof", "matmuls")


class Variant(NamedTuple):
    """A way to do a work: `truth` names the float64 gradient it must have ("" for none)."""

    run: Callable[[Inputs], Outcome]
    truth: str = ""
    spoils: bool = False  # the logits are gone afterwards
    compiled: bool = False
    large: bool = False  # compiled where the logits are many
    needs: str = ""  # "trl", "liger", "triton"
    dtypes: tuple[str, ...] = ("float32", "bfloat16")


def available(variant: Variant, device: str) -> bool:
    """Is what a variant needs installed, and the device one that it runs on?"""
    if variant.needs == "trl":
        return find_spec("trl") is not None
    if variant.needs == "triton":
        return device == "cuda" and _liger_here() and find_spec("triton") is not None
    return variant.needs != "liger" or _liger_here()


def _liger_here() -> bool:
    audit = str(ROOT / ".audit")
    if audit not in sys.path:
        sys.path.append(audit)
    return find_spec("liger_kernel") is not None


def _differentiated(loss: torch.Tensor, *leaves: torch.Tensor) -> Outcome:
    return loss.detach(), torch.autograd.grad(loss, leaves)


# -- from logits: divergences --------------------------------------------------------------------------------


def _naive(name: str, i: Inputs, *, upcast: bool = True) -> Outcome:
    x, y = (i.x.float(), i.y.float()) if upcast else (i.x, i.y)
    return _differentiated(FORMULAS[name](x, y).mean(), i.x)


@cache
def _compiled(name: str) -> Callable[..., torch.Tensor]:
    def mean(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return FORMULAS[name](x.float(), y.float()).mean()

    return torch.compile(mean, dynamic=False)


def _compile(name: str, i: Inputs) -> Outcome:
    return _differentiated(_compiled(name)(i.x, i.y), i.x)


def _kl_div(i: Inputs) -> Outcome:
    logp, ref_logp = i.x.float().log_softmax(-1), i.y.float().log_softmax(-1)
    return _differentiated(F.kl_div(ref_logp, logp, reduction="batchmean", log_target=True), i.x)


def _trl_jsd(i: Inputs) -> Outcome:
    from trl.experimental.gkd.gkd_trainer import GKDTrainer

    return _differentiated(GKDTrainer.generalized_jsd_loss(i.x, i.y, beta=1), i.x)


def _liger_jsd(i: Inputs) -> Outcome:
    from liger_kernel.ops.jsd import LigerJSDFunction

    logp, ref_logp = i.x.log_softmax(-1), i.y.log_softmax(-1)
    return _differentiated(LigerJSDFunction.apply(logp, ref_logp, None, 1.0), i.x)


def _liger_kl(i: Inputs) -> Outcome:
    from liger_kernel.transformers.kl_div import LigerKLDIVLoss

    loss = LigerKLDIVLoss(reduction="batchmean", log_target=True)
    return _differentiated(loss(i.x.log_softmax(-1), i.y.log_softmax(-1)), i.x)


def _ours(name: str, mode: str, i: Inputs) -> Outcome:
    options: dict[str, Any] = {"inplace": mode in ("in place", "fused")}
    if mode == "fused":
        options["weights"] = i.weights
    kl = fused.fused_f_divergence(name, i.x, i.y, **options)
    return _differentiated((kl * i.weights).sum(), i.x)


@cache
def _compiled_ours(name: str) -> Callable[..., torch.Tensor]:
    def mean(x: torch.Tensor, y: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return (fused.fused_f_divergence(name, x, y) * weights).sum()

    return torch.compile(mean, dynamic=False)


def _ours_compiled(name: str, i: Inputs) -> Outcome:
    return _differentiated(_compiled_ours(name)(i.x, i.y, i.weights), i.x)


def _roof(i: Inputs) -> Outcome:
    """Two reads and one write: the least traffic of any divergence with its gradient."""
    with torch.no_grad():
        torch.add(i.x, i.y, out=i.x)
    return i.weights[0], ()


def _divergence_variants(name: str) -> dict[str, Variant]:
    ours = {f"ours, {m}": Variant(partial(_ours, name, m), name, m != "safe", large=True) for m in MODES}
    return {
        "naive": Variant(partial(_naive, name), name),
        "torch.compile": Variant(partial(_compile, name), name, compiled=True),
        **ours,
        "ours, compiled": Variant(partial(_ours_compiled, name), name, compiled=True),
        "roof": Variant(_roof, spoils=True),
    }


# -- from logits: log-prob of the sampled token, top-k -------------------------------------------------------


def _picked(x: torch.Tensor, i: Inputs) -> torch.Tensor:
    return x.gather(-1, i.tokens.unsqueeze(-1)).squeeze(-1)


def _logp(i: Inputs, *, upcast: bool = True) -> Outcome:
    x = i.x.float() if upcast else i.x
    return _differentiated(_picked(x.log_softmax(-1), i).mean(), i.x)


def _logp_lse(i: Inputs) -> Outcome:
    x = i.x.float()
    return _differentiated((_picked(x, i) - x.logsumexp(-1)).mean(), i.x)


def _logp_cross_entropy(i: Inputs) -> Outcome:
    return _differentiated(-F.cross_entropy(i.x, i.tokens), i.x)


def _logp_trl(i: Inputs) -> Outcome:
    """It loops over the batch, and its backward pays for every turn: 4 sequences, as a trainer would have."""
    from trl.trainer.utils import selective_log_softmax

    batch = 4 if len(i.tokens) % 4 == 0 else 1
    x, tokens = i.x.view(batch, -1, i.x.shape[-1]), i.tokens.view(batch, -1)
    return _differentiated(selective_log_softmax(x, tokens).mean(), i.x)


def _logp_ours(mode: str, i: Inputs) -> Outcome:
    options: dict[str, Any] = {"inplace": mode in ("in place", "fused")}
    if mode == "fused":
        options["weights"] = i.weights
    return _differentiated((fused.fused_logp(i.x, i.tokens, **options) * i.weights).sum(), i.x)


def _logp_roof(i: Inputs) -> Outcome:
    """One read and one write."""
    with torch.no_grad():
        i.x.mul_(0.5)
    return i.weights[0], ()


def _top_k(i: Inputs) -> Outcome:
    """Head and tail of the reverse KL from autograd of a whole log-softmax."""
    logp_all = i.x.float().log_softmax(-1)
    logp = logp_all.gather(-1, i.indices)
    head = (logp.exp() * (logp - i.ref_logp_head) - logp.exp() + i.ref_logp_head.exp()).sum(-1)
    outside = (i.indices != i.tokens.unsqueeze(-1)).all(-1)
    tail = sampled.k3_plus_plus(_picked(logp_all, i), i.ref_logp)
    return _differentiated((head + tail.where(outside, 0.0)).mean(), i.x)


def _top_k_ours(mode: str, i: Inputs) -> Outcome:
    given = (i.tokens, i.indices, i.ref_logp_head, i.ref_logp)
    value = fused.fused_top_k_f_divergence("reverse_kl", i.x, *given, inplace=mode != "safe")
    return _differentiated((value * i.weights).sum(), i.x)


def _topk_alone(i: Inputs) -> Outcome:
    """Finding the head, which the given indices save."""
    return i.x.detach().topk(i.indices.shape[-1], dim=-1).values.sum(), ()


# -- from hidden states --------------------------------------------------------------------------------------


def _linear_naive(i: Inputs) -> Outcome:
    x, y = (i.hidden @ i.weight.T).float(), (i.ref_hidden @ i.ref_weight.T).float()
    return _differentiated(FORMULAS["reverse_kl"](x, y).mean(), i.hidden, i.weight)


def _matmuls(i: Inputs) -> Outcome:
    """The four matrix products that any such gradient needs, into memory that is there already."""
    (n, d), v, b = i.hidden.shape, len(i.weight), i.buffers
    if not b:
        for name, shape in {"x": (n, v), "y": (n, v), "dh": (n, d), "dw": (v, d)}.items():
            b[name] = i.hidden.new_empty(shape)
    with torch.no_grad():
        torch.mm(i.hidden, i.weight.T, out=b["x"])
        torch.mm(i.ref_hidden, i.ref_weight.T, out=b["y"])
        torch.mm(b["x"], i.weight, out=b["dh"])
        torch.mm(b["x"].T, i.hidden, out=b["dw"])
    return i.weights[0], ()


def _linear_trl(i: Inputs) -> Outcome:
    from trl.kernels.chunked_divergence import ChunkedDivergenceFunction

    given = (i.hidden, i.weight, None, i.ref_hidden, i.ref_weight, None, 1.0)
    return _differentiated(ChunkedDivergenceFunction.apply(*given)[0].mean(), i.hidden, i.weight)


def _linear_liger(chunk: int, compiled: bool, i: Inputs) -> Outcome:
    from liger_kernel.chunked_loss.jsd_loss import LigerFusedLinearJSDLoss

    loss = LigerFusedLinearJSDLoss(0.0, 1.0, beta=1, compiled=compiled, chunk_size=chunk)
    value = loss(i.hidden, i.weight, i.ref_hidden, i.ref_weight, i.tokens)
    return _differentiated(value, i.hidden, i.weight)


def _linear_liger_triton(i: Inputs) -> Outcome:
    from liger_kernel.ops.fused_linear_jsd import LigerFusedLinearJSDFunction

    given = (i.hidden, i.weight, i.ref_hidden, i.ref_weight, None, 1.0)
    return _differentiated(LigerFusedLinearJSDFunction.apply(*given), i.hidden, i.weight)


def _linear_ours(memory: str, i: Inputs, *, known: bool = True, frozen: bool = False) -> Outcome:
    from kl_companion.kernels import linear as fused_linear

    weight = i.weight.detach() if frozen else i.weight
    options: dict[str, Any] = {"weights": i.weights} if known else {}
    reference = {"ref_hidden": i.ref_hidden, "ref_weight": i.ref_weight}
    kl = fused_linear.linear_kl(i.hidden, weight, **reference, memory=memory, **options)
    return _differentiated((kl * i.weights).sum(), *((i.hidden,) if frozen else (i.hidden, i.weight)))


MODES = ("safe", "in place", "fused")
_BF16 = ("bfloat16",)
VARIANTS: dict[str, dict[str, Variant]] = {name: _divergence_variants(name) for name in FORMULAS}
VARIANTS["reverse_kl"] |= {
    "naive, no upcast": Variant(partial(_naive, "reverse_kl", upcast=False), "reverse_kl", dtypes=_BF16),
    "F.kl_div": Variant(_kl_div, "reverse_kl"),
    "TRL": Variant(_trl_jsd, "reverse_kl", needs="trl"),
    "Liger JSD": Variant(_liger_jsd, "reverse_kl", needs="triton"),
}
VARIANTS["forward_kl"]["Liger KL"] = Variant(_liger_kl, "forward_kl", needs="triton")
VARIANTS["logp"] = {
    "naive": Variant(_logp, "logp"),
    "naive, no upcast": Variant(partial(_logp, upcast=False), "logp", dtypes=_BF16),
    "logsumexp": Variant(_logp_lse, "logp"),
    "F.cross_entropy": Variant(_logp_cross_entropy, "logp"),
    "TRL": Variant(_logp_trl, "logp", needs="trl"),
    **{f"ours, {m}": Variant(partial(_logp_ours, m), "logp", m != "safe", large=True) for m in MODES},
    "roof": Variant(_logp_roof, spoils=True),
}
VARIANTS["top_k"] = {
    "naive": Variant(partial(_naive, "reverse_kl"), "reverse_kl"),
    "autograd": Variant(_top_k, "top_k"),
    **{f"ours, {m}": Variant(partial(_top_k_ours, m), "top_k", m != "safe", large=True) for m in MODES[:2]},
    "torch.topk": Variant(_topk_alone),
    "roof": Variant(_logp_roof, spoils=True),
}
VARIANTS["linear_kl"] = {
    "naive": Variant(_linear_naive, "linear_kl"),
    "TRL": Variant(_linear_trl, "linear_kl", needs="trl"),
    "Liger, chunk 256": Variant(partial(_linear_liger, 256, False), "linear_kl", needs="liger"),
    "Liger, chunk 64": Variant(partial(_linear_liger, 64, False), "linear_kl", needs="liger"),
    "Liger, compiled": Variant(partial(_linear_liger, 256, True), "linear_kl", needs="liger", compiled=True),
    "Liger, Triton": Variant(_linear_liger_triton, "linear_kl", needs="triton"),
    "ours, fast": Variant(partial(_linear_ours, "fast"), "linear_kl", large=True),
    "ours, frugal": Variant(partial(_linear_ours, "frugal"), "linear_kl", large=True),
    "ours, weights unknown": Variant(partial(_linear_ours, "fast", known=False), "linear_kl", large=True),
    "ours, frozen weight": Variant(partial(_linear_ours, "fast", frozen=True), "linear_kl", large=True),
    "matmuls": Variant(_matmuls),
}
