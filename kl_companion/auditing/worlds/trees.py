"""Worlds on which a loss is judged: enumerated trees, near and far, fresh and stale, with text of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import NamedTuple

import torch

from kl_companion.auditing.worlds.objective import ValueAndField, fields_and_values
from kl_companion.auditing.worlds.objectives import OBJECTIVES
from kl_companion.tabular import Problem
from kl_companion.tabular.populations import Population, population_tree

TEXT_ROWS = 2  # rows of logits for a tool's text, for each first token
SHORT = 3  # trees of two tokens
SHORT_PARTS = (6, 7, 9)  # of their probabilities, where they are alone: denominators
# (seed, denominator of the probabilities) of three trees of two tokens and of one of three. A denominator
# bounds log(ref/pi): second tokens of the third far tree reach clamps of 10 on log(ref/pi)**2 / 2, at 4.47.
# First ones have few parts, so that a loss that loops over the batch loops over few. On the first,
# a plain sum over the reference's two likeliest tokens is negative, so that it is not the one clamped at 0
NEAR, FAR = ((0, 6), (1, 6), (2, 6), (3, 5)), ((88, 24), (1, 30), (2, (6, 160)), (3, 12))
# seeds for a loss of the k likeliest tokens, on trees of k + 2: a bucket for the rest holds two of them. Some
# plain sum over the likeliest is negative on some tree, and so another than the one clamped at 0
HEADED_NEAR, HEADED_FAR = (156, 1, 0, 3), (110, 150, 31, 3)
_SPARE = 3  # parts beside 1 + 2 + ... that no two tokens of a row are equally likely with


class Condition(NamedTuple):
    """The worlds on which a loss was evaluated.

    Attributes:
        off_policy: Whether an older policy has sampled.
        eos: Whether lengths vary.
        scale: Size of the log-ratios.
        tool: Whether answers contain a tool's text, see `with_tool`.
    """

    off_policy: bool
    eos: bool
    scale: float
    tool: bool = False


# objectives' values and fields by condition, vocabulary and whether trees are ranked, of every world:
# filled where objectives are slow to differentiate
RECORDED: dict[tuple[Condition, int, bool], tuple[dict[str, ValueAndField], ...]] = {}


@cache
def worlds(
    condition: Condition, vocab: int, longer: bool = True, headed: bool = False
) -> tuple[Population, ...]:
    """Return a tree of three tokens, where sums are looked for, and three of two, where they have to hold.

    Args:
        condition: Sampling, lengths, size of log-ratios.
        vocab: Different tokens.
        longer: Whether the tree of three tokens is among them.
        headed: Whether it has to be certain which tokens are the likeliest.
    """
    off_policy, eos, scale, tool = condition
    if tool:
        plain = worlds(condition._replace(tool=False), vocab, longer, headed)
        return tuple(Population(with_tool(w.problem, seed), w.which) for seed, w in enumerate(plain))
    tree = partial(population_tree, vocab, eos=eos, off_policy=off_policy, scale=scale, ranked=headed)
    wanted: tuple[tuple[int, int | tuple[int, int]], ...] = NEAR if scale <= 1 else FAR
    if headed:
        seeds = HEADED_NEAR if scale <= 1 else HEADED_FAR
        wanted = tuple((s, vocab * (vocab + 1) // 2 + _SPARE) for s in seeds)
    *short, (seed, parts) = wanted
    if not longer and scale <= 1:  # with equal parts, lengths of all three would have one distribution
        short = [(s, parts) for (s, _), parts in zip(short, SHORT_PARTS, strict=True)]
    trees = tuple(tree(2, seed=s, parts=n) for s, n in short)
    return (tree(3, seed=seed, parts=parts), *trees) if longer else trees


@cache
def known_fields(
    condition: Condition, vocab: int, names: tuple[str, ...], longer: bool, headed: bool
) -> tuple[Mapping[str, ValueAndField], ...]:
    """Return {objective: (value, field)} of every world; the same for every loss."""
    if condition.tool:  # no objective depends on what the policy did not write
        plain = known_fields(condition._replace(tool=False), vocab, names, longer, headed)
        return tuple(
            {n: (v, torch.cat([f, f.new_zeros(TEXT_ROWS * vocab, vocab)])) for n, (v, f) in there.items()}
            for there in plain
        )
    places = worlds(condition, vocab, longer, headed)
    before = RECORDED.get((condition, vocab, headed), ({},) * len(places))[-len(places) :]
    known = {n: OBJECTIVES[n] for n in names}
    pairs = zip(places, before, strict=True)
    return tuple(fields_and_values(known, place.problem, there) for place, there in pairs)


def with_tool(problem: Problem, seed: int = 0) -> Problem:
    """Return the world with a tool's text behind the first token of every answer that goes on.

    The first token decides the text: one or two tokens, which the policy did not write. The mask is 0 on
    them, and every model scores them, by rows of logits of their own, which come last. Probabilities of
    answers, objectives and their gradients in all other rows are the same as without the text.

    Args:
        problem: A world whose answers have no hole in the mask.
        seed: Of the models' log-probs of the text.
    """
    length, vocab = problem.sequences.shape[1], problem.logits.shape[-1]
    place, first = torch.arange(length + 2), problem.sequences[:, :1]
    goes_on = problem.completion_mask.sum(-1, keepdim=True) > 1
    text = torch.where(goes_on, 1 + first % 2, torch.zeros_like(first))
    source = torch.where(place > text, place - text, place.clamp(max=0)).clamp(max=length - 1)
    inside = (place > 0) & (place <= text)
    own = ~inside & (place - text < length)

    def spread(x: torch.Tensor, of_text: torch.Tensor) -> torch.Tensor:
        return torch.where(inside, of_text, torch.where(own, x.gather(1, source), torch.zeros_like(of_text)))

    generator = torch.Generator().manual_seed(seed)

    def scores() -> torch.Tensor:
        return 2 * torch.rand(TEXT_ROWS * vocab, vocab, generator=generator, dtype=torch.float64) - 1

    ref_text = scores()
    text_scores = ref_text + scores()
    behavior = problem.behavior_logits
    return problem._replace(
        logits=torch.cat([problem.logits, text_scores]),
        ref_logits=torch.cat([problem.ref_logits, ref_text]),
        behavior_logits=None if behavior is None else torch.cat([behavior, text_scores + scores() / 2]),
        sequences=spread(problem.sequences, 1 + (first + place) % (vocab - 1)),
        completion_mask=spread(problem.completion_mask, torch.zeros_like(source).to(torch.float64)),
        rows=spread(problem.rows, len(problem.logits) + TEXT_ROWS * first + (place - 1).clamp(min=0)),
    )
