"""Section 4 and appendix D: the KL of sequences and its gradient (tang2025pitfalls)."""

from __future__ import annotations

import sympy
import torch

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
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.losses import kl_terms
from kl_companion.tabular import Problem, draw_statistics


@claim("TM-4-klseq")
def sequence_kl_is_the_expected_sum_of_token_kls() -> Evidence:
    """The mean over sequences of their token KLs is the KL between the distributions of sequences."""
    errors = []
    for problem in trees():
        summed = mean(terms(problem).p, token_kls(problem, problem.logits).sum(-1))
        errors.append(apart(summed, exact(reverse_kl, problem)[0]))
    return Evidence(worst(errors))


@claim("TM-eq6")
def token_level_loss_sums_token_gradients() -> Evidence:
    """Differentiating the summed token estimates gives, sample by sample, eq (6)."""
    errors = []
    for problem in trees():
        for name in ("k1", "k2", "k3"):
            theta = problem.logits.detach().clone().requires_grad_()
            loss = kl_terms(every_sequence(problem, theta), name)
            rows = [torch.autograd.grad(x, theta, retain_graph=True)[0] for x in loss]
            errors.append(apart(torch.stack(rows), differentiated(name, problem, per_token=True)))
    return Evidence(worst(errors))


@claim("TM-4.1-biased")
def token_level_loss_misses_a_part() -> Evidence:
    """With the unbiased token gradient, eq (6) has the mean of part i, which is not the whole gradient."""
    errors = []
    for problem in trees():
        found = mean(terms(problem).p, differentiated("k2", problem, per_token=True))
        errors += [apart(found, partial_gradient(problem)), differs(found, exact(reverse_kl, problem)[1])]
    return Evidence(worst(errors))


@claim("TM-4.1-eqref")
def reduced_gradient_is_not_equation_four() -> Evidence:
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
    return Evidence(
        four,
        three,
        unit="relative difference",
        agrees_with="TM-eq3",
        correction="The equation meant is (3): eq (4) is the vanilla gradient.",
        counterexample=(
            f"on {len(trees())} small trees the mean of eq (4) differs from the printed expectation by up to "
            f"{four:.2f} times the latter"
        ),
        practice=(
            "None beyond the cross-reference: both estimates are named in the text, and the printed mean is "
            "that of the variance-reduced one."
        ),
    )


@claim("TM-4.1-k3")
def token_level_reduced_is_no_partial_gradient() -> Evidence:
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
    return Evidence(
        1 / (counted + 1),
        inside=worst(inside),
        unit="share of cases",
        condition=(
            "a sequence-level divergence compares the distributions of whole sequences: KL_seq in either "
            "direction, with prefixes from the policy or from the reference"
        ),
        given=r"implied by section 4: the only sequence-level divergences named are KL_seq and its reverse",
        counterexample=(
            r"$\E_\pi \sum_t \KL{\pref(.|y_{<t})}{\pi(.|y_{<t})}$ is 0 between equals, positive otherwise "
            f"({value:.4f} on a tree of two binary tokens), and has this mean as its partial gradient; the "
            "distillation that section 5.2 cites can have it as its loss"
        ),
    )


@claim("TM-eq7")
def sequence_level_vanilla_is_unbiased() -> Evidence:
    """Eq (7) has the gradient of the sequence KL as its mean."""
    return Evidence(
        worst(apart(mean(terms(p).p, sequence_gradients(p)), exact(reverse_kl, p)[1]) for p in trees())
    )


@claim("TM-4.2-LOO")
def sequence_level_leave_one_out_is_unbiased() -> Evidence:
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
    return Evidence(worst(errors))


@claim("TM-4.2-LOO-var")
def leave_one_out_reduces_the_variance() -> Evidence:
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
    return Evidence(
        sum(lost.values()) / len(every),
        inside=violation(
            *(-drop for drop, gain in every if gain >= 0), *(abs(a - b) / (1 + abs(b)) for a, b in every)
        ),
        unit="share of cases",
        condition=(
            r"$(n - 1) d (2 \E[l \|s\|^2] - d \E\|s\|^2) \ge \Var(l) \E\|s\|^2 + \|\nabla d\|^2$, with $d$ "
            "the KL, "
            r"$l$ the log-ratio and $s$ the score of a whole sequence"
        ),
        correction=(
            "Leave-one-out lowers the variance where the batch is large enough for the mean cost of the "
            "others to be known well; with few samples it raises it."
        ),
        counterexample=(
            f"one token, n = 4, policy (3/4, 1/4), reference (1/2, 1/2): {float(after):.4f} instead of "
            f"{float(before):.4f}"
        ),
        practice=(
            "The mean stays right, the noise grows: of "
            f"{len(found[4])} listed trees the variance is higher in "
            + ", ".join(f"{k} with n = {n}" for n, k in lost.items())
            + f". With n = 4, as in appendix E, it is {100 * rise:.0f} % higher on average."
        ),
    )


@claim("TM-4.2-past")
def past_log_ratios_drop_out() -> Evidence:
    """E[log-ratio of an earlier token times the score of a later one] is zero for every pair of places."""
    errors = []
    for problem in trees():
        t = terms(problem)
        for later in range(problem.sequences.shape[1]):
            for earlier in range(later):
                product = t.log_ratio[:, earlier, None, None] * t.scores[:, later]
                errors.append(apart(mean(t.p, product), 0.0))
    return Evidence(worst(errors))


