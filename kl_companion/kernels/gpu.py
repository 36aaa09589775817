"""The walks of `kl_companion.kernels.walks` on a GPU, in Triton's kernels: launches, and what is in between.

They work in float32; float64, and a divergence that needs it or has no form in Triton, run eagerly. Where
Triton fails the eager kernels run, now and in later calls of this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kl_companion.divergences import Divergence, entries_of
from kl_companion.kernels.blocks import matrices, new_like
from kl_companion.kernels.compiling import warn_of
from kl_companion.kernels.ratios import NEAR, enough
from kl_companion.kernels.tokens import of_same

if TYPE_CHECKING:
    from kl_companion.kernels.logit_transform import LogitTransform

# Entries of a piece: of a long row, and at least; bytes of it for a warp. More is slower on an H200.
_BLOCK, _SHORTEST, _PER_WARP = 2048, 128, 2048
_NARROW = (torch.float32, torch.bfloat16, torch.float16)
_SUMS, _TOKEN_SUMS = 7, 4  # numbers of a piece that the kernels write
TOKENS = "log-probs"  # the kind of walk that is not named by a divergence
_FAILED: set[str] = set()


def takes(*logits: torch.Tensor) -> bool:
    """Whether these kernels may work on some logits."""
    fake = torch._subclasses.FakeTensor
    return all(x.is_cuda and x.dtype in _NARROW and not isinstance(x, fake) for x in logits)


def serves(kind: str, *logits: torch.Tensor) -> bool:
    """Whether these kernels work on some logits, and have not failed at this kind of walk."""
    return kind not in _FAILED and takes(*logits)


def attempt(kind: str, walk: Callable[[], None]) -> bool:
    """Whether a walk was done. Where Triton fails nothing of its kind is tried again, and that is logged."""
    try:
        walk()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _FAILED.add(kind)
        warn_of(error)
        return False
    return True


class Side(NamedTuple):
    """Logits of some rows, [rows, vocab], and what they go through before the temperature."""

    logits: torch.Tensor
    factor: float | None
    cap: float | None

    def of(self, logits: torch.Tensor) -> tuple[Any, ...]:
        """Arguments of a kernel, for some of the rows."""
        x = logits if logits.stride(-1) == 1 else logits.contiguous()
        return x, x.stride(0), self.factor, self.cap


class Cut(NamedTuple):
    """A cut of rows [rows, vocab] of some bytes an entry into pieces."""

    vocab: int
    bytes: int

    @property
    def block(self) -> int:
        """Entries of a piece."""
        return min(_BLOCK, max(_SHORTEST, _power_of_two(self.vocab)))

    @property
    def pieces(self) -> int:
        """Pieces of a row."""
        return -(-self.vocab // self.block)

    def launch(self, kernel: Any, rows: int, *arguments: Any, **static: Any) -> None:
        """Run a kernel, one program for every piece."""
        warps = max(1, self.block * self.bytes // _PER_WARP)
        kernel[(rows * self.pieces,)](*arguments, **static, BLOCK=self.block, num_warps=warps)

    def put_together(self, kernel: Any, rows: int, *arguments: Any, **static: Any) -> None:
        """Run a kernel of the numbers of pieces, one program for every row."""
        kernel[(rows,)](*arguments, **static, PIECES=_power_of_two(self.pieces), num_warps=1)


def _cut(logits: torch.Tensor) -> Cut:
    return Cut(logits.shape[-1], logits.element_size())


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _on(x: torch.Tensor) -> AbstractContextManager[object]:
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@contextmanager
def _writable(place: torch.Tensor) -> Iterator[torch.Tensor]:
    """Memory for the gradient of rows: their own, unless the entries of a row lie apart."""
    to = place if place.stride(-1) == 1 else new_like(place)
    yield to
    if to is not place:
        place.copy_(to)


class RowViews(NamedTuple):
    """Rows start:stop of the leading axes, and the views [rows, vocab] of every tensor there."""

    rows: slice
    size: int
    views: tuple[torch.Tensor, ...]


def parts(*tensors: torch.Tensor) -> Iterator[RowViews]:
    """Rows of aligned tensors [..., vocab] that lie at equal distances: mostly all of them at once."""
    start = 0
    for views in matrices(*tensors) if tensors[0].numel() else ():
        size = len(views[0])
        yield RowViews(slice(start, start + size), size, views)
        start += size


def cool_of(how: LogitTransform) -> float | None:
    """The factor of raw logits, None for 1."""
    factor = how.scale / how.temperature
    return None if factor == 1.0 else factor


def sides_of(x: torch.Tensor, y: torch.Tensor, how: LogitTransform) -> tuple[Side, Side]:
    """Policy and reference, in units of the policy's raw logits; see `LogitTransform.scalars`."""
    ratio = how.ratio
    cap = None if how.cap is None else how.cap / how.scale
    ref_cap = None if how.ref_cap is None else ratio * how.ref_cap / how.ref_scale
    return Side(x, None, cap), Side(y, None if ratio == 1.0 else ratio, ref_cap)


