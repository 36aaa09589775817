"""The claims of Shah and others, "A Comedy of Estimators", as far as abstract and reviews tell them."""

from __future__ import annotations

import torch

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
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_book.ledger.claims.standard import JUDGEMENT
from kl_companion.tabular import Problem, learn
from kl_companion.theory.optima import optimal_policy


@claim("SH-abstract-reasoning", how="reading")
def reinforcement_learning_improves_reasoning() -> Evidence:
    """About language models and their benchmarks, with or without a KL."""
    return Evidence(needs="reinforcement learning of large language models, and benchmarks of reasoning")


def _next_token_kl(problem: Problem) -> float:
    """KL of whole sequences as a sum over prefixes of reach times the KL of the next token."""
    t = terms(problem)
    kl = reverse_kl(problem.logits.log_softmax(-1), problem.ref_logits.log_softmax(-1))
    along = kl[problem.rows] * problem.completion_mask
    return float((t.p[:, None] * along).sum())


@claim("SH-objective")
def exact_divergence_is_a_sum_over_all_sequences() -> Evidence:
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
    return Evidence(
        worst(errors),
        note=(
            "Intractable for whole sequences: the value depends on the next-token distribution after every "
            "prefix. Given a prefix, the KL of the next token is one sum over the vocabulary, so that only "
            "prefixes need sampling."
        ),
    )


@claim("SH-abstract-nostudy", how="reading")
def no_study_before_this_one() -> Evidence:
    """A statement about everything that had been published."""
    return Evidence(
        needs=JUDGEMENT,
        note=(
            "Tang and Munos, whom a review names, compare estimates in the loss, on bandits and with "
            "language models; $k_2$ and $k_3$ in the reward are not among them."
        ),
    )


@claim("SH-abstract-discrepancy")
def practices_without_the_gradient_of_their_objective() -> Evidence:
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
    return Evidence(
        worst(errors),
        note=(
            "Tried: $k_1$ or $k_3$ in the loss, $k_2$ or $k_3$ in the reward, any of the three token by "
            "token in "
            "the loss. The gradient is right for $k_1$ in the reward and, on-policy, for $k_2$ of a whole "
            "sequence in the loss."
        ),
    )


@claim("SH-prior", how="reading")
def the_point_has_been_made_before() -> Evidence:
    """A review's judgement of what is new."""
    return Evidence(
        needs=JUDGEMENT,
        note=(
            "Of estimates in the loss the earlier note says it (TM-eq2, TM-eq3, TM-4.1-biased); that $k_3$ "
            "is wrong in the reward as well (SH-K3-both) is in none of its rows here."
        ),
    )


@claim("SH-K1-reward")
def log_ratio_in_the_reward_is_unbiased() -> Evidence:
    """Value and update of k1 in the reward, on- and off-policy."""
    return Evidence(max(value_is_unbiased("k1"), update_is_right("k1")))


@claim("SH-K1-path")
def path_of_the_log_ratio_is_zero() -> Evidence:
    """E[grad k1] = 0."""
    return Evidence(worst(apart(mean_gradient("k1", p), 0.0) for p in worlds()))


@claim("SH-K3-both")
def reduced_value_is_wrong_in_both_places() -> Evidence:
    """k3: right value, wrong gradient in the reward and in the loss."""
    errors = [value_is_unbiased("k3"), update_is_wrong("k3")]
    errors += [differs(mean_gradient("k3", p), kl_gradient(p)) for p in worlds()]
    return Evidence(worst(errors))


@claim("SH-eq6")
def two_parts_of_a_gradient() -> Evidence:
    """grad E[k] = E[s k] + E[grad k]: the reward computes the first part, the loss the second."""
    errors = []
    for problem in worlds():
        square = exact(half_square, problem)[1]
        whole = {"k1": kl_gradient(problem), "k2": square, "k3": kl_gradient(problem)}
        for name, gradient in whole.items():
            score, path = average(in_reward(name, problem), problem), mean_gradient(name, problem)
            errors.append(apart(score + path, gradient))
    return Evidence(worst(errors))


@claim("SH-table1", how="reading")
def the_table_of_configurations() -> Evidence:
    """Estimator by placement, as far as it can be computed: which field is the gradient of the KL."""
    found = {}
    for name in ("k1", "k2", "k3"):
        for placement, field in (("reward", _in_reward), ("loss", mean_gradient)):
            error = worst(apart(field(name, p), kl_gradient(p)) for p in worlds())
            found[f"{name} in the {placement}"] = "unbiased" if error < 1e-9 else "biased"
    return Evidence(
        needs="table 1 of the paper, which abstract and reviews do not give",
        note="Gradients, enumerated: " + "; ".join(f"{k}: {v}" for k, v in found.items()) + ".",
    )


