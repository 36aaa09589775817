"""Layouts: how tensors of a loss may be laid out, and the one under which it reads every token."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import product
from typing import NamedTuple

import torch

from kl_companion.auditing.reading.heads import HEADS

# roles that tell a loss which tokens are the policy's own
MASKS = {"completion_mask", "outside_mask", "labels", "lengths"}
_DISTRIBUTIONS = ("logits", "probs", "_all", "outputs")  # ends of roles with an entry for each token
_SAME = 1e-9  # of a loss, relatively


class Layout(NamedTuple):
    """What a name does not say about its tensor; the first that runs and reads every token is taken.

    Attributes:
        shifted: Whether ids, masks and logits are of prompt and answer together, so that ``logits[:, t]``
            scores ``input_ids[:, t + 1]``; else they are of the answer, aligned.
        mask: Dtype of masks.
        per_token: Whether rewards and advantages are [batch, seq], not [batch].
        ignored: Whether labels are -100 outside the answer.
        whole: Whether log-probs that are not said to be of a token are of the whole vocabulary.
        wide: Where ids are of prompt and answer, whether log-probs and rewards have columns for the prompt:
            "" none, "own" one for each token, "ahead" the same one column earlier, as logits that score the
            next token, "short" likewise without the last column, which scores nothing.
        padded: Whether the loss is told what is padding; else log-probs are 0 there.
        prompt: Columns of the prompt, where there are any. If two, ids of tokens have them too.
        cut: Whether tensors of tokens are lists, an answer with its own length each.
        packed: Whether the tokens of all answers are in one row, one answer after the other: "flat" [total],
            "row" [1, total], "" not; "rows" [total] of the policy's own tokens alone, as a classifier's are.
        own_old: Whether the policy before the first update is the policy itself, and another one sampled.
        apart: Whether prompt and answer arrive as tensors of their own: masks have no columns for the prompt.
    """

    shifted: bool = False
    mask: torch.dtype = torch.float64
    per_token: bool = False
    ignored: bool = True
    whole: bool = False
    wide: str = ""
    padded: bool = True
    prompt: int = 1
    cut: bool = False
    packed: str = ""
    own_old: bool = False
    apart: bool = False

    @property
    def words(self) -> str:
        """Return what a reader has to know of it."""
        answers = "in lists, one for each answer, of its own length" if self.cut else ""
        answers = "in one row, one answer after the other" if self.packed else answers
        answers = "of rows, one for each token of the policy" if self.packed == "rows" else answers
        if self.prompt == 1:
            return answers
        scored = "t" if self.wide == "own" else "t + 1"
        return "; ".join(x for x in (f"of prompt and answer, position t scores token {scored}", answers) if x)


def _arrangements(roles: set[str], cut: bool) -> list[tuple[bool, str]]:
    """Return ways to arrange answers, (in lists, packed), the likeliest first."""
    apart, packed = [(cut, ""), (not cut, "")], [(False, "flat"), (False, "row")]
    if roles & {"boundaries", "segments"}:
        return packed + apart
    return apart + packed if roles & {"positions", "lengths"} else apart


def layouts(
    roles: set[str], cut: bool = False, among_all: bool = False, rows: bool = False
) -> Iterator[Layout]:
    """Yield the layouts that differ for these roles, the most common first.

    Args:
        roles: Of everything that the loss reads.
        cut: Whether its parameters are annotated as lists of tensors.
        among_all: Whether log-probs that are not said to be of a token are of the whole vocabulary.
        rows: Whether tensors are [total] and [total, vocab], a row for each of the policy's tokens.
    """
    roles = roles - HEADS.keys()  # those have the columns of the logits
    ids = bool(roles & {"input_ids", "labels", "tokens"})
    of_vocabulary = any(r.endswith(_DISTRIBUTIONS) for r in roles)
    whole = bool(roles & {"input_ids", "labels", "prompt_ids"}) and of_vocabulary
    per_row = any(r.endswith("logp") for r in roles) or "rewards" in roles
    places: list[tuple[bool, str, int]] = [(False, "", 1)]
    if whole:
        places = [(True, "own", 1)] * per_row + [(True, "", 1), (False, "", 1)]
    elif "input_ids" in roles and "logp" not in roles:
        places = [(True, "", 1)]
    if rows:
        places = places[-1:]
    masks = roles & {"completion_mask", "outside_mask"}
    if not rows and (masks or "labels" in roles) and (per_row or of_vocabulary):
        places += [(True, wide, 2) for wide in ("ahead", "short", "own")]
    elif ids and of_vocabulary and not whole and not rows:
        places.append((True, "", 2))
    for (lists, packed), (shifted, wide, prompt), ignored, per_token, mask in product(
        [(False, "rows")] if rows else _arrangements(roles, cut),
        places,
        (True, False) if "labels" in roles else (True,),
        (False, True) if "rewards" in roles else (False,),
        (torch.float64, torch.bool, torch.int64) if masks else (torch.float64,),
    ):
        padded = bool(roles & MASKS)
        layout = Layout(shifted, mask, per_token, ignored, among_all, wide, padded, prompt, lists, packed)
        yield layout._replace(apart="prompt_ids" in roles and "input_ids" not in roles and not wide)
        if whole and masks and shifted and not wide:  # ids have columns for the prompt, masks have none
            yield layout._replace(apart=True)


class ProbedLoss(NamedTuple):
    """A loss on a small batch under one layout.

    Attributes:
        loss: A scalar or [batch, seq].
        logits: Of the policy, of which the loss is a function, [batch, seq, vocab].
        mask: [batch, seq].
        beyond: Numbers of the policy that score no token of an answer.
    """

    loss: torch.Tensor
    logits: torch.Tensor
    mask: torch.Tensor
    beyond: tuple[torch.Tensor, ...]


def choose(
    run: Callable[[Layout], ProbedLoss],
    roles: Callable[[], set[str]],
    cut: bool,
    among_all: bool = False,
    sliced: bool = False,
    of_rows: bool = False,
) -> Layout | None:
    """Return the first layout under which a loss reads every token, else the first under which it runs.

    Args:
        run: The loss under a layout; ValueError where it does not run.
        roles: Of what it has read so far: a batch shows what it is asked for as it is read.
        cut: See `layouts`.
        among_all: See `layouts`.
        sliced: Whether the loss cuts tensors into pieces.
        of_rows: Whether the loss takes the second axis for the vocabulary.

    Returns:
        The layout; None where every one that runs reads what is no part of an answer.

    Raises:
        ValueError: that of the first layout, where none runs.
    """
    if of_rows and (layout := _first(run, layouts(roles(), cut, among_all, rows=True))):
        return layout
    errors: list[ValueError] = []
    reads: dict[Layout, bool | None] = {}  # whether it reads every token; None where it cannot be taken
    while True:
        order = list(layouts(roles(), cut, among_all))
        layout = next((x for x in order if reads.get(x, True)), None)
        if layout is None or layout in reads:
            break
        try:
            reads[layout] = _reads_every_token(run(layout))
        except ValueError as error:
            if getattr(error, "in_every_layout", False):
                raise
            errors.append(error)
            reads[layout] = None
    layout = layout or next((x for x in order if reads[x] is not None), None)
    if layout is None and errors:
        if any(r.endswith(_DISTRIBUTIONS) for r in roles()):  # a classifier has no answers
            layout = _first(run, layouts(roles(), cut, among_all, rows=True))
        if layout is None:
            raise errors[0]
    if layout is None or layout.cut or layout.packed:
        return layout
    others = [layout._replace(cut=True)]
    if sliced and "lengths" in roles() and _reads_padding(run(layout)):
        others.append(layout._replace(packed="flat"))
    return next((x for x in others if _is_another_loss(run, layout, x)), layout)


def _first(run: Callable[[Layout], ProbedLoss], order: Iterable[Layout]) -> Layout | None:
    """Return the first layout under which a loss runs."""
    for layout in order:
        with suppress(ValueError):
            run(layout)
            return layout
    return None


def places_reached(probe: ProbedLoss) -> torch.Tensor:
    """Return which places of an answer receive gradient, [seq]; all of them where none does."""
    (gradient,) = torch.autograd.grad(probe.loss.sum(), probe.logits, materialize_grads=True)
    reached = (gradient.abs().sum(-1) * probe.mask).sum(0) > 0
    return reached if reached.any() else ~reached


def _reads_every_token(probe: ProbedLoss) -> bool | None:
    """Whether gradient reaches every place of an answer; None where it reaches what is no part of one."""
    if not probe.loss.requires_grad:
        return True
    others = (
        torch.autograd.grad(probe.loss.sum(), probe.beyond, retain_graph=True, materialize_grads=True)
        if probe.beyond
        else ()
    )
    return None if any(g.any() for g in others) else bool(places_reached(probe).all())


def _reads_padding(probe: ProbedLoss) -> bool:
    """Whether gradient reaches what is behind the end of an answer."""
    (gradient,) = torch.autograd.grad(probe.loss.sum(), probe.logits, materialize_grads=True)
    return bool((gradient.abs().sum(-1) * (1 - probe.mask.to(gradient.dtype))).any())


def _is_another_loss(run: Callable[[Layout], ProbedLoss], padded: Layout, other: Layout) -> bool:
    """Whether a loss runs on a layout without padding and is another one there."""
    try:
        probes = [run(padded), run(other)]
    except ValueError:
        return False
    sums = [(p.loss if p.loss.ndim == 0 else (p.loss * p.mask).sum(-1).mean()) for p in probes]
    return bool((sums[0] - sums[1]).abs() > _SAME * sums[0].abs())