def walk_divergence(
    d: Divergence,
    x: torch.Tensor,
    y: torch.Tensor,
    kept: torch.Tensor,
    value: torch.Tensor | None,
    loss_weight: torch.Tensor | None,
    gradient: torch.Tensor | None,
    how: LogitTransform,
    inside: torch.Tensor | None,
) -> bool:
    """Do what `walks.walk_divergence` does, where these kernels can; return whether they did."""
    if not serves(d.name, x, y) or kept.dtype != torch.float32:
        return False
    job = _Divergence(d, *sides_of(x, y, how), cool_of(how), kept, inside)
    done = value is None or attempt(d.name, lambda: job.fill(value))
    if done and loss_weight is not None and gradient is not None:
        weights, out = loss_weight.contiguous(), gradient
        done = attempt(d.name, lambda: job.write(weights, out))
    return done


class _Divergence(NamedTuple):
    d: Divergence
    policy: Side
    reference: Side
    cool: float | None
    kept: torch.Tensor
    inside: torch.Tensor | None

    @property
    def kl(self) -> bool:
        return self.d.name == "reverse_kl"

    @property
    def exchanged(self) -> bool:
        """Whether the value is that of the KL with policy and reference exchanged."""
        return self.d.name == "forward_kl"

    @property
    def cut(self) -> Cut:
        return _cut(self.policy.logits)

    def _exact(self) -> bool:
        """Whether differences are exact, see `rows.is_exact`."""
        sides = (self.policy, self.reference)
        return all(s.logits.dtype == torch.bfloat16 and s.factor is None and s.cap is None for s in sides)

    def _of(self) -> Any:
        """The divergence's function in Triton; the KLs need none."""
        from kl_companion.kernels.triton_math import of_larger

        return None if self.kl or self.exchanged else of_larger(self.d)

    def _counted(self, rows: slice) -> torch.Tensor | None:
        return None if self.inside is None else self.inside[rows]

    def fill(self, value: torch.Tensor) -> None:
        """Fill the values of rows and ``kept``."""
        from kl_companion.kernels import triton_rows as kernels
        from kl_companion.kernels.triton_math import series

        a, b = (self.reference, self.policy) if self.exchanged else (self.policy, self.reference)
        cut, of, entries, once = self.cut, self._of(), entries_of(self.d), self.kl or self.exchanged
        terms = entries.series and enough(entries.series, NEAR[torch.float32], torch.finfo(torch.float32).eps)
        infinite = {"NO_P": entries.at_zero == float("inf"), "NO_Q": entries.at_infinity == float("inf")}
        for rows, size, views in parts(a.logits, b.logits):
            count = size * cut.pieces
            logits = (*a.of(views[0]), *b.of(views[1]))
            sums, inside = value.new_empty(_SUMS, count), self._counted(rows)
            kept, values = self.kept[:, rows], value[rows]
            shape = (self.cool, cut.vocab, cut.pieces, count)
            with _on(value):
                arguments = (sums, inside, *logits, *shape)
                first = kernels.kl_sums if once else kernels.first_sums
                cut.launch(first, size, *arguments, EXACT=self._exact())
                cut.put_together(
                    kernels.row_numbers,
                    size,
                    *(sums, inside, kept, kept.stride(0), values if once else None),
                    *(self.cool, cut.pieces, count),
                    KL=self.kl,
                    OF=of,
                    AT_INFINITY=entries.at_infinity,
                )
                if once:
                    continue
                cut.launch(
                    kernels.divergence_sums,
                    size,
                    *(sums, inside, kept, kept.stride(0), *logits, *shape),
                    **infinite,
                    NEAR=NEAR[torch.float32],
                    OF=of,
                    SERIES=series(terms) if terms else None,
                    EXACT=self._exact(),
                )
                arguments = (sums, inside, kept, kept.stride(0), values, cut.pieces, count)
                cut.put_together(kernels.value_and_mean, size, *arguments)

    def write(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """Write the gradient, times the weights of rows."""
        from kl_companion.kernels import triton_rows as kernels

        a, b, cut, of = self.policy, self.reference, self.cut, self._of()
        for rows, size, (one, other, place) in parts(a.logits, b.logits, out):
            kept = self.kept[:, rows]
            with _on(out), _writable(place) as to:
                cut.launch(
                    kernels.gradient,
                    size,
                    *(to, to.stride(0), weights[rows], self._counted(rows), kept, kept.stride(0)),
                    *(*a.of(one), *b.of(other), self.cool, cut.vocab, cut.pieces),
                    KL=self.kl,
                    OF=of,
                    EXACT=self._exact(),
                )


def walk_tokens(
    x: torch.Tensor,
    tokens_of_rows: torch.Tensor,
    kept: torch.Tensor,
    logp: torch.Tensor | None,
    entropy: torch.Tensor | None,
    loss_weight: torch.Tensor | None,
    of_entropy: torch.Tensor | None,
    gradient: torch.Tensor | None,
    how: LogitTransform,
    inside: torch.Tensor | None,
) -> bool:
    """Do what `walks.walk_tokens` does, where these kernels can; return whether they did."""
    if not serves(TOKENS, x):
        return False
    job = _Tokens(sides_of(x, x, how)[0], cool_of(how), tokens_of_rows.contiguous(), kept, inside)
    done = logp is None or attempt(TOKENS, lambda: job.fill(logp, entropy))
    if done and loss_weight is not None and gradient is not None:
        weights, out = loss_weight.contiguous(), gradient
        bend = None if of_entropy is None else of_entropy.contiguous()
        done = attempt(TOKENS, lambda: job.write(weights, bend, out))
    return done


class _Tokens(NamedTuple):
    policy: Side
    cool: float | None
    tokens: torch.Tensor
    kept: torch.Tensor
    inside: torch.Tensor | None

    def _of(self, rows: slice, *more: torch.Tensor | None) -> Iterator[torch.Tensor | None]:
        return (None if t is None else t[rows] for t in (self.inside, *more))

    def fill(self, logp: torch.Tensor, entropy: torch.Tensor | None) -> None:
        """Fill log-probs, entropies and ``kept``."""
        from kl_companion.kernels import triton_tokens as kernels

        cut, k = _cut(self.policy.logits), self.tokens.shape[1]
        for rows, size, (view,) in parts(self.policy.logits):
            count = size * cut.pieces
            (x, x_row, _, cap), sums = self.policy.of(view), logp.new_empty(_TOKEN_SUMS, count)
            inside, log_probs, entropies = self._of(rows, logp, entropy)
            kept, shape = self.kept[:, rows], (self.cool, cut.vocab, cut.pieces, count)
            numbers = (kept, kept.stride(0), log_probs, entropies, self.tokens[rows], k)
            with _on(logp):
                cut.launch(kernels.token_sums, size, sums, inside, x, x_row, cap, *shape)
                arguments = (sums, inside, *numbers, x, x_row, cap, *shape)
                cut.put_together(kernels.token_numbers, size, *arguments, K=_power_of_two(k))

    def write(self, weights: torch.Tensor, of_entropy: torch.Tensor | None, out: torch.Tensor) -> None:
        """Write the gradient, for weights of the log-probs [rows, k] and of the entropies [rows]."""
        from kl_companion.kernels import triton_tokens as kernels

        cut, k = _cut(self.policy.logits), self.tokens.shape[1]
        gathered, total = of_same(self.tokens, weights), weights.sum(-1)
        for rows, size, (view, place) in parts(self.policy.logits, out):
            x, x_row, _, cap = self.policy.of(view)
            inside, weight, whole, bend, ids = self._of(rows, gathered, total, of_entropy, self.tokens)
            kept = self.kept[:, rows]
            with _on(out), _writable(place) as to:
                cut.launch(
                    kernels.token_gradient,
                    size,
                    *(to, to.stride(0), weight, whole, bend, ids, k, inside, kept, kept.stride(0)),
                    *(x, x_row, cap, self.cool, cut.vocab, cut.pieces),
                    K=_power_of_two(k),
                )
