"""Section 3: what differentiating an estimate does (tang2025pitfalls)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, same
from kl_book.ledger.claims.ground import errors, sums
from kl_book.ledger.claims.ground.groups import centered, groups
from kl_book.ledger.claims.ground.world import SMALL, Enumeration, each, two
from kl_book.ledger.claims.ground.worlds import arms, bandits, hedge_bandits, hedge_trees, worlds
from kl_companion.tabular import learn
from kl_companion.theory.optima import optimal_policy

LAMBDAS = (-1.0, 0.5, 1.0, 3.0)


@claim("TM-3-nonimplication", over=each(worlds))
def unbiased_value_does_not_imply_unbiased_gradient(w: Enumeration) -> Iterator[Found]:
    """k1 and k3 have the right mean, and gradients with another mean."""
    for k in ("k1", "k3"):
        yield same(w.E(w.value(k)), w.kl)
        yield differs(w.grad(k), w.d_kl)


@claim("TM-eq2", over=each(worlds))
def differentiated_vanilla_is_zero_on_average(w: Enumeration) -> Iterator[Found]:
    """E[grad k1] = E[score] = 0, although no sample of it is zero."""
    yield same(w.grad("k1"), 0.0)
    yield same(w.slope("k1"), w.s)


@claim("TM-eq2-parameters")
def differentiated_in_the_parameters_of_the_policy() -> Iterator[Found]:
    """With respect to the only other policy's parameters the mean is minus that policy's score."""
    means = []
    for w in each(worlds, SMALL.problem)():
        means.append(w.E(-w.replace(logits=w.problem.ref_logits).s))
        yield same(means[-1], 0.0)
        yield same(w.grad("k1"), 0.0, "corrected")
    yield numbers(mean=means[-1], largest=max(mean.abs().max() for mean in means))


@claim("TM-3-noise")
def differentiated_vanilla_only_adds_noise() -> Iterator[Found]:
    """Added to a policy gradient it leaves the mean and changes the samples: a constant baseline beta."""
    raises = []
    for w, beta in itertools.product(each(worlds)(), (0.1, 1.0)):
        alone = w.R[:, None, None] * w.s
        both = alone - beta * w.slope("k1")
        yield same(w.E(both), w.E(alone))
        yield differs(both, alone)
        yield same(both, (w.R[:, None, None] - beta) * w.s)
        raises.append(w.var(both) > w.var(alone))
    yield numbers(raises=sum(raises), cases=len(raises))


@claim("TM-eq3", over=each(worlds))
def differentiated_reduced_is_the_other_kl(w: Enumeration) -> Iterator[Found]:
    """E[grad k3] is the gradient of KL(pi_ref || pi), and not that of KL(pi || pi_ref)."""
    yield same(w.grad("k3"), w.d_forward)
    yield differs(w.grad("k3"), w.d_kl)


@claim("TM-3-same-minimiser")
def same_minimizer_alone_another_one_with_a_reward() -> Iterator[Found]:
    """Exact descent ends at the reference; with a reward it rests at another policy than the optimum."""
    problem = arms(20, 6)
    end = learn(problem, "k3", n=None, steps=4000, record=4000).logp[-1]
    kl = sums.reverse_kl(end, problem.ref_logits.squeeze(1).log_softmax(-1))
    yield less(float(kl.max()), 1e-4, by=0.0)
    for w in each(bandits)():
        ref_logp = w.t.ref_logp[:, 0]
        best, rests = (optimal_policy(w.R, ref_logp, d).logp for d in ("reverse_kl", "forward_kl"))
        yield same(_force(w, rests), 0.0)
        yield differs(_force(w, best), 0.0)
        yield differs(rests, best)


def _force(w: Enumeration, logp: torch.Tensor) -> torch.Tensor:
    """Gradient of the reward less the mean of the differentiated k3, at another policy."""
    at = w.replace(logits=logp[None])
    return ((w.R * logp.exp())[:, None, None] * at.s).sum(0) - at.grad("k3")


@claim("TM-3-lambda-grad", over=each(worlds))
def factor_scales_the_gradient_of_the_other_kl(w: Enumeration) -> Iterator[Found]:
    """A vector of mean lambda grad KL(pi_ref || pi); the printed right-hand side is a number."""
    for lam in LAMBDAS:
        mean = w.grad(f"k_lambda({lam:g})")
        yield same(torch.full_like(mean, lam * w.forward), mean, by=errors.relative)
        yield same(mean, lam * w.d_forward, "corrected")
    yield numbers(gradient=SMALL.grad("k_lambda(1)"), kl=SMALL.forward)


@claim("TM-3-lambda0", over=each(worlds))
def no_factor_no_regularization(w: Enumeration) -> Iterator[Found]:
    """With factor 0 the expected gradient vanishes; with any other it does not."""
    yield same(w.grad("k_lambda(0)"), 0.0)
    for lam in LAMBDAS:
        yield differs(w.grad(f"k_lambda({lam:g})"), 0.0)


@claim("TM-3-squared-grad", over=each(worlds))
def differentiated_square_is_right(w: Enumeration) -> Iterator[Found]:
    """E[grad k2] = E[log-ratio times score] = grad KL(pi || pi_ref)."""
    yield same(w.grad("k2"), w.d_kl)
    yield same(w.E(w.vanilla()), w.d_kl)


@claim("TM-eq4", over=each(worlds))
def vanilla_gradient_is_the_squared_estimate_differentiated(w: Enumeration) -> Iterator[Found]:
    """Sample by sample, log-ratio times score is the gradient of k2."""
    yield same(w.slope("k2"), w.vanilla())


@claim("TM-3-surrogate", over=each(worlds))
def surrogate_loss_gives_the_vanilla_gradient(w: Enumeration) -> Iterator[Found]:
    """Differentiating sg(log-ratio) log pi gives log-ratio times score, sample by sample."""
    yield same(w.slope(lambda a, b: (a - b).detach() * a), w.vanilla())


def _best_baseline(w: Enumeration) -> float:
    """The constant of least variance: E[log-ratio |score|^2] / E[|score|^2]."""
    square = w.s.square().sum((-2, -1))
    return float((w.p * square * w.l).sum() / (w.p * square).sum())


@claim("TM-3-baseline", over=each(worlds))
def a_baseline_can_lower_the_variance(w: Enumeration) -> Iterator[Found]:
    """Any constant keeps the mean, and some constant lowers the variance."""
    for v in (-2.0, 0.3, 5.0):
        yield same(w.E(w.vanilla(v)), w.d_kl)
    yield less(w.var(w.vanilla(_best_baseline(w))), w.var(w.vanilla()), by=1e-12)


def _with_baselines(w: Enumeration) -> tuple[float, ...]:
    """Variance with the best constant, with the KL and without a baseline."""
    return tuple(w.var(w.vanilla(v)) for v in (_best_baseline(w), w.kl, 0.0))


@claim("TM-3-near-optimal")
def the_kl_is_a_near_optimal_baseline() -> Iterator[Found]:
    """The best constant is the KL plus Cov(log-ratio, |score|^2)/E|score|^2; the KL can lose to none."""
    for w in each(worlds)():
        square = w.s.square().sum((-2, -1))
        size = float(w.E(square))
        yield same(_best_baseline(w), w.kl + float(w.E((w.l - w.kl) * (square - size))) / size, "inside")
    for v in (2, 3, 6):
        even = two([1 / v] * v, torch.arange(1.0, v + 1).div(v * (v + 1) / 2).tolist())
        least, at_kl, none = _with_baselines(even)
        yield same(at_kl / none, least / none, "inside")
    least, at_kl, none = _with_baselines(two((0.6, 0.3, 0.1), (0.2, 0.4, 0.4)))
    fixed = [_with_baselines(w) for w in each(hedge_bandits, hedge_trees)()]
    beyond = sum(errors.degree(kl / max(best, 1e-300) - 1) > 0 for best, kl, _ in fixed)
    worse = sum(kl > other for _, kl, other in fixed)
    pairs = zip(arms(20).logits, arms(20).ref_logits, strict=True)
    drawn = [_with_baselines(Enumeration(arms()._replace(logits=a, ref_logits=b))) for a, b in pairs]
    excess = [100 * (kl / best - 1) for best, kl, _ in drawn]
    yield same(beyond / len(fixed), 0.0)
    yield numbers(none=none, at_kl=at_kl, least=least, average=sum(excess) / len(excess), most=max(excess))
    yield numbers(beyond=beyond, fixed=len(fixed), worse=worse)


@claim("TM-3-LOO", over=each(bandits))
def leave_one_out_adds_no_bias(w: Enumeration) -> Iterator[Found]:
    """Over all pairs and triples, its mean is the KL, and the mean of the estimate is the gradient."""
    for n in (n for n in (2, 3) if len(w.p) ** n <= 100):
        chance, group = groups(w.problem, n)
        costs = centered(w.l[group], "leave_one_out")
        yield same(torch.einsum("g,gi,girv->rv", chance, costs, w.s[group]) / n, w.d_kl)
        yield same(sums.mean(chance, w.l[group] - costs), w.kl)
