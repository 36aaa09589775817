"""Sections 5 to 6.3 and the tables of section 9: KL as a loss (wang2025choosing)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, worst
from kl_book.ledger.claims.ground.off_policy import (
    average,
    error_of_gradient_row,
    in_loss,
    in_reward,
    mean_gradient,
    rho,
    share_of_cases,
    times_score,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    forward_kl,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
    values,
)
from kl_book.ledger.claims.ground.worlds import all_worlds, sampled_elsewhere, trees, worlds
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.losses import kl_terms
from kl_companion.tabular import Problem, exact_field


@claim("WZ-5-two-ways")
def a_differentiated_and_a_detached_penalty() -> Iterator[Found]:
    """The loss adds beta grad k to -A s; the shaped reward multiplies s by R - beta k: not one algorithm."""
    errors, beta = [], 0.3
    for problem in worlds():
        t, gain = terms(problem), problem.rewards
        for name in ("k1", "k2", "k3"):
            leaf = t.logp.sum(-1).clone().requires_grad_()
            k = _value(name, leaf, problem)
            (loss,) = torch.autograd.grad((-gain * leaf + beta * k).sum(), leaf, retain_graph=True)
            (shaped,) = torch.autograd.grad((-(gain - beta * k.detach()) * leaf).sum(), leaf)
            written = -gain[:, None, None] * t.score + beta * differentiated(name, problem)
            errors.append(apart(loss[:, None, None] * t.score, written))
            expected = [average(c[:, None, None] * t.score, problem) for c in (loss, shaped)]
            errors.append(differs(expected[0], expected[1]))
    yield from each_form(worst(errors))


def _value(name: str, logp: torch.Tensor, problem: Problem) -> torch.Tensor:
    log_ratio = logp - terms(problem).ref_logp.sum(-1)
    return {"k1": log_ratio, "k2": log_ratio**2 / 2, "k3": (-log_ratio).exp() - 1 + log_ratio}[name]


def _off(problem: Problem, update: torch.Tensor) -> float:
    """How far an expected update is from the gradient of the KL, relative to it."""
    wanted = kl_gradient(problem)
    return float((update - wanted).norm() / wanted.norm())


@claim("WZ-5-requires")
def shaped_rewards_need_accurate_values() -> Iterator[Found]:
    """A value that is wrong by a constant gives the right update; the accurate k3 gives a wrong one."""
    unharmed, corrected, off, length = [], [], [], []
    for problem in all_worlds():
        t, x = terms(problem), log_ratio(problem)
        # k1 + 5 as the estimate: its value is wrong by 5, its update is the one of k1
        unharmed.append(_off(problem, average(times_score(x + 5.0, problem), problem)) <= TOLERANCE)
        reduced = average(in_reward("k3", problem), problem)
        off.append(_off(problem, reduced))
        gap = average(times_score(values("k3", problem) - x, problem), problem)
        accurate = apart((t.p * rho(problem) * values("k3", problem)).sum(), exact(reverse_kl, problem)[0])
        failing = (apart(reduced - kl_gradient(problem), gap), accurate, differs(gap, 0.0))
        corrected.append(max(failing) > TOLERANCE)
        if problem.behavior_logits is None and len(set(problem.completion_mask.sum(-1).tolist())) > 1:
            longer = x + 0.1 * problem.completion_mask.sum(-1)  # a tenth of a nat per token
            length.append(_off(problem, average(times_score(longer, problem), problem)))
    yield from each_form(
        share_of_cases(unharmed),
        share_of_cases(corrected),
        number_of_unharmed=len(unharmed),
        min_off=min(off),
        max_off=max(off),
        min_length=min(length),
        max_length=max(length),
    )


@claim("WZ-6.1-basic")
def gradients_of_single_estimates() -> Iterator[Found]:
    """grad k1 = s, grad k2 = k1 s, grad k3 = (1 - p/q) s, for every sample."""
    errors = []
    for problem in worlds():
        s, x = terms(problem).score, log_ratio(problem)[:, None, None]
        wanted = {"k1": s, "k2": x * s, "k3": (1 - (-x).exp()) * s}
        errors += [apart(differentiated(n, problem), w) for n, w in wanted.items()]
    yield from each_form(worst(errors))


@claim("WZ-6.1-pitfall")
def expectation_and_derivative_do_not_commute() -> Iterator[Found]:
    """grad E[k1] = grad E[k3] = grad KL, by differentiated sums; E[grad k1] and E[grad k3] are others."""
    errors = []
    for problem in worlds():

        def reduced(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return (a.exp() * ((b - a).exp() - 1 - (b - a))).sum()

        right = kl_gradient(problem)
        errors.append(apart(exact(reduced, problem)[1], right))
        errors += [differs(mean_gradient(name, problem), right) for name in ("k1", "k3")]
    yield from each_form(worst(errors))


def _wave(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    return torch.sin(3 * logp) + ref_logp


def _product(logp: torch.Tensor, ref_logp: torch.Tensor) -> torch.Tensor:
    return logp * ref_logp


@claim("WZ-6.2-exchange")
def a_fixed_sampler_lets_them_commute() -> Iterator[Found]:
    """With mu held fixed, the derivative of E_mu[rho f] is E_mu of the derivative; under q it is not."""
    errors = []
    for problem in all_worlds():
        mu, theta = terms(problem).p, problem.logits.detach().clone().requires_grad_()
        for f in ("k1", "k2", "k3", _wave, _product):
            logp = problem.token_logp(theta).sum(-1)
            ref_logp = terms(problem).ref_logp.sum(-1)
            k = _value(f, logp, problem) if isinstance(f, str) else f(logp, ref_logp)
            (outside,) = torch.autograd.grad((mu * (logp.exp() / mu) * k).sum(), theta)
            errors.append(apart(outside, average(in_loss(f, problem), problem)))
            if problem.behavior_logits is None and f != "k2":
                errors.append(differs(outside, mean_gradient(f, problem)))
    yield from each_form(worst(errors))


@claim("WZ-sample-rho-k1")
def sample_rho_k1() -> Iterator[Found]:
    """grad(rho k1) = rho s (k1 + 1), of mean grad KL(q||p)."""
    yield from each_form(error_of_gradient_row("k1", "k1 + 1", "reverse_kl"))


@claim("WZ-sample-rho-k2")
def sample_rho_k2() -> Iterator[Found]:
    """grad(rho k2) = rho s (k2 + k1), of mean grad E_q[k2], which is not grad KL(q||p)."""
    yield from each_form(error_of_gradient_row("k2", "k2 + k1", "half_square"))


@claim("WZ-sample-sgrho-k2")
def sample_detached_k2() -> Iterator[Found]:
    """grad(sg(rho) k2) = rho s k1, of mean grad KL(q||p)."""
    yield from each_form(error_of_gradient_row("k2", "k1", "reverse_kl", "detached"))


@claim("WZ-sample-rho-k3")
def sample_rho_k3() -> Iterator[Found]:
    """grad(rho k3) = rho s k1, of mean grad KL(q||p)."""
    yield from each_form(error_of_gradient_row("k3", "k1", "reverse_kl"))


@claim("X-sgrho-k1k3")
def detached_k1_and_k3() -> Iterator[Found]:
    """The two forms that the table leaves out: no gradient at all, and that of the forward KL."""
    errors = []
    for problem in all_worlds():
        forward = exact(forward_kl, problem)[1]
        errors.append(apart(average(in_loss("k1", problem, "detached"), problem), 0.0))
        errors.append(apart(average(in_loss("k3", problem, "detached"), problem), forward))
        errors.append(differs(forward, kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("WZ-9.2-rho-k2")
def guide_rho_k2() -> Iterator[Found]:
    """Off-policy, the attached ratio times k2 has the gradient of E_q[k2] and not of the KL."""
    yield from each_form(error_of_gradient_row("k2", "k2 + k1", "half_square", problems=sampled_elsewhere()))


@claim("WZ-equivalence")
def detached_k2_and_attached_k3_are_one_vector() -> Iterator[Found]:
    """For every sample, on- and off-policy, the two gradients are the same."""
    yield from each_form(worst(apart(in_loss("k2", p, "detached"), in_loss("k3", p)) for p in all_worlds()))


@claim("WZ-9.1-onpolicy")
def naive_k2_and_attached_k3_on_policy() -> Iterator[Found]:
    """On-policy, k2 without a ratio and k3 with the ratio in the graph have one gradient per sample."""
    yield from each_form(worst(apart(differentiated("k2", p), in_loss("k3", p)) for p in worlds()))


@claim("WZ-naive-k1")
def naive_k1() -> Iterator[Found]:
    """E[grad k1] = 0."""
    yield from each_form(worst(apart(mean_gradient("k1", p), 0.0) for p in worlds()))


@claim("WZ-naive-k2")
def naive_k2() -> Iterator[Found]:
    """E[grad k2] = grad KL(q||p), and of k1, k2, k3 it is the only one."""
    errors = [apart(mean_gradient("k2", p), kl_gradient(p)) for p in worlds()]
    errors += [differs(mean_gradient(n, p), kl_gradient(p)) for n in ("k1", "k3") for p in worlds()]
    yield from each_form(worst(errors))


@claim("WZ-naive-k3")
def naive_k3() -> Iterator[Found]:
    """E[grad k3] = grad KL(p||q)."""
    yield from each_form(worst(apart(mean_gradient("k3", p), exact(forward_kl, p)[1]) for p in worlds()))


@claim("WZ-9.4-rho1")
def a_literal_one_loses_the_score() -> Iterator[Found]:
    """With rho detached on-policy, rho k1 and rho k3 have the naive gradients, sample by sample."""
    errors = []
    for problem in worlds():
        for name in ("k1", "k3"):
            errors.append(apart(in_loss(name, problem, "detached"), differentiated(name, problem)))
            errors.append(differs(average(in_loss(name, problem, "detached"), problem), kl_gradient(problem)))
            errors.append(apart(average(in_loss(name, problem), problem), kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("WZ-6.3-special")
def k2_without_a_ratio_is_right_on_policy_only() -> Iterator[Found]:
    """On-policy E[grad k2] is grad KL; under another sampler E_mu[grad k2] is not."""
    errors = [apart(mean_gradient("k2", p), kl_gradient(p)) for p in worlds()]
    errors += [differs(mean_gradient("k2", p), kl_gradient(p)) for p in sampled_elsewhere()]
    yield from each_form(worst(errors))


@claim("WZ-deepseek")
def attached_k3_is_right_in_value_and_gradient() -> Iterator[Found]:
    """E_mu[rho k3] = KL and E_mu[grad(rho k3)] = grad KL: of whole samples; per token, states stay fixed."""
    whole, per_token = [], []
    for problem in all_worlds():
        kl, gradient = exact(reverse_kl, problem)
        value = mean(terms(problem).p, rho(problem) * values("k3", problem))
        whole += [apart(value, kl), apart(average(in_loss("k3", problem), problem), gradient)]
        if problem.rows.shape[1] > 1:
            per_token.append(differs(_per_token(problem, "token"), gradient))
    yield from each_form(max(worst(whole), worst(per_token)))


def _per_token(problem: Problem, scope: str) -> torch.Tensor:
    """Expected gradient of the sum over tokens of rho k3, [rows, vocab]."""
    return exact_field(
        lambda r: kl_terms(r, "k3", importance=scope, ratio="attached"),  # type: ignore[arg-type]
        problem,
    )


def _states_fixed(problem: Problem) -> torch.Tensor:
    """Gradient of the summed KL of next tokens, the visits of the sampler held fixed, [rows, vocab]."""
    theta = problem.logits.detach().clone().requires_grad_()
    kl = reverse_kl(theta.log_softmax(-1), problem.ref_logits.log_softmax(-1))
    total = (terms(problem).p[:, None] * kl[problem.rows] * problem.completion_mask).sum()
    (gradient,) = torch.autograd.grad(total, theta)
    return gradient


@claim("WZ-scope-token")
def conclusions_for_single_tokens() -> Iterator[Found]:
    """Per token, naive k2 and rho k3 have the gradient of the KL of next tokens, visited states held fixed.

    Of whole samples they have that of the KL of sequences, to which the two per token do not add up.
    """
    errors = []
    for problem in (*trees(), *(p for p in sampled_elsewhere() if p.rows.shape[1] > 1)):
        if problem.behavior_logits is None:
            tokens = average(differentiated("k2", problem, per_token=True), problem)
            errors.append(apart(mean_gradient("k2", problem), kl_gradient(problem)))
        else:
            tokens = _per_token(problem, "token")
        errors += [apart(tokens, _states_fixed(problem)), differs(tokens, kl_gradient(problem))]
        errors.append(apart(average(in_loss("k3", problem), problem), kl_gradient(problem)))
    small = trees()[0]
    sequences, tokens = kl_gradient(small), average(differentiated("k2", small, per_token=True), small)
    yield from each_form(worst(errors), float=float(tokens[0].norm()), float_2=float(sequences[0].norm()))
