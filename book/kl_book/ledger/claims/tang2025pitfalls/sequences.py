"""Section 4 and appendix D: the KL of sequences and its gradient (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, inside, less, numbers, printed, same
from kl_book.ledger.claims.ground import sums
from kl_book.ledger.claims.ground.errors import degree, hedged, relative
from kl_book.ledger.claims.ground.groups import centered_gradient, groups, leave_one_out_gain
from kl_book.ledger.claims.ground.sequences import curl, sequence_gradients, sum_from_here, token_kls
from kl_book.ledger.claims.ground.world import SMALL, Enumeration, each
from kl_book.ledger.claims.ground.worlds import hedge_trees, tree_of, trees
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.losses import kl_terms
from kl_companion.tabular import draw_statistics


@claim("TM-4-klseq", over=each(trees))
def sequence_kl_is_the_expected_sum_of_token_kls(w: Enumeration) -> Iterator[Found]:
    """The mean over sequences of their token KLs is the KL between the distributions of sequences."""
    yield same(w.E(token_kls(w.problem, w.problem.logits).sum(-1)), w.kl)


@claim("TM-eq6", over=each(trees))
def token_level_loss_sums_token_gradients(w: Enumeration) -> Iterator[Found]:
    """Differentiating the summed token estimates gives, sample by sample, eq (6)."""
    for k in ("k1", "k2", "k3"):
        theta = w.problem.logits.detach().clone().requires_grad_()
        loss = kl_terms(sums.every_sequence(w.problem, theta), k)
        rows = [torch.autograd.grad(x, theta, retain_graph=True)[0] for x in loss]
        yield same(torch.stack(rows), w.slope(k, per_token=True))


@claim("TM-4.1-biased", over=each(trees))
def token_level_loss_misses_a_part(w: Enumeration) -> Iterator[Found]:
    """With the unbiased token gradient, eq (6) has the mean of part i, which is not the whole gradient."""
    yield same(w.grad("k2", per_token=True), w.partial())
    yield differs(w.grad("k2", per_token=True), w.d_kl)


def _from_the_printed_mean(w: Enumeration, estimator: str) -> float:
    """Relative distance of a token-level gradient from E_pi sum_t grad KL(pi_ref, pi)."""
    return relative(w.grad(estimator, per_token=True), w.partial(forward=True))


@claim("TM-4.1-eqref")
def reduced_gradient_is_not_equation_four() -> Iterator[Found]:
    """The printed expectation belongs to the differentiated k3 of eq (3), not to eq (4)."""
    four = max(_from_the_printed_mean(w, "k2") for w in each(trees)())
    yield printed(four)
    for w in each(trees)():
        yield same(_from_the_printed_mean(w, "k3"), 0.0, "corrected")
    yield numbers(trees=len(trees()), four=four)


@claim("TM-4.1-k3")
def token_level_reduced_is_no_partial_gradient() -> Iterator[Found]:
    """Its mean is as printed and is the gradient of nothing, yet it is a partial gradient of something."""
    for w in map(Enumeration, trees()[:3]):
        gradient = w.grad("k3", per_token=True)
        yield same(gradient, w.partial(forward=True), "inside")
        yield less(1e-3, curl(w.problem, "k3"), "inside", by=0.0)
        named = (w.d_kl, w.d_forward, w.partial(), w.partial(visits=w.ref))
        for other in named:
            yield differs(gradient, other, "inside")
    yield printed(1 / (len(named) + 1))
    w = Enumeration(trees()[0])
    yield numbers(value=w.E(token_kls(w.problem, w.problem.logits, forward=True).sum(-1)))


@claim("TM-eq7", over=each(trees))
def sequence_level_vanilla_is_unbiased(w: Enumeration) -> Iterator[Found]:
    """Eq (7) has the gradient of the sequence KL as its mean."""
    yield same(w.E(sequence_gradients(w.problem)), w.d_kl)


@claim("TM-4.2-LOO", over=each(trees))
def sequence_level_leave_one_out_is_unbiased(w: Enumeration) -> Iterator[Found]:
    """Over all pairs of sequences, and triples where they are few, leave-one-out has the same mean."""
    for n in (n for n in (2, 3) if len(w.p) ** n <= 1000):
        chance, _ = groups(w.problem, n)
        yield same(sums.mean(chance, centered_gradient(w.problem, n, "leave_one_out")), w.d_kl)


def _variances(w: Enumeration, n: int) -> tuple[float, float]:
    """Variance with n samples, without a baseline and with leave-one-out."""
    plain, left = (
        float(draw_statistics("k1", w.problem, placement="reward", baseline=b).at(n).gradient_variance)
        for b in (None, "leave_one_out")
    )
    return plain, left


@claim("TM-4.2-LOO-var")
def leave_one_out_reduces_the_variance() -> Iterator[Found]:
    """Exactly where what the mean cost saves exceeds what estimating it from n - 1 others costs."""
    drops: dict[int, list[float]] = {n: [] for n in (2, 4, 16, 64)}
    for w in each(hedge_trees)():
        for n, several in drops.items():
            plain, left = _variances(w, n)
            drop, gain = 1 - left / plain, leave_one_out_gain(w.problem, n) / n / plain
            several.append(drop)
            yield inside(abs(drop - gain) / (1 + abs(gain)))
            if gain >= 0:
                yield less(0.0, drop, "inside", by=0.0)
    lost = {n: sum(drop < 0 for drop in several) for n, several in drops.items()}
    yield printed(sum(lost.values()) / sum(map(len, drops.values())))
    before, after = _variances(SMALL, 4)
    yield numbers(after=after, before=before, trees=len(drops[4]), more=-100 * sum(drops[4]) / len(drops[4]))
    yield numbers(**{f"higher_{n}": count for n, count in lost.items()})


@claim("TM-4.2-past", over=each(trees))
def past_log_ratios_drop_out(w: Enumeration) -> Iterator[Found]:
    """E[log-ratio of an earlier token times the score of a later one] is zero for every pair of places."""
    for later in range(w.problem.sequences.shape[1]):
        for earlier in range(later):
            yield same(w.E(w.t.log_ratio[:, earlier, None, None] * w.t.scores[:, later]), 0.0)


@claim("TM-4.2-cumulative", over=each(trees))
def cumulative_estimate_is_unbiased(w: Enumeration) -> Iterator[Found]:
    """Each score times the log-ratios from its token on has the gradient of the sequence KL as mean."""
    yield same(w.E(w.cumulative()), w.d_kl)


@claim("TM-4.2-half")
def almost_half_of_the_terms_go() -> Iterator[Found]:
    """T (T - 1)/2 of T^2 products go: always below one half, one half in the limit."""
    t, length = sympy.symbols("t T", positive=True, integer=True)
    share = sympy.simplify(sympy.summation(t - 1, (t, 1, length)) / length**2)
    yield same(float(sympy.limit(share, length, sympy.oo)), 0.5, "inside")
    for n in (1, 2, 10, 1000):
        yield less(float(share.subs(length, n)), 0.5, "inside")
    yield less(0.49, float(share.subs(length, 100)), "inside")
    short = float(share.subs(length, 2))
    yield printed(1 - 2 * short)
    enough = next(n for n in range(1, 100) if degree(2 * float(share.subs(length, n)) - 1) <= TOLERANCE)
    yield numbers(enough=enough, short=short)


def _drop(w: Enumeration) -> tuple[float, float, float, float]:
    """Variances of eq (7) and of the cumulative estimate, their difference, and that by the formula."""
    before, after = w.var(sequence_gradients(w.problem)), w.var(w.cumulative())
    square, ahead = w.t.scores.square().sum((-2, -1)), sum_from_here(w.t.log_ratio)
    past = w.l[:, None] - ahead
    return before, after, before - after, float(w.E((square * past * (past + 2 * ahead)).sum(-1)))


@claim("TM-4.2-cum-var")
def cumulative_estimate_can_have_less_variance() -> Iterator[Found]:
    """It has where E sum_t |s_t|^2 P_t (P_t + 2 C_t) >= 0, P_t the past and C_t the remaining log-ratios."""
    shares = []
    for w in each(hedge_trees)():
        before, after, drop, formula = _drop(w)
        shares.append(after / before)
        yield printed(abs(drop - formula) / (1 + abs(formula)))
    worse = sum(share > 1 for share in shares)
    yield printed(hedged(share <= 1 for share in shares))
    small = tree_of([(0.25, 0.75), (0.25, 0.75), (0.1, 0.9)], [(0.9, 0.1), (0.1, 0.9), (0.75, 0.25)])
    before, after, *_ = _drop(Enumeration(small))
    yield less(before, after)
    yield numbers(after=after, before=before, trees=len(shares), better=len(shares) - worse)
    yield numbers(average=sum(shares) / len(shares), worse=worse, most=max(shares))


@claim("TM-appD-rho")
def rho_of_appendix_d_is_a_log_already() -> Iterator[Found]:
    """log rho_t with rho_t = log(pi / pi_ref) is undefined wherever the log-ratio is negative."""
    undefined = []
    for w in each(trees)():
        negative = (w.t.log_ratio < 0) & (w.problem.completion_mask > 0)
        undefined.append(float(w.p @ negative.any(-1).double()))
        yield printed(undefined[-1])
        yield same(w.E(w.cumulative()), w.d_kl, "corrected")
    yield numbers(trees=len(undefined), least=min(undefined), most=max(undefined))


@claim("TM-appD-parts", over=each(trees))
def gradient_is_part_one_plus_part_two(w: Enumeration) -> Iterator[Found]:
    """Steps (b) to (d): all products, those from each token on, and both parts have the same mean.

    Eq (6) is unbiased for part i with the vanilla token gradient, and not with the other two.
    """
    one = w.E(w.tokens(w.t.log_ratio))
    two = w.E(w.tokens(sum_from_here(w.t.log_ratio) - w.t.log_ratio))
    yield same(one + two, w.d_kl)
    yield same(one, w.partial())
    yield differs(two, 0.0)
    yield same(w.E(sequence_gradients(w.problem)), w.d_kl)
    yield same(w.E(w.s), 0.0)
    yield same(w.E(w.value("k1")), w.kl)
    yield same(w.grad("k2", per_token=True), one)
    for k in ("k1", "k3"):
        yield differs(w.grad(k, per_token=True), one)
