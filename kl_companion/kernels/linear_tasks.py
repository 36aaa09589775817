"""What is computed from a chunk of logits: divergences from a teacher, or log-probs and entropies.

A task knows its results per row and how a walk over a chunk fills them; `run` gives what `walk_chunks` calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from kl_companion.divergences import Divergence
from kl_companion.kernels.blocks import exact_dtype
from kl_companion.kernels.careful import RowIndex
from kl_companion.kernels.linear_walks import Projection
from kl_companion.kernels.walks import How, room_for_kept, walk_divergence, walk_tokens

Results = tuple[torch.Tensor, ...]
OnLogits = Callable[[int, int, torch.Tensor, bool], None]


class Distances(NamedTuple):
    """D_f of every row from a teacher, given by hidden states or by logits [rows, vocab]."""

    d: Divergence
    teacher: Projection | torch.Tensor
    how: How
    lead: torch.Size
    chunk: int  # rows

    @property
    def by_row(self) -> bool:
        """Whether one number per row scales the whole gradient of the row."""
        return True

    def results(self, logits: torch.Tensor) -> Results:
        """Room for the results, given a tensor of the dtype and device of the logits."""
        given = [self.teacher] if isinstance(self.teacher, torch.Tensor) else []
        return (torch.zeros(self.lead.numel(), dtype=exact_dtype(logits, *given), device=logits.device),)

    def _logits_of_teacher(self, count: int) -> Callable[[int, int], torch.Tensor]:
        teacher = self.teacher
        if isinstance(teacher, torch.Tensor):
            return lambda start, stop: teacher[start:stop]
        room = teacher.weight.new_empty(min(self.chunk, max(1, count)), teacher.weight.shape[0])
        return lambda start, stop: teacher.logits(start, stop, room)

    def run(self, results: Results, loss_weights: Results | None) -> OnLogits:
        """What is called with the logits of a chunk; loss_weights [rows] multiply the gradient."""
        (value,) = results
        kept = room_for_kept(self.d, value)
        reference = self._logits_of_teacher(len(value))

        def on_logits(start: int, stop: int, logits: torch.Tensor, overwrite: bool) -> None:
            here = slice(start, stop)
            walk_divergence(
                self.d,
                logits,
                reference(start, stop),
                kept[:, here],
                value=value[here],
                loss_weight=None if loss_weights is None else loss_weights[0][here],
                gradient=logits if overwrite else None,
                how=self.how,
                row_index=RowIndex(self.lead, start),
            )

        return on_logits


class LogProbs(NamedTuple):
    """Log-probs of tokens [rows, k], with entropies [rows] if wanted."""

    tokens: torch.Tensor
    how: How
    lead: torch.Size
    with_entropy: bool

    @property
    def by_row(self) -> bool:
        """Whether one number per row scales the whole gradient of the row."""
        return self.tokens.shape[1] == 1 and not self.with_entropy

    def results(self, logits: torch.Tensor) -> Results:
        """Room for the results, given a tensor of the dtype and device of the logits."""
        logp = torch.zeros(self.tokens.shape, dtype=exact_dtype(logits), device=logits.device)
        return (logp, torch.zeros_like(logp[:, 0])) if self.with_entropy else (logp,)

    def run(self, results: Results, loss_weights: Results | None) -> OnLogits:
        """What is called with the logits of a chunk; loss_weights like the results multiply the gradients."""
        logp, entropy = results[0], results[1] if self.with_entropy else None
        of_logp = None if loss_weights is None else loss_weights[0]
        of_entropy = loss_weights[1] if loss_weights is not None and self.with_entropy else None

        def on_logits(start: int, stop: int, logits: torch.Tensor, overwrite: bool) -> None:
            here = slice(start, stop)
            walk_tokens(
                logits,
                self.tokens[here],
                logp=logp[here],
                entropy=None if entropy is None else entropy[here],
                loss_weight=None if of_logp is None else of_logp[here],
                of_entropy=None if of_entropy is None else of_entropy[here],
                gradient=logits if overwrite else None,
                how=self.how,
                row_index=RowIndex(self.lead, start),
            )

        return on_logits


ChunkTask = Distances | LogProbs
