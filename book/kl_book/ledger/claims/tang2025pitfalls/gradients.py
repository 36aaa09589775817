"""Section 3: what differentiating an estimate does (tang2025pitfalls)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, degree, differs, less, relative, violation, worst
from kl_book.ledger.claims.ground.groups import vanilla
from kl_book.ledger.claims.ground.off_policy import mean_gradient
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    forward_kl,
    mean,
    reverse_kl,
    terms,
    values,
    variance,
)
from kl_book.ledger.claims.ground.worlds import (
    arms,
    bandits,
    hedge_bandits,
    hedge_trees,
    two_policies,
    worlds,
)
from kl_companion.tabular import Problem, learn
from kl_companion.theory.optima import optimal_policy


@claim("TM-3-nonimplication")
def unbiased_value_does_not_imply_unbiased_gradient() -> Iterator[Found]:
    """k1 and k3 have the right mean, and gradients with another mean."""
    errors = []
    for problem in worlds():
        kl, gradient = exact(reverse_kl, problem)
        for name in ("k1", "k3"):
            errors.append(apart(mean(terms(problem).p, values(name, problem)), kl))
            errors.append(differs(mean_gradient(name, problem), gradient))
    yield from each_form(worst(errors))


@claim("TM-eq2")
def differentiated_vanilla_is_zero_on_average() -> Iterator[Found]:
    """E[grad k1] = E[score] = 0, although no sample of it is zero."""
    errors = [apart(mean_gradient("k1", p), 0.0) for p in worlds()]
    errors += [apart(differentiated("k1", p), terms(p).score) for p in worlds()]
    yield from each_form(worst(errors))


@claim("TM-eq2-parameters")
def differentiated_in_the_parameters_of_the_policy() -> Iterator[Found]:
    """With respect to the only other policy's parameters the mean is minus that policy's score."""
    printed, corrected = [], []
    for problem in (*worlds(), small := two_policies((0.75, 0.25), (0.5, 0.5))):
        exchanged = terms(problem._replace(logits=problem.ref_logits))
        printed.append(apart(mean(terms(problem).p, -exchanged.score), 0.0))
        corrected.append(apart(mean_gradient("k1", problem), 0.0))
    reference = terms(small._replace(logits=small.ref_logits)).score
    found = ", ".join(f"{x:.2f}" for x in mean(terms(small).p, -reference).flatten().tolist())
    yield from each_form(worst(printed), worst(corrected), found=found, worst_printed=worst(printed))


@claim("TM-3-noise")
def differentiated_vanilla_only_adds_noise() -> Iterator[Found]:
    """Added to a policy gradient it leaves the mean and changes the samples: a constant baseline beta."""
    errors, grows = [], []
    for problem in worlds():
        t, gain = terms(problem), problem.rewards[:, None, None]
        for beta in (0.1, 1.0):
            alone, both = gain * t.score, gain * t.score - beta * differentiated("k1", problem)
            errors += [apart(mean(t.p, both), mean(t.p, alone)), differs(both, alone)]
            errors.append(apart(both, (gain - beta) * t.score))
            grows.append(variance(t.p, both) > variance(t.p, alone))
    yield from each_form(worst(errors), sum_of_grows=sum(grows), number_of_grows=len(grows))


@claim("TM-eq3")
def differentiated_reduced_is_the_other_kl() -> Iterator[Found]:
    """E[grad k3] is the gradient of KL(pi_ref || pi), and not that of KL(pi || pi_ref)."""
    errors = [apart(mean_gradient("k3", p), exact(forward_kl, p)[1]) for p in worlds()]
    errors += [differs(mean_gradient("k3", p), exact(reverse_kl, p)[1]) for p in worlds()]
    yield from each_form(worst(errors))


@claim("TM-3-same-minimiser")
def same_minimizer_alone_another_one_with_a_reward() -> Iterator[Found]:
    """Exact descent ends at the reference; with a reward it rests at another policy than the optimum."""
    problem = arms(20, 6)
    end = learn(problem, "k3", n=None, steps=4000, record=4000).logp[-1]
    ref_logp = problem.ref_logits.squeeze(1).log_softmax(-1)
    errors = [violation(float(reverse_kl(end, ref_logp).max()) - 1e-4)]
    for bandit in bandits():
        t, r = terms(bandit), bandit.rewards
        wanted, rests = (
            optimal_policy(r, t.ref_logp[:, 0], name).logp for name in ("reverse_kl", "forward_kl")
        )

        def force(logp: torch.Tensor, at: Problem = bandit, gain: torch.Tensor = r) -> torch.Tensor:
            there = at._replace(logits=logp[None])
            pull = (gain[:, None, None] * terms(there).score * logp.exp()[:, None, None]).sum(0)
            return pull - mean_gradient("k3", there)

        errors += [apart(force(rests), 0.0), differs(force(wanted), 0.0), differs(rests, wanted)]
    yield from each_form(worst(errors))


LAMBDAS = (-1.0, 0.5, 1.0, 3.0)


@claim("TM-3-lambda-grad")
def factor_scales_the_gradient_of_the_other_kl() -> Iterator[Found]:
    """A vector of mean lambda grad KL(pi_ref || pi); the printed right-hand side is a number."""
    printed, corrected = [], []
    for problem in worlds():
        kl, gradient = exact(forward_kl, problem)
        for lam in LAMBDAS:
            found = mean_gradient(f"k_lambda({lam:g})", problem)
            printed.append(relative(torch.full_like(found, lam * kl), found))
            corrected.append(apart(found, lam * gradient))
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    parts = ", ".join(f"{x:.3f}" for x in mean_gradient("k_lambda(1)", small).flatten().tolist())
    yield from each_form(worst(printed), worst(corrected), parts=parts, number=exact(forward_kl, small)[0])


@claim("TM-3-lambda0")
def no_factor_no_regularization() -> Iterator[Found]:
    """With factor 0 the expected gradient vanishes; with any other it does not."""
    errors = [apart(mean_gradient("k_lambda(0)", p), 0.0) for p in worlds()]
    errors += [differs(mean_gradient(f"k_lambda({lam:g})", p), 0.0) for p in worlds() for lam in LAMBDAS]
    yield from each_form(worst(errors))


@claim("TM-3-squared-grad")
def differentiated_square_is_right() -> Iterator[Found]:
    """E[grad k2] = E[log-ratio times score] = grad KL(pi || pi_ref)."""
    errors = []
    for problem in worlds():
        t, (_, gradient) = terms(problem), exact(reverse_kl, problem)
        errors += [
            apart(mean_gradient("k2", problem), gradient),
            apart(mean(t.p, vanilla(problem)), gradient),
        ]
    yield from each_form(worst(errors))


@claim("TM-eq4")
def vanilla_gradient_is_the_squared_estimate_differentiated() -> Iterator[Found]:
    """Sample by sample, log-ratio times score is the gradient of k2."""
    yield from each_form(worst(apart(differentiated("k2", p), vanilla(p)) for p in worlds()))


@claim("TM-3-surrogate")
def surrogate_loss_gives_the_vanilla_gradient() -> Iterator[Found]:
    """Differentiating sg(log-ratio) log pi gives log-ratio times score, sample by sample."""
    yield from each_form(
        worst(apart(differentiated(lambda a, b: (a - b).detach() * a, p), vanilla(p)) for p in worlds())
    )


def _best_baseline(problem: Problem) -> float:
    """The constant of least variance: E[log-ratio |score|^2] / E[|score|^2]."""
    t = terms(problem)
    square = t.score.square().sum((-2, -1))
    return float((t.p * square * t.log_ratio.sum(-1)).sum() / (t.p * square).sum())


@claim("TM-3-baseline")
def a_baseline_can_lower_the_variance() -> Iterator[Found]:
    """Any constant keeps the mean, and some constant lowers the variance."""
    errors = []
    for problem in worlds():
        t, (_, gradient) = terms(problem), exact(reverse_kl, problem)
        errors += [apart(mean(t.p, vanilla(problem, v)), gradient) for v in (-2.0, 0.3, 5.0)]
        best = vanilla(problem, _best_baseline(problem))
        errors.append(less(variance(t.p, best), variance(t.p, vanilla(problem)), by=1e-12))
    yield from each_form(worst(errors))


def _formula_error(problem: Problem) -> float:
    """Difference between the best constant and KL + Cov(log-ratio, |score|^2) / E|score|^2."""
    t, kl = terms(problem), exact(reverse_kl, problem)[0]
    square = t.score.square().sum((-2, -1))
    size = float(mean(t.p, square))
    covariance = float(mean(t.p, (t.log_ratio.sum(-1) - kl) * (square - size)))
    return apart(_best_baseline(problem), kl + covariance / size)


def _with_baselines(problem: Problem) -> tuple[float, float, float]:
    """Variance with the best constant, with the KL and without a baseline."""
    p, kl = terms(problem).p, exact(reverse_kl, problem)[0]
    least, at_kl, none = (variance(p, vanilla(problem, v)) for v in (_best_baseline(problem), kl, 0.0))
    return least, at_kl, none


@claim("TM-3-near-optimal")
def the_kl_is_a_near_optimal_baseline() -> Iterator[Found]:
    """The best constant is the KL plus Cov(log-ratio, |score|^2)/E|score|^2; the KL can lose to none."""
    even = [
        two_policies([1 / v] * v, torch.arange(1.0, v + 1).div(v * (v + 1) / 2).tolist()) for v in (2, 3, 6)
    ]
    small = two_policies((0.6, 0.3, 0.1), (0.2, 0.4, 0.4))
    least, at_kl, none = _with_baselines(small)
    found = [_with_baselines(q) for q in (*hedge_bandits(), *hedge_trees())]
    beyond = sum(degree(kl / max(best, 1e-300) - 1) > 0 for best, kl, _ in found)
    drawn = [_with_baselines(arms()._replace(logits=a, ref_logits=b)) for a, b in _rows(arms(20))]
    excess = [kl / best - 1 for best, kl, _ in drawn]
    uniform = [abs(kl - best) / other for best, kl, other in map(_with_baselines, even)]
    yield from each_form(
        beyond / len(found),
        inside=worst([*uniform, *(_formula_error(q) for q in worlds())]),
        none=none,
        at_kl=at_kl,
        least=least,
        number=100 * sum(excess) / len(excess),
        number_2=100 * max(excess),
        beyond=beyond,
        number_of_found=len(found),
        sum=sum(kl > other for _, kl, other in found),
    )


def _rows(stacked: Problem) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(stacked.logits, stacked.ref_logits, strict=True))


@claim("TM-3-LOO")
def leave_one_out_adds_no_bias() -> Iterator[Found]:
    """Over all pairs and triples, its mean is the KL, and the mean of the estimate is the gradient."""
    errors = []
    for problem in bandits():
        t, (_, gradient) = terms(problem), exact(reverse_kl, problem)
        ratio, score, count = t.log_ratio.sum(-1), t.score, len(t.p)
        for n in (2, 3):
            if count**n > 100:
                continue
            group = torch.cartesian_prod(*[torch.arange(count)] * n)
            costs = ratio[group]
            rest = (costs.sum(-1, keepdim=True) - costs) / (n - 1)
            estimate = torch.einsum("gi,girv->grv", costs - rest, score[group]) / n
            errors.append(apart(mean(t.p[group].prod(-1), estimate), gradient))
            errors.append(apart(mean(t.p[group].prod(-1), rest), exact(reverse_kl, problem)[0]))
    yield from each_form(worst(errors))