@claim("TM-4.2-cumulative")
def cumulative_estimate_is_unbiased() -> Evidence:
    """Each score times the log-ratios from its token on has the gradient of the sequence KL as mean."""
    return Evidence(
        worst(apart(mean(terms(p).p, cumulative_gradients(p)), exact(reverse_kl, p)[1]) for p in trees())
    )


@claim("TM-4.2-half", how="symbols")
def almost_half_of_the_terms_go() -> Evidence:
    """T (T - 1)/2 of T^2 products go: always below one half, one half in the limit."""
    t, length = sympy.symbols("t T", positive=True, integer=True)
    share = sympy.simplify(sympy.summation(t - 1, (t, 1, length)) / length**2)
    limit = sympy.limit(share, length, sympy.oo)
    errors = [float(abs(limit - sympy.Rational(1, 2)))]
    errors += [less(float(share.subs(length, n)), 0.5) for n in (1, 2, 10, 1000)]
    errors.append(less(0.49, float(share.subs(length, 100))))
    short = float(share.subs(length, 2))
    enough = next(n for n in range(1, 100) if degree(2 * float(share.subs(length, n)) - 1) <= TOLERANCE)
    return Evidence(
        1 - 2 * short,
        inside=worst(errors),
        unit="relative difference",
        condition=(
            rf"$T \ge {enough}$: the share is $(T - 1)/(2T)$, always below one half, and then within a "
            "tenth of it"
        ),
        given="implied by section 4: the sequences are answers of language models",
        counterexample=f"two tokens: {short:g} of the products go",
    )


def _drop(problem: Problem) -> tuple[float, float, float, float]:
    """Variances of eq (7) and of the cumulative estimate, their difference, and that by the formula."""
    t = terms(problem)
    before, after = variance(t.p, sequence_gradients(problem)), variance(t.p, cumulative_gradients(problem))
    square = t.scores.square().sum((-2, -1))
    past = t.log_ratio.sum(-1, keepdim=True) - sum_from_here(t.log_ratio)
    formula = float(mean(t.p, (square * past * (past + 2 * sum_from_here(t.log_ratio))).sum(-1)))
    return before, after, before - after, formula


@claim("TM-4.2-cum-var")
def cumulative_estimate_has_less_variance() -> Evidence:
    """Exactly where E sum_t |s_t|^2 P_t (P_t + 2 C_t) >= 0, P_t the past and C_t the remaining log-ratios."""
    small = tree_of([(0.25, 0.75), (0.25, 0.75), (0.1, 0.9)], [(0.9, 0.1), (0.1, 0.9), (0.75, 0.25)])
    before, after, *_ = _drop(small)
    found = [_drop(p) for p in hedge_trees()]
    worse = sum(drop < 0 for *_, drop, _ in found)
    shares = [b / a for a, b, *_ in found]
    return Evidence(
        worse / len(found),
        inside=violation(
            *(-drop for *_, drop, f in found if f >= 0), *(abs(d - f) / (1 + abs(f)) for *_, d, f in found)
        ),
        unit="share of cases",
        condition=(
            r"$\E \sum_t \|s_t\|^2 P_t (P_t + 2 C_t) \ge 0$, with $P_t$ the log-ratios before token $t$ "
            r"and $C_t$ those from it on"
        ),
        correction=(
            "Leaving out the earlier log-ratios changes no mean and as a rule lowers the variance; where "
            "they cancel against the later ones it raises it."
        ),
        counterexample=(
            "two binary tokens, policy rows (1/4, 3/4), (1/4, 3/4), (0.1, 0.9), reference rows (0.9, "
            f"0.1), (0.1, 0.9), (3/4, 1/4): variance {after:.3f} instead of {before:.3f}"
        ),
        practice=(
            f"A good default: of {len(found)} listed trees the variance is lower in {len(found) - worse}, "
            "and "
            f"{sum(shares) / len(shares):.2f} times that of eq (7) on average; in the other {worse} it is "
            f"up to {max(shares):.2f} times as high."
        ),
    )


@claim("TM-appD-rho")
def rho_of_appendix_d_is_a_log_already() -> Evidence:
    """log rho_t with rho_t = log(pi / pi_ref) is undefined wherever the log-ratio is negative."""
    corrected, undefined = [], []
    for problem in trees():
        t = terms(problem)
        inside = problem.completion_mask > 0
        corrected.append(apart(mean(t.p, cumulative_gradients(problem)), exact(reverse_kl, problem)[1]))
        undefined.append(float(t.p @ ((t.log_ratio < 0) & inside).any(-1).double()))
    return Evidence(
        max(undefined),
        worst(corrected),
        unit="share of cases",
        agrees_with="TM-eq7",
        correction=r"$\rho_t$ is the ratio $\pi/\pref$ of token $t$, as section 4.2 defines it.",
        counterexample=(
            f"on {len(undefined)} small trees, sequences of probability {min(undefined):.2f} to "
            f"{max(undefined):.2f} hold a token of negative log-ratio, whose logarithm does not exist"
        ),
        practice=(
            "None: code with a double logarithm fails at the first such token, and every step of "
            "the derivation is right with the ratio."
        ),
    )


@claim("TM-appD-parts")
def gradient_is_part_one_plus_part_two() -> Evidence:
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
    return Evidence(worst(errors))
