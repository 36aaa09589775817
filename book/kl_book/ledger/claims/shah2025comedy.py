"""The claims of Shah and others, "A Comedy of Estimators", as far as abstract and reviews tell them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form, numbers
from kl_book.ledger.claims.ground.errors import apart, differs, violation, worst
from kl_book.ledger.claims.ground.learning import (
    training_is_stable,
    training_is_unstable,
    update_is_right,
    update_is_wrong,
    value_is_unbiased,
    what_training_did,
)
from kl_book.ledger.claims.ground.off_policy import (
    average,
    half_square,
    in_reward,
    mean_gradient,
    rho,
    times_score,
)
from kl_book.ledger.claims.ground.sequences import prefixes_without_effect
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
from kl_book.ledger.claims.ground.worlds import arms, bandits, sampled_elsewhere, trees, worlds
from kl_companion.tabular import Problem, learn
from kl_companion.theory.optima import optimal_policy


def _next_token_kl(problem: Problem) -> float:
    """KL of whole sequences as a sum over prefixes of reach times the KL of the next token."""
    t = terms(problem)
    kl = reverse_kl(problem.logits.log_softmax(-1), problem.ref_logits.log_softmax(-1))
    along = kl[problem.rows] * problem.completion_mask
    return float((t.p[:, None] * along).sum())


@claim("SH-objective")
def exact_divergence_is_a_sum_over_all_sequences() -> Iterator[Found]:
    """Every prefix has a say in it; samples of the policy give its mean, those of another policy do not."""
    errors = []
    for problem in trees():
        kl = exact(reverse_kl, problem)[0]
        errors += [
            apart(mean(terms(problem).p, values("k1", problem)), kl),
            apart(_next_token_kl(problem), kl),
        ]
    for problem in sampled_elsewhere():
        elsewhere = mean(terms(problem).p, values("k1", problem))
        errors.append(differs(elsewhere, exact(reverse_kl, problem)[0]))
    errors += [prefixes_without_effect(problem) for problem in trees()]
    yield from each_form(worst(errors))


@claim("SH-abstract-discrepancy")
def practices_without_the_gradient_of_their_objective() -> Iterator[Found]:
    """k1 and k3 in the loss, k2 and k3 in the reward, any of them per token in the loss: all wrong."""
    errors = [update_is_wrong("k2"), update_is_wrong("k3"), update_is_right("k1")]
    for problem in worlds():
        kl = kl_gradient(problem)
        errors += [differs(mean_gradient(name, problem), kl) for name in ("k1", "k3")]
        errors.append(apart(mean_gradient("k3", problem), exact(forward_kl, problem)[1]))
        errors.append(apart(mean_gradient("k2", problem), kl))
    for problem in trees():
        for name in ("k1", "k2", "k3"):
            found = mean(terms(problem).p, differentiated(name, problem, per_token=True))
            errors.append(differs(found, kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("SH-K1-reward")
def log_ratio_in_the_reward_is_unbiased() -> Iterator[Found]:
    """Value and update of k1 in the reward, on- and off-policy."""
    yield from each_form(max(value_is_unbiased("k1"), update_is_right("k1")))


@claim("SH-K1-path")
def path_of_the_log_ratio_is_zero() -> Iterator[Found]:
    """E[grad k1] = 0."""
    yield from each_form(worst(apart(mean_gradient("k1", p), 0.0) for p in worlds()))


@claim("SH-K3-both")
def reduced_value_is_wrong_in_both_places() -> Iterator[Found]:
    """k3: right value, wrong gradient in the reward and in the loss."""
    errors = [value_is_unbiased("k3"), update_is_wrong("k3")]
    errors += [differs(mean_gradient("k3", p), kl_gradient(p)) for p in worlds()]
    yield from each_form(worst(errors))


@claim("SH-eq6")
def two_parts_of_a_gradient() -> Iterator[Found]:
    """grad E[k] = E[s k] + E[grad k]: the reward computes the first part, the loss the second."""
    errors = []
    for problem in worlds():
        square = exact(half_square, problem)[1]
        whole = {"k1": kl_gradient(problem), "k2": square, "k3": kl_gradient(problem)}
        for name, gradient in whole.items():
            score, path = average(in_reward(name, problem), problem), mean_gradient(name, problem)
            errors.append(apart(score + path, gradient))
    yield from each_form(worst(errors))


@claim("SH-table1")
def the_table_of_configurations() -> Iterator[Found]:
    """Estimator by placement, as far as it can be computed: which field is the gradient of the KL."""
    found = {}
    for name in ("k1", "k2", "k3"):
        for placement, field in (("reward", _in_reward), ("loss", mean_gradient)):
            error = worst(apart(field(name, p), kl_gradient(p)) for p in worlds())
            found[f"{name} in the {placement}"] = "unbiased" if error < 1e-9 else "biased"
    yield numbers(note="Gradients, enumerated: " + "; ".join(f"{k}: {v}" for k, v in found.items()) + ".")


def _in_reward(name: str, problem: Problem) -> torch.Tensor:
    return average(in_reward(name, problem), problem)


def _clipped(advantage: torch.Tensor, problem: Problem, low: float = 0.8, high: float = 1.28) -> torch.Tensor:
    """Expected update with PPO's clip: samples whose ratio has gone far enough drop out."""
    ratio = rho(problem)
    blocked = ((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low))
    return average(times_score(advantage * ~blocked, problem), problem)


