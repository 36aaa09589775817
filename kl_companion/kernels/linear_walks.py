"""From hidden states to logits and back, a tile of the logits at a time.

A tile has some tokens and some entries of the vocabulary: a matrix product fills it, the kernels read it and
write the gradient over it while it is in the cache, and two products make gradients of hidden states and
weight of that. The kernels read all tiles of a token before its gradient is known. Where memory allows, tiles
are kept until then; else they are made again, which costs two more products of six.

Products of narrow numbers are summed in float32, and logits and their gradient stay float32. What a
processor multiplies is converted tile by tile, for few can multiply bfloat16 as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from kl_companion.checks import check_choice
from kl_companion.kernels.blocks import by_piece, exact_dtype, pieces

# bytes of logits alive at once; more on a GPU, where each chunk of tokens reads the gradient of the weight
MEMORY = {"fast": 320_000_000, "frugal": 8_000_000}
_MEMORY_ELSEWHERE = {"fast": 1_280_000_000, "frugal": 128_000_000}
_WIDTH = {"cpu": 2048}  # entries of the vocabulary in a tile
_WIDTH_ELSEWHERE = 1 << 20
_ALIGNED = 16  # entries: what begins elsewhere is multiplied at half the speed
_LEAST = 256  # of them where rows of the weight have to be converted and memory is short
_FEW = 64  # tokens: of fewer, two more products cost less than reading the weight for so few
_SCRATCH, _PART = 10, 1 << 16  # tensors that the eager kernels need beside a tile, and their largest size

Results = tuple[torch.Tensor, ...]


class Projection(NamedTuple):
    """Hidden states [rows, features] and the layer that makes logits of them."""

    hidden: torch.Tensor
    weight: torch.Tensor  # [vocab, features]
    bias: torch.Tensor | None  # [vocab]

    def fill(self, out: torch.Tensor, hidden: torch.Tensor, weight: torch.Tensor, tokens: slice) -> None:
        """Logits of a tile, from its hidden states and rows of the weight as `factor` gave them."""
        _product(out, hidden, weight.T, add=False)
        if self.bias is not None:
            out.add_(self.bias[tokens])


class LogitRows(NamedTuple):
    """Logits [rows, vocab] that somebody else has made, or some of their rows; tiles copy those only."""

    logits: torch.Tensor
    rows: torch.Tensor | None = None  # int64 numbers; None for all

    def of(self, rows: torch.Tensor) -> LogitRows:
        """Some of the rows."""
        return LogitRows(self.logits, rows if self.rows is None else self.rows[rows])

    def tile(self, here: slice, tokens: slice) -> torch.Tensor:
        """Rows ``here`` and entries ``tokens`` of the vocabulary."""
        if self.rows is None:
            return self.logits[here, tokens]
        return self.logits[:, tokens].index_select(0, self.rows[here])


class TilePlan(NamedTuple):
    """How the logits are cut into tiles."""

    rows: int  # tokens; 0 for the operator of a graph to plan, with ``width`` bytes
    width: int  # entries of the vocabulary
    keep: bool  # whether the tiles of a row are kept until its gradient is made

    @property
    def places(self) -> int:
        """Entries of the memory of a tile: one more than it has, at least."""
        return (self.rows * self.width // _ALIGNED + 1) * _ALIGNED


class Room(NamedTuple):
    """Memory that all tiles use in turn: many short-lived tensors of their size would leave holes in it."""

    logits: torch.Tensor  # tiles alive x models x `TilePlan.places`
    rows: torch.Tensor  # for rows of a weight, where they are converted


class Tile(NamedTuple):
    """Some logits of the policy, and where they are."""

    tokens: slice  # of the vocabulary
    room: torch.Tensor  # the memory of ``logits`` and one place more
    logits: torch.Tensor  # [rows, width], of which the gradient takes the place
    ref_logits: torch.Tensor | None
    weight: torch.Tensor  # [width, features], of the policy

    def cut(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits of the tile as pieces of rows, [rows x pieces, length]."""
        return logits.reshape(len(logits) * pieces(logits.shape[-1], logits.device), -1)

    def by_piece(self, numbers: torch.Tensor) -> torch.Tensor:
        """Numbers [..., rows] repeated for every piece."""
        return by_piece(numbers, pieces(self.logits.shape[-1], numbers.device))

    def places(self, ids: torch.Tensor) -> torch.Tensor:
        """Where the logits of token ids [rows, k] are in ``room``; of other tiles' ids the place more."""
        start, width = self.tokens.start, self.logits.shape[-1]
        row = torch.arange(len(ids), device=ids.device).unsqueeze(-1)
        inside = (ids >= start) & (ids < start + width)
        return torch.where(inside, row * width + ids - start, self.logits.numel())


