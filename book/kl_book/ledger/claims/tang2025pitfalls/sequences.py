"""Section 4 and appendix D: the KL of sequences and its gradient (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import sympy
import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, degree, differs, less, relative, violation, worst
from kl_book.ledger.claims.ground.groups import leave_one_out_gain
from kl_book.ledger.claims.ground.sequences import (
    cumulative_gradients,
    curl,
    partial_gradient,
    sequence_gradients,
    sum_from_here,
    token_kls,
    token_weighted,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    every_sequence,
    exact,
    forward_kl,
    mean,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_book.ledger.claims.ground.worlds import hedge_trees, tree_of, trees, two_policies
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.losses import kl_terms
from kl_companion.tabular import Problem, draw_statistics


@claim("TM-4-klseq")
def sequence_kl_is_the_expected_sum_of_token_kls() -> Iterator[Found]:
    """The mean over sequences of their token KLs is the KL between the distributions of sequences."""
    errors = []
    for problem in trees():
        summed = mean(terms(problem).p, token_kls(problem, problem.logits).sum(-1))
        errors.append(apart(summed, exact(reverse_kl, problem)[0]))
    yield from each_form(worst(errors))


@claim("TM-eq6")
def token_level_loss_sums_token_gradients() -> Iterator[Found]:
    """Differentiating the summed token estimates gives, sample by sample, eq (6)."""
    errors = []
    for problem in trees():
        for name in ("k1", "k2", "k3"):
            theta = problem.logits.detach().clone().requires_grad_()
            loss = kl_terms(every_sequence(problem, theta), name)
            rows = [torch.autograd.grad(x, theta, retain_graph=True)[0] for x in loss]
            errors.append(apart(torch.stack(rows), differentiated(name, problem, per_token=True)))
    yield from each_form(worst(errors))


@claim("TM-4.1-biased")
def token_level_loss_misses_a_part() -> Iterator[Found]:
    """With the unbiased token gradient, eq (6) has the mean of part i, which is not the whole gradient."""
    errors = []
    for problem in trees():
        found = mean(terms(problem).p, differentiated("k2", problem, per_token=True))
        errors += [apart(found, partial_gradient(problem)), differs(found, exact(reverse_kl, problem)[1])]
    yield from each_form(worst(errors))


@claim("TM-4.1-eqref")
def reduced_gradient_is_not_equation_four() -> Iterator[Found]:
    """The printed expectation belongs to the differentiated k3 of eq (3), not to eq (4)."""
    four, three = (
        worst(
            relative(
                mean(terms(p).p, differentiated(k, p, per_token=True)), partial_gradient(p, forward=True)
            )
            for p in trees()
        )
        for k in ("k2", "k3")
    )
    yield from each_form(four, three, number=len(trees()), four=four)


@claim("TM-4.1-k3")
def token_level_reduced_is_no_partial_gradient() -> Iterator[Found]:
    """Its mean is as printed and is the gradient of nothing, yet it is a partial gradient of something."""
    inside, counted = [], 0
    for problem in trees()[:3]:
        t = terms(problem)
        found = mean(t.p, differentiated("k3", problem, per_token=True))
        mixed, reference = partial_gradient(problem, forward=True), t.ref_logp.sum(-1).exp()
        inside += [apart(found, mixed), violation(1e-3 - curl(problem, "k3"))]
        named = [exact(reverse_kl, problem)[1], exact(forward_kl, problem)[1], partial_gradient(problem)]
        named.append(partial_gradient(problem, visits=reference))
        inside += [differs(found, x) for x in named]
        counted = len(named)
    small = trees()[0]
    value = float(mean(terms(small).p, token_kls(small, small.logits, forward=True).sum(-1)))
    yield from each_form(1 / (counted + 1), inside=worst(inside), value=value)


@claim("TM-eq7")
def sequence_level_vanilla_is_unbiased() -> Iterator[Found]:
    """Eq (7) has the gradient of the sequence KL as its mean."""
    yield from each_form(
        worst(apart(mean(terms(p).p, sequence_gradients(p)), exact(reverse_kl, p)[1]) for p in trees())
    )


@claim("TM-4.2-LOO")
def sequence_level_leave_one_out_is_unbiased() -> Iterator[Found]:
    """Over all pairs of sequences, and triples where they are few, leave-one-out has the same mean."""
    errors = []
    for problem in trees():
        t, (_, gradient) = terms(problem), exact(reverse_kl, problem)
        total, count = t.log_ratio.sum(-1), len(t.p)
        for n in (2, 3):
            if count**n > 1000:
                continue
            group = torch.cartesian_prod(*[torch.arange(count)] * n)
            costs = total[group]
            rest = (costs.sum(-1, keepdim=True) - costs) / (n - 1)
            weight = t.p[group].prod(-1, keepdim=True) * (costs - rest) / n
            errors.append(apart(torch.einsum("gi,girv->rv", weight, t.score[group]), gradient))
    yield from each_form(worst(errors))


@claim("TM-4.2-LOO-var")
def leave_one_out_reduces_the_variance() -> Iterator[Found]:
    """Exactly where what the mean cost saves exceeds what estimating it from n - 1 others costs."""
    found: dict[int, list[tuple[float, float]]] = {n: [] for n in (2, 4, 16, 64)}
    for problem in hedge_trees():
        plain, left = (
            draw_statistics("k1", problem, placement="reward", baseline=b) for b in (None, "leave_one_out")
        )
        for n, pairs in found.items():
            without, with_it = (float(x.at(n).gradient_variance) for x in (plain, left))
            pairs.append((1 - with_it / without, leave_one_out_gain(problem, n) / n / without))
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    every = [pair for pairs in found.values() for pair in pairs]
    lost = {n: sum(drop < 0 for drop, _ in pairs) for n, pairs in found.items()}
    rise = -sum(drop for drop, _ in found[4]) / len(found[4])
    before, after = (
        draw_statistics("k1", small, placement="reward", baseline=b).at(4).gradient_variance
        for b in (None, "leave_one_out")
    )
    yield from each_form(
        sum(lost.values()) / len(every),
        inside=violation(
            *(-drop for drop, gain in every if gain >= 0), *(abs(a - b) / (1 + abs(b)) for a, b in every)
        ),
        after=float(after),
        before=float(before),
        practice="The mean stays right, the noise grows: of "
        f"{len(found[4])} listed trees the variance is higher in "
        + ", ".join(f"{k} with n = {n}" for n, k in lost.items())
        + f". With n = 4, as in appendix E, it is {100 * rise:.0f} % higher on average.",
    )


@claim("TM-4.2-past")
def past_log_ratios_drop_out() -> Iterator[Found]:
    """E[log-ratio of an earlier token times the score of a later one] is zero for every pair of places."""
    errors = []
    for problem in trees():
        t = terms(problem)
        for later in range(problem.sequences.shape[1]):
            for earlier in range(later):
                product = t.log_ratio[:, earlier, None, None] * t.scores[:, later]
                errors.append(apart(mean(t.p, product), 0.0))
    yield from each_form(worst(errors))


@claim("TM-4.2-cumulative")
def cumulative_estimate_is_unbiased() -> Iterator[Found]:
    """Each score times the log-ratios from its token on has the gradient of the sequence KL as mean."""
    yield from each_form(
        worst(apart(mean(terms(p).p, cumulative_gradients(p)), exact(reverse_kl, p)[1]) for p in trees())
    )


@claim("TM-4.2-half")
def almost_half_of_the_terms_go() -> Iterator[Found]:
    """T (T - 1)/2 of T^2 products go: always below one half, one half in the limit."""
    t, length = sympy.symbols("t T", positive=True, integer=True)
    share = sympy.simplify(sympy.summation(t - 1, (t, 1, length)) / length**2)
    limit = sympy.limit(share, length, sympy.oo)
    errors = [float(abs(limit - sympy.Rational(1, 2)))]
    errors += [less(float(share.subs(length, n)), 0.5) for n in (1, 2, 10, 1000)]
    errors.append(less(0.49, float(share.subs(length, 100))))
    short = float(share.subs(length, 2))
    enough = next(n for n in range(1, 100) if degree(2 * float(share.subs(length, n)) - 1) <= TOLERANCE)
    yield from each_form(1 - 2 * short, inside=worst(errors), enough=enough, short=short)


def _drop(problem: Problem) -> tuple[float, float, float, float]:
    """Variances of eq (7) and of the cumulative estimate, their difference, and that by the formula."""
    t = terms(problem)
    before, after = variance(t.p, sequence_gradients(problem)), variance(t.p, cumulative_gradients(problem))
    square = t.scores.square().sum((-2, -1))
    past = t.log_ratio.sum(-1, keepdim=True) - sum_from_here(t.log_ratio)
    formula = float(mean(t.p, (square * past * (past + 2 * sum_from_here(t.log_ratio))).sum(-1)))
    return before, after, before - after, formula


@claim("TM-4.2-cum-var")
def cumulative_estimate_has_less_variance() -> Iterator[Found]:
    """Exactly where E sum_t |s_t|^2 P_t (P_t + 2 C_t) >= 0, P_t the past and C_t the remaining log-ratios."""
    small = tree_of([(0.25, 0.75), (0.25, 0.75), (0.1, 0.9)], [(0.9, 0.1), (0.1, 0.9), (0.75, 0.25)])
    before, after, *_ = _drop(small)
    found = [_drop(p) for p in hedge_trees()]
    worse = sum(drop < 0 for *_, drop, _ in found)
    shares = [b / a for a, b, *_ in found]
    yield from each_form(
        worse / len(found),
        inside=violation(
            *(-drop for *_, drop, f in found if f >= 0), *(abs(d - f) / (1 + abs(f)) for *_, d, f in found)
        ),
        after=after,
        before=before,
        number_of_found=len(found),
        number=len(found) - worse,
        number_2=sum(shares) / len(shares),
        worse=worse,
        max_shares=max(shares),
    )


@claim("TM-appD-rho")
def rho_of_appendix_d_is_a_log_already() -> Iterator[Found]:
    """log rho_t with rho_t = log(pi / pi_ref) is undefined wherever the log-ratio is negative."""
    corrected, undefined = [], []
    for problem in trees():
        t = terms(problem)
        inside = problem.completion_mask > 0
        corrected.append(apart(mean(t.p, cumulative_gradients(problem)), exact(reverse_kl, problem)[1]))
        undefined.append(float(t.p @ ((t.log_ratio < 0) & inside).any(-1).double()))
    yield from each_form(
        max(undefined),
        worst(corrected),
        number_of_undefined=len(undefined),
        min_undefined=min(undefined),
        max_undefined=max(undefined),
    )


@claim("TM-appD-parts")
def gradient_is_part_one_plus_part_two() -> Iterator[Found]:
    """Steps (b) to (d): all products, those from each token on, and both parts have the same mean.

    Eq (6) is unbiased for part i with the vanilla token gradient, and not with the other two.
    """
    errors = []
    for problem in trees():
        t, (_, gradient) = terms(problem), exact(reverse_kl, problem)
        one = mean(t.p, token_weighted(problem, t.log_ratio))
        two = mean(t.p, token_weighted(problem, sum_from_here(t.log_ratio) - t.log_ratio))
        errors += [apart(one + two, gradient), apart(one, partial_gradient(problem)), differs(two, 0.0)]
        errors += [apart(mean(t.p, sequence_gradients(problem)), gradient), apart(mean(t.p, t.score), 0.0)]
        errors.append(apart(mean(t.p, values("k1", problem)), exact(reverse_kl, problem)[0]))
        six = {k: mean(t.p, differentiated(k, problem, per_token=True)) for k in ("k1", "k2", "k3")}
        errors += [apart(six["k2"], one), differs(six["k1"], one), differs(six["k3"], one)]
    yield from each_form(worst(errors))
