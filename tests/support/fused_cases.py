"""Rows of logits of every kind, and how the fused functions are run and compared: what their tests share."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from kl_companion.divergences import DIVERGENCES

NAMES = list(DIVERGENCES)
INF = float("inf")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
MODES = ("safe", "inplace", "weights", "fused")
# what one side may lack without an infinite divergence
WITHOUT_POLICY = [n for n in NAMES if DIVERGENCES[n].at_zero.is_finite]
WITHOUT_REFERENCE = [n for n in NAMES if DIVERGENCES[n].at_infinity.is_finite]
# Relative to the value, and to the largest entry of a row's gradient.
EXACT = {torch.float64: 1e-9, torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float16: 1e-6}
ROUNDING = {torch.float64: 0.0, torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10}
SMALLEST = {torch.float16: 2.0**-24}  # below it half precision has no numbers


def noise(seed: int, *shape: int) -> torch.Tensor:
    """float64 numbers of a normal distribution, the same for the same seed."""
    generator = torch.Generator("cpu").manual_seed(seed)
    numbers = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return numbers.to(torch.get_default_device())


def logits_pair(
    seed: int,
    *shape: int,
    scale: float = 2.0,
    gap: float | None = None,
    offset: float = 0.0,
    mask: str = "none",
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of policy and reference, [..., vocab].

    Args:
        seed: Of the random numbers.
        shape: Of both.
        scale: Spread of the logits within a row.
        gap: How far apart the two are; None draws them independently.
        offset: Every row of each is shifted by about so much.
        mask: Who lacks tokens: "none", "both", "policy", "reference". Never the first token of a row.
        dtype: Of both.
    """
    x, y = noise(seed, 2, *shape) * scale
    if gap is not None:
        y = x + gap * y / scale
    x, y = (a + offset * noise(seed + i, *shape[:-1], 1) for i, a in enumerate((x, y), 1))
    hidden = noise(seed + 3, 2, *shape) > 0.5
    hidden[..., :1] = False
    if mask != "none":
        x, y = x.masked_fill(hidden[0], -INF), y.masked_fill(hidden[0], -INF)
    if mask == "policy":
        x = x.masked_fill(hidden[1], -INF)
    if mask == "reference":
        y = y.masked_fill(hidden[1], -INF)
    return x.to(dtype), y.to(dtype)


@dataclass
class Case:
    """One drawn example; see `logits_pair`."""

    logits: torch.Tensor
    ref_logits: torch.Tensor
    mask: str
    seed: int
    temperature: float
    weights: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        lead = self.logits.shape[:-1]
        self.weights = (noise(self.seed + 9, *lead) if lead else noise(self.seed + 9, 1)[0]).float()


@st.composite
def cases(draw, masks=("none", "both"), dtypes=DTYPES, names=None, longest=300):
    """(name, `Case`) or a `Case`: any lead shape, vocabulary, dtype, mask, offset and temperature."""
    lead = draw(st.sampled_from([(), (1,), (4,), (2, 3), (0,), (2, 0)]))
    vocab = draw(st.integers(1, longest) | st.sampled_from([1, 2, 3]))
    mask = draw(st.sampled_from(masks))
    seed = draw(st.integers(0, 2**16))
    dtype = draw(st.sampled_from(dtypes))
    gap = draw(st.sampled_from([None, 1.0, 1e-1, 1e-3]))
    offset = draw(st.sampled_from([0.0, 30.0, 1e4]))
    scale = draw(st.sampled_from([0.3, 2.0]))
    x, y = logits_pair(seed, *lead, vocab, scale=scale, gap=gap, offset=offset, mask=mask, dtype=dtype)
    case = Case(x, y, mask, seed, draw(st.sampled_from([1.0, 0.7, 2.5])))
    if names is None:
        return case
    return draw(st.sampled_from(names)), case


def run(function, logits, *args, mode="safe", weights=None, scale=1.0, **options):
    """(value, gradient by the logits) of scale * (weights * value).sum() in one of the four modes.

    The logits are no leaf, as those of a model are not; where ``logits`` is strided they stay strided.
    """
    leaf = logits.detach().requires_grad_()
    made = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device).copy_(leaf)
    options["inplace"] = mode in ("inplace", "fused")
    if mode in ("weights", "fused"):
        options["weights"] = weights
    value = function(made, *args, **options)
    total = value.sum() if weights is None else (weights * value).sum()
    (gradient,) = torch.autograd.grad(scale * total, leaf, allow_unused=True)
    return value.detach(), gradient


def value_error(got, want, dtype):
    """Largest error of values relative to each, as a multiple of what is allowed: at most 1 is well."""
    assert got.shape == want.shape
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert got.isfinite().all()
    want = want.detach()
    # float64 itself leaves a few 1e-16 of a sum of terms of about 1
    excess = (got.double() - want).abs() / (EXACT[dtype] * want.abs() + 4e-15)
    return float(excess.detach().max()) if excess.numel() else 0.0


def gradient_error(got, want, dtype, value=0.0, terms=0.0):
    """Largest error of gradients [..., vocab], relative to the largest entry of its row; see `value_error`.

    Half precision may round every entry to its neighbor too. ``value`` [...] is what was differentiated:
    the float64 gradient is no more accurate than its rounding. ``terms`` [...] is the size of terms of a
    row that may cancel each other.
    """
    assert got.shape == want.shape
    assert got.dtype == dtype
    known = want.abs() < torch.finfo(dtype).max  # half precision ends at 65504
    assert got[known].isfinite().all()
    if not want.numel():
        return 0.0
    norm = want.abs().amax(-1, keepdim=True) + torch.as_tensor(terms).unsqueeze(-1)
    noise_of_want = 4e-15 * (1 + torch.as_tensor(value).detach().abs()).unsqueeze(-1)
    allowed = EXACT[dtype] * norm + ROUNDING[dtype] * want.abs() + SMALLEST.get(dtype, 0.0) + noise_of_want
    return float(((got.double() - want).abs() / allowed).where(known, 0.0).max())