@claim("SH-clip")
def estimators_under_a_clipped_ratio() -> Iterator[Found]:
    """About the paper's runs; on bandits a clip changes the KL's part where the estimate is in the reward."""
    beta, off = 0.3, []
    for problem in (p for p in sampled_elsewhere() if p.rows.shape[1] == 1):
        gain = problem.rewards - mean(terms(problem).p, problem.rewards)
        pull = beta * kl_gradient(problem)
        through = _clipped(gain, problem) - _clipped(gain - beta * log_ratio(problem), problem)
        off.append(float((through - pull).norm() / pull.norm()))
    yield numbers(number_of_off=len(off), number=100 * min(off), number_2=100 * max(off))


@claim("SH-find1")
def a_wrong_gradient_can_be_unstable() -> Iterator[Found]:
    """Exact descent on k3 in the reward lets arms die out; k3 in the loss, biased too, does not."""
    problem = arms(50, 6)
    ref_logp = problem.ref_logits.squeeze(1).log_softmax(-1)
    path = learn(problem, "k3", n=None, steps=600, lr=0.5, record=600).logp
    calm = violation(*(reverse_kl(path[1], ref_logp) - reverse_kl(path[0], ref_logp)).tolist())
    yield from each_form(
        max(training_is_unstable("k3"), training_is_stable("k1"), calm),
        what_training_did=what_training_did("k3"),
    )


def _frontier(problem: Problem) -> tuple[float, float]:
    """Reward at equal KL(pi || pi_ref): of the optimum of reverse KL, and of that of forward KL."""
    ref_logp, r = terms(problem).ref_logp[:, 0], problem.rewards
    other = optimal_policy(r, ref_logp, "forward_kl", 0.5).logp
    wanted, low, high = float(reverse_kl(other, ref_logp)), 1e-3, 1e3
    for _ in range(200):
        beta = (low * high) ** 0.5
        kl = float(reverse_kl(optimal_policy(r, ref_logp, "reverse_kl", beta).logp, ref_logp))
        low, high = (beta, high) if kl > wanted else (low, beta)
    best = optimal_policy(r, ref_logp, "reverse_kl", low).logp
    return float((best.exp() * r).sum()), float((other.exp() * r).sum())


@claim("SH-find2")
def right_gradients_perform_better() -> Iterator[Found]:
    """About language models; on bandits the right gradient ends on the frontier of reward against its KL."""
    found = [_frontier(p) for p in bandits()]
    behind = [a - b for a, b in found if a - b > 1e-6]
    yield numbers(
        number_of_found=len(found), number_of_behind=len(behind), max_behind=max(behind, default=0.0)
    )


def _second_moment(problem: Problem, beta: float) -> float:
    """E[rho^2] of the regularized optimum on samples of the reference, 1 where the two are equal."""
    ref_logp = terms(problem).ref_logp[:, 0]
    logp = optimal_policy(problem.rewards, ref_logp, "reverse_kl", beta).logp
    return float((2 * logp - ref_logp).exp().sum())


@claim("SH-find3")
def regularization_stabilizes_off_policy_learning() -> Iterator[Found]:
    """About language models; on bandits it keeps the ratio to an old sampler in bounds."""
    kept, free = (sum(_second_moment(p, beta) for p in bandits()) / len(bandits()) for beta in (1.0, 0.05))
    yield numbers(number=len(bandits()), kept=kept, free=free)
