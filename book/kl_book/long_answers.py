"""One right answer of several tokens: what the token level does to it, by its length.

Each token is one decision between right and wrong, which the reference gets right with one probability. The
reward is 1 if all are right, and a wrong token leaves nothing to be won. So a policy has one number per
token: how often it goes on rightly where everything before was right.
"""

from __future__ import annotations

import math

from kl_companion.checks import check_number, check_whole
from kl_companion.theory.group_optima import mean_group_deviation


def failures_at_rest(reference: float, beta: float, size: int, length: int) -> float:
    """Return how often an answer is wrong where GRPO's updates come to rest, with K3 of tokens in the loss.

    On-policy, without the clip, all answers of one length. Advantages are divided by the deviation with 1/G.

    Args:
        reference: How often the reference gets a token right, in (0, 1).
        beta: Coefficient of K3, positive.
        size: Answers of a group, at least 2.
        length: Tokens of an answer, at least 1; of one token `success_at_rest` is the rest.

    Raises:
        ValueError: a number outside its range.

    Example:
        >>> round(failures_at_rest(0.5, 0.04, 2, 20), 2)
        0.39
    """
    _check(reference, beta, length)
    check_whole("size", size, 2)

    def next_success(success: float) -> float:
        """Return how often all tokens are right if the advantages are those of this success."""
        gap = mean_group_deviation(success, size).item() / (success * (1 - success))
        after = 1.0  # probability that all later tokens are right
        for _ in range(length):
            pull = gap * after
            lead = pull - beta
            after *= (lead + math.sqrt(lead**2 + 4 * beta * reference * pull)) / (2 * pull)
        return after

    low, high = reference**length, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if next_success(middle) > middle else (low, middle)
    return 1 - low


def shortfall_of_the_token_level(reference: float, beta: float, length: int) -> float:
    """Return by how much E[R] - beta KL of answers is lower at the rest of a token-level KL than at its best.

    Args:
        reference: As in `failures_at_rest`.
        beta: Coefficient of the reverse KL, positive.
        length: As in `failures_at_rest`.

    Returns:
        The difference, in units of the reward of the right answer.

    Raises:
        ValueError: a number outside its range.

    Example:
        >>> round(shortfall_of_the_token_level(0.5, 0.18, 30), 1)
        2.4
    """
    _check(reference, beta, length)
    odds, value, cost = reference / (1 - reference), 1.0, 0.0
    for _ in range(length):  # from the last token on: what is left to win, and the KL that is left to pay
        right = 1 / (1 + math.exp(-value / beta) / odds)
        wrong = 1 - right
        kl = right * math.log(right / reference)
        kl += wrong * math.log(wrong / (1 - reference)) if wrong else 0.0
        value, cost = value * right, kl + right * cost
    everything = reference**length
    return 1 + beta * math.log(everything + (1 - everything) * math.exp(-1 / beta)) - (value - beta * cost)


def _check(reference: float, beta: float, length: int) -> None:
    for name, x, most in (("reference", reference, 1.0), ("beta", beta, math.inf)):
        check_number(name, x)
        if not 0 < x < most:
            raise ValueError(f"{name} is {x}, expected a number above 0{' and below 1' if most == 1 else ''}")
    check_whole("length", length, 1)
