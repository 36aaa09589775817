"""One right answer of several tokens: what a reverse KL of tokens does to it, by its length.

Each token is one decision between right and wrong, which the reference gets right with one probability. The
reward is 1 if all are right, and a wrong token leaves nothing to be won. So a policy has one number per
token: how often it goes on rightly where everything before was right.
"""

from __future__ import annotations

import math

from kl_companion.checks import check_number, check_whole


def reverse_kl_of_tokens(reference: float, beta: float, length: int) -> tuple[float, float]:
    """Return success and KL of answers where updates with a token-level reverse KL come to rest.

    Rewards are not divided, or groups have two answers, whose expected advantages differ by 1 as well.

    Args:
        reference: How often the reference gets a token right, in (0, 1).
        beta: Coefficient of the reverse KL, positive.
        length: Tokens of an answer, at least 1.

    Returns:
        Probability of the right answer, and the KL of whole answers to the reference in nats.

    Raises:
        ValueError: a number outside its range.

    Example:
        >>> round(reverse_kl_of_tokens(0.5, 0.18, 30)[0], 2)
        0.87
    """
    for name, x, most in (("reference", reference, 1.0), ("beta", beta, math.inf)):
        check_number(name, x)
        if not 0 < x < most:
            raise ValueError(f"{name} is {x}, expected a number above 0{' and below 1' if most == 1 else ''}")
    check_whole("length", length, 1)
    odds, success, cost = reference / (1 - reference), 1.0, 0.0
    for _ in range(length):  # from the last token on: what is left to win, and the KL that is left to pay
        right = 1 / (1 + math.exp(-success / beta) / odds)
        wrong = 1 - right
        kl = right * math.log(right / reference)
        kl += wrong * math.log(wrong / (1 - reference)) if wrong else 0.0
        success, cost = success * right, kl + right * cost
    return success, cost


def shortfall_of_the_token_level(reference: float, beta: float, length: int) -> float:
    """Return by how much E[R] - beta KL of answers is lower at the rest of a token-level KL than at its best.

    Args:
        reference: As in `reverse_kl_of_tokens`.
        beta: As there.
        length: As there.

    Returns:
        The difference, in units of the reward of the right answer.

    Raises:
        ValueError: a number outside its range.

    Example:
        >>> round(shortfall_of_the_token_level(0.5, 0.18, 30), 1)
        2.4
    """
    success, cost = reverse_kl_of_tokens(reference, beta, length)
    everything = reference**length
    best = 1 + beta * math.log(everything + (1 - everything) * math.exp(-1 / beta))
    return best - (success - beta * cost)