def _in_reward(name: str, problem: Problem) -> torch.Tensor:
    return average(in_reward(name, problem), problem)


@claim("SH-practice", how="reading")
def findings_confirm_what_is_done_already() -> Evidence:
    """A review's judgement, where the abstract has prevailing practices without the right gradient."""
    return Evidence(
        needs=JUDGEMENT,
        note=(
            "Both ways are in use: $k_1$ in the reward, which is right, and $k_3$ differentiated in the "
            "loss, which is not (SH-abstract-discrepancy)."
        ),
    )


def _clipped(advantage: torch.Tensor, problem: Problem, low: float = 0.8, high: float = 1.28) -> torch.Tensor:
    """Expected update with PPO's clip: samples whose ratio has gone far enough drop out."""
    ratio = rho(problem)
    blocked = ((advantage > 0) & (ratio > high)) | ((advantage < 0) & (ratio < low))
    return average(times_score(advantage * ~blocked, problem), problem)


@claim("SH-clip", how="reading")
def estimators_under_a_clipped_ratio() -> Evidence:
    """About the paper's runs; on bandits a clip changes the KL's part where the estimate is in the reward."""
    beta, off = 0.3, []
    for problem in (p for p in sampled_elsewhere() if p.rows.shape[1] == 1):
        gain = problem.rewards - mean(terms(problem).p, problem.rewards)
        pull = beta * kl_gradient(problem)
        through = _clipped(gain, problem) - _clipped(gain - beta * log_ratio(problem), problem)
        off.append(float((through - pull).norm() / pull.norm()))
    return Evidence(
        needs="the paper's runs, with each estimator under several clips and under none",
        note=(
            f"On {len(off)} bandits that another policy samples, with $k_1$ in the reward and PPO's clip "
            "on the "
            f"sum, the KL's part of the gradient is off by {100 * min(off):.0f} to {100 * max(off):.0f} %. "
            "An estimate in the loss, beside the clipped term, is not touched by the clip."
        ),
    )


@claim("SH-find1")
def a_wrong_gradient_can_be_unstable() -> Evidence:
    """Exact descent on k3 in the reward lets arms die out; k3 in the loss, biased too, does not."""
    problem = arms(50, 6)
    ref_logp = problem.ref_logits.squeeze(1).log_softmax(-1)
    path = learn(problem, "k3", n=None, steps=600, lr=0.5, record=600).logp
    calm = violation(*(reverse_kl(path[1], ref_logp) - reverse_kl(path[0], ref_logp)).tolist())
    return Evidence(
        max(training_is_unstable("k3"), training_is_stable("k1"), calm),
        note=(
            f"On bandits with expected gradients: $k_3$ in the reward, {what_training_did('k3')}. Not "
            "every bias "
            "does it: $k_3$ in the loss is biased and ends at the reference. No language model was trained."
        ),
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


@claim("SH-find2", how="reading")
def right_gradients_perform_better() -> Evidence:
    """About language models; on bandits the right gradient ends on the frontier of reward against its KL."""
    found = [_frontier(p) for p in bandits()]
    behind = [a - b for a, b in found if a - b > 1e-6]
    return Evidence(
        needs="the paper's language models and its in- and out-of-domain evaluations",
        note=(
            rf"On {len(found)} bandits with $\beta$ = 0.5, the optimum at which $k_3$ in the loss ends has "
            f"less reward at equal KL in {len(behind)}, by {max(behind, default=0.0):.3f} at most."
        ),
    )


def _second_moment(problem: Problem, beta: float) -> float:
    """E[rho^2] of the regularized optimum on samples of the reference, 1 where the two are equal."""
    ref_logp = terms(problem).ref_logp[:, 0]
    logp = optimal_policy(problem.rewards, ref_logp, "reverse_kl", beta).logp
    return float((2 * logp - ref_logp).exp().sum())


@claim("SH-find3", how="reading")
def regularization_stabilizes_off_policy_learning() -> Evidence:
    """About language models; on bandits it keeps the ratio to an old sampler in bounds."""
    kept, free = (sum(_second_moment(p, beta) for p in bandits()) / len(bandits()) for beta in (1.0, 0.05))
    return Evidence(
        needs="the paper's off-policy runs with language models",
        note=(
            f"On {len(bandits())} bandits sampled from the reference, the mean squared ratio of the "
            rf"optimum is {kept:.2f} on average at $\beta$ = 1 and {free:.2f} at $\beta$ = 0.05."
        ),
    )