class Chunk:
    """Some tokens: iterating gives their tiles, filled when they are new or were not kept."""

    def __init__(
        self,
        policy: Projection,
        teacher: Projection | LogitRows | None,
        here: slice,
        plan: TilePlan,
        room: Room | None = None,
    ) -> None:
        """Rows ``here``; ``room`` as `room_for_tiles`."""
        self.policy, self.teacher, self.here, self.plan = policy, teacher, here, plan
        self.models = 2 if isinstance(teacher, Projection) else 1
        self.room = room_for_tiles(policy, teacher, plan) if room is None else room
        wide = self.room.logits.dtype
        self.hidden = factor(policy.hidden[here], wide)
        self.ref_hidden = factor(teacher.hidden[here], wide) if isinstance(teacher, Projection) else None
        self.filled = False

    def __len__(self) -> int:
        """Tokens."""
        return len(self.hidden)

    def __iter__(self) -> Iterator[Tile]:
        """The tiles, in order."""
        policy, teacher, vocab = self.policy, self.teacher, len(self.policy.weight)
        for at, start in enumerate(range(0, vocab, self.plan.width)):
            tokens = slice(start, min(vocab, start + self.plan.width))
            count, places = len(self) * (tokens.stop - start), self.plan.places
            room = self.room.logits[places * self.models * (at if self.plan.keep else 0) :]
            x, y = room[:count].view(len(self), -1), None
            if isinstance(teacher, LogitRows):
                y = teacher.tile(self.here, tokens)
            elif teacher is not None and self.ref_hidden is not None:
                y = room[places:][:count].view(len(self), -1)
                if not self.filled:
                    teacher.fill(y, self.ref_hidden, self._rows(teacher.weight[tokens]), tokens)
            weight = self._rows(policy.weight[tokens])
            if not self.filled:
                policy.fill(x, self.hidden, weight, tokens)
            yield Tile(tokens, room[: count + 1], x, y, weight)
        self.filled = self.plan.keep

    def _rows(self, weight: torch.Tensor) -> torch.Tensor:
        """`factor` of some rows of a weight, until the next ones."""
        if factor(weight[:1], self.room.rows.dtype).dtype == weight.dtype:
            return weight
        return self.room.rows[: weight.numel()].view(weight.shape).copy_(weight)

    def sums(self, of_tile: Callable[[Tile], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        """What a reading finds of pieces of rows, of all tiles side by side: [rows, pieces] each."""
        parts = zip(*([part.view(len(self), -1) for part in of_tile(tile)] for tile in self), strict=True)
        return tuple(torch.cat(part, -1) for part in parts)

    def row(self, at: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """All logits of one of the rows, [1, vocab], of policy and teacher."""
        first = self.here.start + at
        alone = Chunk(
            self.policy, self.teacher, slice(first, first + 1), self.plan._replace(rows=1, keep=False)
        )
        x, *y = zip(*([t.clone() for t in tile[2:4] if t is not None] for tile in alone), strict=True)
        return torch.cat(x, -1), torch.cat(y[0], -1) if y else None


@runtime_checkable
class ChunkTask(Protocol):
    """What is computed of the logits of a chunk."""

    @property
    def teacher(self) -> Projection | LogitRows | None:
        """Whose logits are needed beside those of the policy."""

    def fill(self, chunk: Chunk, results: Results, kept: torch.Tensor) -> None:
        """Fill the results of the chunk's rows, and the numbers [..., rows] that gradients need."""

    def writer(self, chunk: Chunk, kept: torch.Tensor, loss_weights: Results) -> Callable[[Tile], None]:
        """What writes the gradient over the logits of a tile; loss_weights are like the results."""


class Gradients(NamedTuple):
    """Where the gradients of a `Projection` go; None where one is not wanted."""

    hidden: torch.Tensor | None
    weight: torch.Tensor | None
    bias: torch.Tensor | None


def factor(x: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """A factor of a product that is summed in ``wide``: converted unless the device can do without."""
    by_device = x.device.type == "cuda" and x.itemsize < wide.itemsize == torch.float32.itemsize
    return x if by_device else x.to(wide)


def _product(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, add: bool) -> None:
    """a @ b into ``out``, or added to it, summed in the dtype of ``out``."""
    if a.dtype == out.dtype:
        torch.addmm(out, a, b, beta=int(add), out=out)
    else:
        torch.addmm(out, a, b, out_dtype=out.dtype, beta=int(add), out=out)


def budget(memory: str | int, device: str = "cpu") -> int:
    """Bytes of a setting on a type of device, or the bytes themselves; ValueError otherwise."""
    if isinstance(memory, str):
        check_choice("memory", memory, MEMORY)
        return (MEMORY if device == "cpu" else _MEMORY_ELSEWHERE)[memory]
    if isinstance(memory, bool) or not isinstance(memory, int) or memory <= 0:
        raise ValueError(f"memory is {memory!r}, expected 'fast', 'frugal' or a number of bytes")
    return memory


def plan_tiles(count: int, memory: str | int, policy: torch.Tensor, buffers: int) -> TilePlan:
    """Tiles of ``buffers`` arrays of logits that fit the budget; a token and one tile always do."""
    vocab, size = len(policy), exact_dtype(policy).itemsize
    width = min(vocab, _WIDTH.get(policy.device.type, _WIDTH_ELSEWHERE))
    room = budget(memory, policy.device.type)
    if torch.compiler.is_compiling():
        return TilePlan(0, room, False)
    fitting = room // (buffers * vocab * size)
    keep = fitting >= max(1, min(count, _FEW))
    if not keep:
        entries, features = room // size, policy.shape[1]
        if factor(policy[:1], exact_dtype(policy)).dtype != policy.dtype:  # rows of the weight are converted
            width = min(width, max(_LEAST, entries // (8 * features) // _LEAST * _LEAST))
            entries -= width * features
        most = entries - _SCRATCH * _PART, entries * buffers // (buffers + _SCRATCH)
        fitting = max(1, max(most) // (buffers * width))
    return TilePlan(math.ceil(count / math.ceil(count / fitting)) if count else 1, width, keep)


def room_for_tiles(policy: Projection, teacher: Projection | LogitRows | None, plan: TilePlan) -> Room:
    """Room for the tiles of a plan."""
    weights = [policy.weight, *([teacher.weight] if isinstance(teacher, Projection) else [])]
    wide, alive = exact_dtype(policy.weight), math.ceil(len(policy.weight) / plan.width) if plan.keep else 1
    converted = [w.shape[1] for w in weights if factor(w[:1], wide).dtype != w.dtype]
    empty = partial(policy.weight.new_empty, dtype=wide)
    return Room(empty(alive * len(weights) * plan.places), empty(plan.width * max(converted, default=0)))


def walk_chunks(
    policy: Projection,
    task: ChunkTask,
    plan: TilePlan,
    kept: torch.Tensor,
    *,
    results: Results | None = None,
    loss_weights: Results | None = None,
    wanted: tuple[bool, ...] = (False, False, False),
) -> Gradients:
    """Fill results (and ``kept``), where given, and make the gradients that are wanted.

    Args:
        policy: Whose gradients they are.
        task: What is computed.
        plan: The tiles.
        kept: [..., rows]: filled with ``results``, read without.
        results: Filled; None in a backward pass.
        loss_weights: Like the results, by which gradients are multiplied.
        wanted: Whether those of hidden states, weight and bias are.
    """
    hidden, weight, bias = policy
    count, gradient = len(hidden), loss_weights is not None and any(wanted)
    wide, several = exact_dtype(weight), plan.rows < count
    made = Gradients(
        torch.empty_like(hidden, dtype=wide) if wanted[0] else None,
        # without tokens nothing fills it
        (torch.empty_like if count else torch.zeros_like)(weight, dtype=wide if several else weight.dtype)
        if wanted[1]
        else None,
        torch.zeros_like(bias, dtype=exact_dtype(bias)) if wanted[2] and bias is not None else None,
    )
    plan = plan._replace(keep=plan.keep and gradient and results is not None)
    room = room_for_tiles(policy, task.teacher, plan) if count else None
    for start in range(0, count, plan.rows):
        chunk = Chunk(policy, task.teacher, slice(start, min(count, start + plan.rows)), plan, room)
        if results is not None:
            task.fill(chunk, results, kept)
        if loss_weights is not None and gradient:
            write = task.writer(chunk, kept, loss_weights)
            for tile in chunk:
                write(tile)
                _collect(made, chunk, tile)
    if weight.dtype == torch.float16:
        # an overflow times zero, or minus another, is NaN: make it infinity, as a scaler of the loss expects
        for total in made:
            if total is not None:
                total.nan_to_num_(math.inf, math.inf, -math.inf)
    return made


def _collect(made: Gradients, chunk: Chunk, tile: Tile) -> None:
    """Add what the gradient of a tile's logits means for hidden states, weight and bias."""
    by_logits, tokens, first = tile.logits.to(tile.weight.dtype), tile.tokens, chunk.here.start == 0
    if made.hidden is not None:
        _product(made.hidden[chunk.here], by_logits, tile.weight, add=tokens.start > 0)
    if made.weight is not None:
        total = made.weight[tokens]
        if exact_dtype(total) == total.dtype or by_logits.dtype == total.dtype:
            _product(total, by_logits.T, chunk.hidden, add=not first)
        else:  # of all tokens at once: over the rows of the weight, which were converted and are not needed
            total.copy_(torch.mm(by_logits.T, chunk.hidden, out=tile.weight))
    if made.bias is not None:
        made.bias[tokens] += tile.logits.sum(0, dtype=made.bias.dtype)


def narrow(made: Gradients, policy: Projection) -> tuple[torch.Tensor | None, ...]:
    """Gradients in the dtypes of what they belong to."""
    pairs = zip(made, policy, strict=True)
    return tuple(None if g is None or x is None else g.to(x.dtype) for g, x in pairs)
