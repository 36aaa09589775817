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

from benchmarks.works import DIVERGENCES, FORMULAS, Inputs
from kl_book.speed_goals import OURS
from kl_companion.estimators import sampled
from kl_companion.kernels import fused

ROOT = Path(__file__).resolve().parents[1]
Outcome = tuple[torch.Tensor, tuple[torch.Tensor, ...]]
FIVE = "five passes"
FLOORS = ("roof", "bare products", FIVE)
AUTO = "ours, auto"


class Variant(NamedTuple):
    """A way to do a work: `truth` names the float64 gradient it must have ("" for none)."""

    run: Callable[[Inputs], Outcome]
    truth: str = ""
    spoils: bool = False  # the logits are gone afterwards
    compiled: bool = False  # left out of the smoke suite
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


# -- from logits: the formula as it is written, and ours -----------------------------------------------------


def _given(name: str, i: Inputs) -> torch.Tensor:
    return i.y if name in DIVERGENCES else i.tokens


def _naive(name: str, i: Inputs, *, upcast: bool = True) -> Outcome:
    x, given = i.x, _given(name, i)
    if upcast:
        x, given = x.float(), given.float() if given.is_floating_point() else given
    return _differentiated(FORMULAS[name](x, given).mean(), i.x)


@cache
def _compiled(name: str) -> Callable[..., torch.Tensor]:
    def mean(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        given = given.float() if given.is_floating_point() else given
        return FORMULAS[name](x.float(), given).mean()

    torch._dynamo.config.recompile_limit = 64  # one form per size and dtype, in one process
    return torch.compile(mean, dynamic=False)


def _compile(name: str, i: Inputs) -> Outcome:
    return _differentiated(_compiled(name)(i.x, _given(name, i)), i.x)


class _Output(torch.autograd.Function):
    """A leaf's memory as the output of a model: no leaf, so that its gradient may take its place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.empty(0, dtype=x.dtype, device=x.device).set_(
            x.untyped_storage(), x.storage_offset(), x.shape, x.stride()
        )

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _ours(name: str, options: dict[str, Any], i: Inputs) -> Outcome:
    """Ours as its user calls it; `weights` here only says whether those of the loss are handed over."""
    if options.get("weights"):
        options = {**options, "weights": i.weights}
    x = _Output.apply(i.x)
    if name in DIVERGENCES:
        values = fused.fused_f_divergence(name, x, i.y, **options)
    elif name == "logp":
        values = fused.fused_logp(x, i.tokens, **options)
    elif name == "logp_entropy":
        values = torch.stack(fused.fused_logp_and_entropy(x, i.tokens, **options)).sum(0)
    else:
        given = (i.tokens, i.indices, i.ref_logp_head, i.ref_logp)
        values = fused.fused_top_k_f_divergence("reverse_kl", x, *given, **options)
    return _differentiated((values * i.weights).sum(), i.x)


def _roof(name: str, i: Inputs) -> Outcome:
    """The least traffic of a gradient: every row of logits is read once and one row is written."""
    with torch.no_grad():
        torch.add(i.x, i.y, out=i.x) if name in DIVERGENCES else i.x.mul_(0.5)
    return i.weights[0], ()


def _five_passes(i: Inputs) -> Outcome:
    """The traffic of a kernel that cannot keep a row: read two, read two again, write one, as copies."""
    with torch.no_grad():
        i.x.copy_(i.y)
        i.x.copy_(i.y)
        half = i.x.numel() // 2
        i.x.view(-1)[:half].copy_(i.y.view(-1)[:half])
    return i.weights[0], ()


def _ours_and_roof(name: str) -> dict[str, Variant]:
    modes: dict[str, dict[str, Any]] = {
        "ours": {"backend": "compiled"},
        "ours, eager": {"backend": "eager"},
        "ours, in place": {"backend": "compiled", "inplace": True},
        AUTO: {},
    }
    if name in (*DIVERGENCES, "logp"):
        modes[OURS] = {"backend": "compiled", "weights": True}
        modes["ours, in place"]["weights"] = modes[AUTO]["weights"] = True
    found = {
        mode: Variant(partial(_ours, name, o), name, "inplace" in o, o.get("backend") != "eager")
        for mode, o in modes.items()
    }
    return {**found, "roof": Variant(partial(_roof, name), spoils=True)}


def _plain_and_ours(name: str) -> dict[str, Variant]:
    return {
        "naive": Variant(partial(_naive, name), name),
        "torch.compile": Variant(partial(_compile, name), name, compiled=True),
        **_ours_and_roof(name),
    }


# -- from logits: the peers ----------------------------------------------------------------------------------


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


def _logp_cross_entropy(i: Inputs) -> Outcome:
    return _differentiated(-F.cross_entropy(i.x, i.tokens), i.x)


def _logp_trl(i: Inputs) -> Outcome:
    """It loops over the batch, and its backward pays for every turn: 4 sequences, as a trainer would have."""
    from trl.trainer.utils import selective_log_softmax

    batch = 4 if len(i.tokens) % 4 == 0 else 1
    x, tokens = i.x.view(batch, -1, i.x.shape[-1]), i.tokens.view(batch, -1)
    return _differentiated(selective_log_softmax(x, tokens).mean(), i.x)


def _top_k(i: Inputs) -> Outcome:
    """Head and tail of the reverse KL from autograd of a whole log-softmax."""
    logp_all = i.x.float().log_softmax(-1)
    logp = logp_all.gather(-1, i.indices)
    head = (logp.exp() * (logp - i.ref_logp_head) - logp.exp() + i.ref_logp_head.exp()).sum(-1)
    outside = (i.indices != i.tokens.unsqueeze(-1)).all(-1)
    logp_at = logp_all.gather(-1, i.tokens.unsqueeze(-1)).squeeze(-1)
    tail = sampled.k3_plus_plus(logp_at, i.ref_logp)
    return _differentiated((head + tail.where(outside, 0.0)).mean(), i.x)


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


def _linear_ours(options: dict[str, Any], i: Inputs) -> Outcome:
    from kl_companion.kernels import linear

    reference = {"ref_hidden": i.ref_hidden, "ref_weight": i.ref_weight}
    kl = linear.linear_kl(i.hidden, i.weight, **reference, weights=i.weights, **options)
    return _differentiated((kl * i.weights).sum(), i.hidden, i.weight)


_BF16 = ("bfloat16",)
VARIANTS: dict[str, dict[str, Variant]] = {name: _plain_and_ours(name) for name in FORMULAS}
for _name in DIVERGENCES:
    if _name != "reverse_kl":  # the KL in the same rounds, to compare with
        _kl = partial(_ours, "reverse_kl", {"backend": "compiled", "weights": True})
        VARIANTS[_name]["ours, reverse KL"] = Variant(_kl, "reverse_kl", compiled=True)
VARIANTS["reverse_kl"] |= {
    "naive, no upcast": Variant(partial(_naive, "reverse_kl", upcast=False), "reverse_kl", dtypes=_BF16),
    "F.kl_div": Variant(_kl_div, "reverse_kl"),
    "TRL": Variant(_trl_jsd, "reverse_kl", needs="trl"),
    "Liger JSD": Variant(_liger_jsd, "reverse_kl", needs="triton"),
    FIVE: Variant(_five_passes, spoils=True),
}
VARIANTS["forward_kl"]["Liger KL"] = Variant(_liger_kl, "forward_kl", needs="triton")
VARIANTS["logp"] |= {
    "F.cross_entropy": Variant(_logp_cross_entropy, "logp"),
    "TRL": Variant(_logp_trl, "logp", needs="trl"),
}
VARIANTS["top_k"] = {
    "naive": Variant(partial(_naive, "reverse_kl"), "reverse_kl"),
    "autograd": Variant(_top_k, "top_k"),
    "torch.topk": Variant(_topk_alone),
    **_ours_and_roof("top_k"),
}
VARIANTS["linear_kl"] = {
    "naive": Variant(_linear_naive, "linear_kl"),
    "TRL": Variant(_linear_trl, "linear_kl", needs="trl"),
    "Liger": Variant(partial(_linear_liger, 256, False), "linear_kl", needs="liger"),
    "Liger, compiled": Variant(partial(_linear_liger, 256, True), "linear_kl", needs="liger", compiled=True),
    "Liger, Triton": Variant(_linear_liger_triton, "linear_kl", needs="triton"),
    "ours, eager": Variant(partial(_linear_ours, {"backend": "eager"}), "linear_kl"),
    "ours": Variant(partial(_linear_ours, {"backend": "compiled"}), "linear_kl", compiled=True),
    AUTO: Variant(partial(_linear_ours, {}), "linear_kl", compiled=True),
    "ours, frugal": Variant(
        partial(_linear_ours, {"backend": "compiled", "memory": "frugal"}), "linear_kl", compiled=True
    ),
    "bare products": Variant(_matmuls),
}
