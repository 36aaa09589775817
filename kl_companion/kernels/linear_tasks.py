"""What is computed from the logits of a chunk: divergences from a teacher, or log-probs and entropies.

A task fills its results and a few numbers per row from readings of all tiles, and then writes the gradient
over each tile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from kl_companion.divergences import Divergence, entries_of
from kl_companion.kernels import gpu, tokens, walks
from kl_companion.kernels.blocks import exact_dtype
from kl_companion.kernels.careful import Careful, careful_rows
from kl_companion.kernels.lanes import cooled, load, past_cap
from kl_companion.kernels.linear_walks import Chunk, LogitRows, Projection, Results, Tile
from kl_companion.kernels.logit_transform import LogitTransform
from kl_companion.kernels.row_numbers import MASS, ORDINARY, fill_ratio_numbers, value_and_mean


class Distances(NamedTuple):
    """D_f of every row from a teacher, given by hidden states or by logits [rows, vocab]."""

    d: Divergence
    teacher: Projection | LogitRows
    how: LogitTransform
    rows: int

    def of(self, rows: torch.Tensor) -> Distances:
        """The task of some of the rows."""
        teacher = self.teacher
        some = (
            teacher.of(rows)
            if isinstance(teacher, LogitRows)
            else teacher._replace(hidden=teacher.hidden.index_select(0, rows))
        )
        return self._replace(teacher=some, rows=len(rows))

    @property
    def by_row(self) -> bool:
        """Whether one number per row scales the whole gradient of the row."""
        return True

    def results(self, logits: torch.Tensor) -> Results:
        """Room for the results, given a tensor of the dtype and device of the logits."""
        given = [self.teacher.logits] if isinstance(self.teacher, LogitRows) else []
        return (torch.zeros(self.rows, dtype=exact_dtype(logits, *given), device=logits.device),)

    def room(self, results: Results) -> torch.Tensor:
        """[numbers, rows], see `walks.room_for_kept`."""
        return walks.room_for_kept(self.d, results[0])

    def fill(self, chunk: Chunk, results: Results, kept: torch.Tensor) -> None:
        """Divergences and numbers of the chunk's rows."""
        (value,), numbers, dtype = results, kept[:, chunk.here], kept.dtype
        on_gpu = _served(self.d.name, chunk, self.how, numbers)
        if on_gpu and all(self._on_gpu(tile, numbers, value=value[chunk.here]) for tile in chunk):
            return
        compiled, scalars = self.how.compiles(len(chunk)), self.how.scalars(dtype)
        kl, entries = self.d.name == walks.REVERSE_KL, entries_of(self.d)
        sums = chunk.sums(
            lambda t: walks.FIRST_SUMS(compiled, *self._cut(t, dtype), *scalars, dtype=dtype, kl=kl)
        )
        if kl:
            found, numbers[:] = walks.KL_NUMBERS(compiled, *sums, scalars[0])
            good = found < ORDINARY[dtype]
        else:
            fill_ratio_numbers(self.d, numbers, walks.RATIO_NUMBERS(compiled, *sums, scalars[0]))

            def values_and_slopes(tile: Tile) -> tuple[torch.Tensor, ...]:
                given = (compiled, *self._cut(tile, dtype), *scalars, *tile.by_piece(numbers))
                sums: tuple[torch.Tensor, ...] = walks.DIVERGENCE_SUMS(*given, entries=entries, dtype=dtype)
                return sums

            found, good = value_and_mean(numbers, *chunk.sums(values_and_slopes))
        value[chunk.here] = found.to(value.dtype)
        if value.device.type == "cpu" and not bool(good.all()):
            bad = ~good
            numbers[MASS, bad] = torch.nan
            value[chunk.here][bad] = torch.nan
            for row in (bad & ~_no_numbers(chunk, numbers)).nonzero().flatten().tolist():
                value[chunk.here][row] = self._careful(chunk, row, value.dtype).value[0]

    def writer(self, chunk: Chunk, kept: torch.Tensor, loss_weights: Results) -> Callable[[Tile], None]:
        """What writes the gradient over the logits of a tile."""
        numbers, dtype = kept[:, chunk.here], kept.dtype
        compiled, scalars = self.how.compiles(len(chunk)), self.how.scalars(dtype)
        weight = loss_weights[0][chunk.here].to(dtype)
        careful: dict[int, torch.Tensor] = {}
        if weight.device.type == "cpu":
            bad = numbers[MASS].isnan()
            rows = (bad & ~_no_numbers(chunk, numbers)).nonzero().flatten().tolist()
            careful = {row: self._careful(chunk, row, dtype).gradient[0] * weight[row] for row in rows}
        factor = cooled(weight / numbers[MASS], scalars[0])

        def write(tile: Tile) -> None:
            x, y = self._cut(tile, dtype)
            of_row = tile.by_piece(numbers)
            given: tuple[Any, ...] = (compiled, x, y, *scalars)
            if self.d.name == walks.REVERSE_KL:
                peak, base, _, mean = of_row
                walks.KL_GRADIENT(*given, peak, base, mean, tile.by_piece(-factor), None, dtype=dtype)
            else:
                given += (tile.by_piece(factor), None, *of_row)
                walks.DIVERGENCE_GRADIENT(*given, entries=entries_of(self.d), dtype=dtype)
            for row, gradient in careful.items():
                tile.logits[row] = gradient[tile.tokens].to(x.dtype)

        def write_on_gpu(tile: Tile) -> None:
            if not self._on_gpu(tile, numbers, loss_weight=weight, gradient=tile.logits):
                write(tile)

        return write_on_gpu if _served(self.d.name, chunk, self.how, numbers) else write

    def _on_gpu(self, tile: Tile, numbers: torch.Tensor, **what: torch.Tensor) -> bool:
        assert tile.ref_logits is not None
        value, weight, gradient = (what.get(name) for name in ("value", "loss_weight", "gradient"))
        logits = tile.logits, tile.ref_logits
        return gpu.walk_divergence(self.d, *logits, numbers, value, weight, gradient, self.how, None)

    def _careful(self, chunk: Chunk, row: int, dtype: torch.dtype) -> Careful:
        x, y = chunk.row(row)
        assert y is not None
        return careful_rows(self.d, x, y, self.how, dtype)

    def _cut(self, tile: Tile, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Pieces of the logits of both, the policy's in the memory of the tile."""
        assert tile.ref_logits is not None
        x, y = tile.logits, tile.ref_logits
        if self.how.ratio != 1.0:
            y = self.how.comparable(x, y, dtype)[1]
        return tile.cut(x), tile.cut(y)


class LogProbs(NamedTuple):
    """Log-probs of tokens [rows, k], with entropies [rows] if wanted."""

    tokens: torch.Tensor
    how: LogitTransform
    with_entropy: bool

    def of(self, rows: torch.Tensor) -> LogProbs:
        """The task of some of the rows."""
        return self._replace(tokens=self.tokens.index_select(0, rows))

    @property
    def teacher(self) -> None:
        """None is needed."""

    @property
    def by_row(self) -> bool:
        """Whether one number per row scales the whole gradient of the row."""
        return self.tokens.shape[1] == 1 and not self.with_entropy

    def results(self, logits: torch.Tensor) -> Results:
        """Room for the results, given a tensor of the dtype and device of the logits."""
        logp = torch.zeros(self.tokens.shape, dtype=exact_dtype(logits), device=logits.device)
        return (logp, torch.zeros_like(logp[:, 0])) if self.with_entropy else (logp,)

    def room(self, results: Results) -> torch.Tensor:
        """[numbers, rows]: `tokens.LogProbNumbers`, and the logits of the tokens."""
        rows, count = self.tokens.shape
        # an id outside the vocabulary finds no logit: its log-prob is NaN
        return results[0].new_full((3 + count, rows), torch.nan)

    def fill(self, chunk: Chunk, results: Results, kept: torch.Tensor) -> None:
        """Log-probs, entropies and numbers of the chunk's rows."""
        ids, here, dtype = self.tokens[chunk.here], chunk.here, kept.dtype
        of_tokens = kept[3:, here].T

        def pick(tile: Tile) -> None:
            at = tile.places(ids)
            of_tokens.copy_(torch.where(at < tile.logits.numel(), tile.room[at], of_tokens))

        def fill_on_gpu(tile: Tile) -> bool:
            pick(tile)
            entropy = results[1][here] if self.with_entropy else None
            return self._on_gpu(tile, chunk, kept, logp=results[0][here], entropy=entropy)

        if _served(gpu.TOKENS, chunk, self.how, kept) and all(map(fill_on_gpu, chunk)):
            return
        cool, cap, _ = self.how.scalars(dtype)
        compiled = self.how.compiles(len(chunk))

        def read(tile: Tile) -> tuple[torch.Tensor, ...]:
            pick(tile)
            cut = tile.cut(tile.logits)
            found: tuple[torch.Tensor, ...] = walks.TOKEN_SUMS(
                compiled, cut, cool, cap, dtype=dtype, entropy=self.with_entropy
            )
            return found

        numbers = tokens.token_numbers(chunk.sums(read), cool)
        found = tokens.log_probs(load(of_tokens, dtype, cap), numbers, cool)
        results[0][here], kept[0, here], kept[1, here] = found, numbers.peak, numbers.rest
        if numbers.surprise is not None:
            kept[2, here] = numbers.surprise
            results[1][here] = numbers.rest.log1p() - numbers.surprise

    def writer(self, chunk: Chunk, kept: torch.Tensor, loss_weights: Results) -> Callable[[Tile], None]:
        """What writes the gradient over the logits of a tile."""
        of_logp, *bends = (weight[chunk.here] for weight in loss_weights)
        bend = bends[0] if bends else None

        def write_on_gpu(tile: Tile) -> None:
            if not self._on_gpu(tile, chunk, kept, loss_weight=of_logp, of_entropy=bend):
                self._writer(chunk, kept, of_logp, bend)(tile)

        on_gpu = _served(gpu.TOKENS, chunk, self.how, kept)
        return write_on_gpu if on_gpu else self._writer(chunk, kept, of_logp, bend)

    def _writer(
        self, chunk: Chunk, kept: torch.Tensor, of_logp: torch.Tensor, bend: torch.Tensor | None
    ) -> Callable[[Tile], None]:
        here, dtype = chunk.here, kept.dtype
        ids, (cool, cap, _) = self.tokens[here], self.how.scalars(dtype)
        peak, rest, surprise, *_ = kept[:, here]
        numbers = tokens.LogProbNumbers(peak, rest, surprise if self.with_entropy else None)
        loaded, compiled = load(kept[3:, here].T, dtype, cap), self.how.compiles(len(chunk))
        of_logp, bend = of_logp.to(dtype), None if bend is None else bend.to(dtype)
        entries = tokens.token_entries(loaded, numbers, cool, of_logp, bend, ids)
        entries = past_cap(entries, loaded, cap).flatten()
        by_row = tokens.gradient_numbers(numbers, cool, of_logp, bend)

        def write(tile: Tile) -> None:
            cut, at = tile.cut(tile.logits), tile.places(ids).flatten()
            by_piece = (None if n is None else tile.by_piece(n) for n in by_row)
            walks.TOKEN_GRADIENT(compiled, cut, cool, cap, *by_piece, None, dtype=dtype)
            tile.room.scatter_(0, at, entries.to(tile.room.dtype))

        return write

    def _on_gpu(self, tile: Tile, chunk: Chunk, kept: torch.Tensor, **what: torch.Tensor | None) -> bool:
        logp, entropy, weight, bend = (
            what.get(name) for name in ("logp", "entropy", "loss_weight", "of_entropy")
        )
        tensors = (tile.logits, self.tokens[chunk.here], kept[:3, chunk.here], logp, entropy, weight, bend)
        return gpu.walk_tokens(*tensors, tile.logits, self.how, None)


def _served(kind: str, chunk: Chunk, how: LogitTransform, numbers: torch.Tensor) -> bool:
    """Whether the kernels of a GPU do a kind of walk on a chunk, whose logits are one tile there."""
    logits = [chunk.room.logits, *([chunk.teacher.logits] if isinstance(chunk.teacher, LogitRows) else [])]
    whole = chunk.plan.width >= len(chunk.policy.weight) and numbers.dtype == torch.float32
    return bool(how.compiled) and whole and gpu.serves(kind, *logits)


def _no_numbers(chunk: Chunk, numbers: torch.Tensor) -> torch.Tensor:
    """Rows [rows] whose hidden states or largest logit are no numbers: their results are NaN."""
    none = ~numbers[0].isfinite() | ~chunk.hidden.isfinite().all(-1)
    return none if chunk.ref_hidden is None else none | ~chunk.ref_hidden.isfinite().all(-1)
