"""Section 2.3.1: questions with two answers, in groups of two (vojnovic2025alignment)."""

from __future__ import annotations

from collections.abc import Iterator

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, Shortfall, at_most, less, numbers, rises, same
from kl_book.ledger.claims.ground import two_answers as ab
from kl_book.ledger.claims.ground.stationary_policies import Question, Reward, right_or_wrong


def questions() -> list[Question]:
    """Groups of two: near to and far from the reference, with certain and with random rewards."""
    return ab.pairs(*ab.KINDS)


def is_eq14(q: Question) -> Shortfall:
    """The stationary policy is (14)."""
    return same(ab.answer_a(q), ab.eq14(q.beta / q.gamma, float(q.ref[0])))


@claim("VY-eq14")
def the_policy_for_groups_of_two() -> Iterator[Found]:
    """Where both answers have the same slope in groups of the policy itself, pi(a) is (14)."""
    yield from map(is_eq14, questions())
    gains = {q: q.could_gain(ab.stationary_pair(q)) for q in questions()}
    no_maximum = [q for q, gain in gains.items() if gain > 1e-9]
    worst = max(no_maximum, key=lambda q: gains[q])
    yield numbers(no_maximum=len(no_maximum), questions=len(gains), reference=worst.reference[0])
    yield numbers(ratio=worst.beta / worst.gamma, a=ab.answer_a(worst), gain=gains[worst])


@claim("VY-eq14-tie", over=lambda: ab.pairs((1.0, 1.0), (right_or_wrong(0.5), 0.5)))
def a_tie_leaves_the_reference(q: Question) -> Iterator[Found]:
    """Equally often preferred answers, certain or random, keep their reference probabilities."""
    yield same(ab.answer_a(q), q.ref[0])


@claim("VY-eq14-beta", over=lambda: ab.REFERENCES)
def what_beta_does_in_groups_of_two(ref: float) -> Iterator[Found]:
    """The same ratio gives the same policy; a larger beta a smaller pi(a), from 1 down to the reference."""
    for beta in ab.BETAS:
        q, noisy = ab.pair(ref, beta), ab.pair(ref, beta * 0.8, ab.CHECKED)  # gamma is 1 and 0.8
        yield same(ab.answer_a(q), ab.answer_a(noisy))
        yield is_eq14(q)
    path = ab.pairs(ab.GRADED, refs=(ref,), betas=(1e4, 1.0, 0.1, 1e-4))
    values = [ab.answer_a(q) for q in path]
    yield rises(values)
    yield at_most(1 - values[-1], 1e-4 / path[-1].gamma)
    yield at_most(abs(values[0] - path[0].ref[0]), path[0].gamma / 1e4)


@claim("VY-eq14-sqrt", over=questions)
def the_root_of_the_reference(q: Question) -> Iterator[Found]:
    """At beta = gamma pi(a) is the root of pi_ref(a)."""
    yield same(ab.answer_a(q._replace(beta=q.gamma)), q.ref[0] ** 0.5)


@claim("VY-eq14-increasing", over=lambda: ab.BETAS)
def margin_and_reference_raise_the_better_answer(beta: float) -> Iterator[Found]:
    """pi(a) grows with gamma and with pi_ref(a)."""
    for ref in ab.REFERENCES:
        path = [ab.pair(ref, beta, (right_or_wrong(x), right_or_wrong(0.1))) for x in (0.2, 0.5, 0.9)]
        yield rises([ab.answer_a(q) for q in path])
        yield rises([q.gamma for q in path])
        yield from map(is_eq14, path)
    yield rises([ab.answer_a(ab.pair(ref, beta)) for ref in (0.001, *ab.REFERENCES, 0.99)])


@claim("VY-eq14-discontinuous", over=lambda: (ab.CERTAIN, ab.GRADED))
def the_jump_for_groups_of_two(rewards: tuple[Reward, Reward]) -> Iterator[Found]:
    """As pi_ref(a) goes to 0 pi(a) goes to 1 - beta/gamma, or to 0 where beta is gamma or more."""
    rare = ab.pair(ab.NEARLY_ZERO, 1.0, rewards)
    for share in (0.1, 0.5, 0.9):
        a = ab.answer_a(rare._replace(beta=share * rare.gamma))
        yield at_most(abs(a - (1 - share)), 10 * ab.NEARLY_ZERO / (1 - share))
    for share in (1.0, 2.0):
        yield at_most(ab.answer_a(rare._replace(beta=share * rare.gamma)), 2 * ab.NEARLY_ZERO**0.5)
    for ref in ab.REFERENCES[:2]:
        near, next_to_it = ab.pairs(rewards, refs=(ref, ref + 1e-7), betas=(0.1,))
        yield from map(is_eq14, (near, next_to_it))
        yield at_most(abs(ab.answer_a(next_to_it) - ab.answer_a(near)), 1e-6)


@claim("VY-eq14-bound")
def the_better_answer_has_at_least() -> Iterator[Found]:
    """pi(a) is at least 1 - beta/gamma, and at least pi_ref(a)."""
    for q in questions():
        yield less(max(1 - q.beta / q.gamma, q.reference[0]), ab.answer_a(q), by=-1e-12)
        yield is_eq14(q)
    yield numbers(once_in_a_million=ab.answer_a(ab.pair(1e-6, 0.04)))


@claim("VY-eq14-det", over=lambda: ab.pairs(ab.CERTAIN, (100.0, -3.0), (0.001, 0.0)))
def only_the_order_of_certain_rewards(q: Question) -> Iterator[Found]:
    """Certain rewards (1, 0), (100, -3) and (0.001, 0) have the margin 1 and the same policy."""
    yield same(q.gamma, 1.0)
    yield same(ab.answer_a(q), ab.eq14(q.beta, float(q.ref[0])))
