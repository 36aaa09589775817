"""The claims of Shah and others, "A Comedy of Estimators", as far as abstract and reviews tell them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, at_most, differs, numbers, printed, same
from kl_book.ledger.claims.ground import learning, sequences, sums
from kl_book.ledger.claims.ground.errors import apart, relative, worst
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import arms, bandits, sampled_elsewhere, trees, worlds
from kl_companion.tabular import learn
from kl_companion.theory.optima import optimal_policy


@claim("SH-objective")
def exact_divergence_is_a_sum_over_all_sequences() -> Iterator[Found]:
    """Every prefix has a say in it; samples of the policy give its mean, those of another policy do not."""
    for w in each(trees)():
        yield same(w.bias("k1"), 0.0)
        yield same(w.E(sequences.token_kls(w.problem, w.problem.logits).sum(-1)), w.kl)
        yield printed(sequences.prefixes_without_effect(w.problem))
    for w in each(sampled_elsewhere)():
        yield differs(w.bias("k1"), 0.0)


@claim("SH-abstract-discrepancy")
def practices_without_the_gradient_of_their_objective() -> Iterator[Found]:
    """k1 and k3 in the loss, k2 and k3 in the reward, any of them per token in the loss: all wrong."""
    yield printed(learning.update_is_wrong("k2"))
    yield printed(learning.update_is_wrong("k3"))
    yield printed(learning.update_is_right("k1"))
    for w in each(worlds)():
        yield differs(w.grad("k1"), w.d_kl)
        yield differs(w.grad("k3"), w.d_kl)
        yield same(w.grad("k3"), w.d_forward)
        yield same(w.grad("k2"), w.d_kl)
    for w in each(trees)():
        for k in ("k1", "k2", "k3"):
            yield differs(w.grad(k, per_token=True), w.d_kl)


@claim("SH-K1-reward")
def log_ratio_in_the_reward_is_unbiased() -> Iterator[Found]:
    """Value and update of k1 in the reward, on- and off-policy."""
    yield printed(learning.value_is_unbiased("k1"))
    yield printed(learning.update_is_right("k1"))


@claim("SH-K1-path", over=each(worlds))
def path_of_the_log_ratio_is_zero(w: Enumeration) -> Iterator[Found]:
    """E[grad k1] = 0."""
    yield same(w.grad("k1"), 0.0)


@claim("SH-K3-both")
def reduced_value_is_wrong_in_both_places() -> Iterator[Found]:
    """k3: right value, wrong gradient in the reward and in the loss."""
    yield printed(learning.value_is_unbiased("k3"))
    yield printed(learning.update_is_wrong("k3"))
    for w in each(worlds)():
        yield differs(w.grad("k3"), w.d_kl)


@claim("SH-eq6", over=each(worlds))
def two_parts_of_a_gradient(w: Enumeration) -> Iterator[Found]:
    """grad E[k] = E[s k] + E[grad k]: the reward computes the first part, the loss the second."""
    for k in ("k1", "k2", "k3"):
        yield same(w.E(w.in_reward(k)) + w.grad(k), w.d_square if k == "k2" else w.d_kl)


@claim("SH-table1")
def the_table_of_configurations() -> Iterator[Found]:
    """Estimator by placement, as far as it can be computed: which field is the gradient of the KL."""
    for k in ("k1", "k2", "k3"):
        reward = worst(apart(w.E(w.in_reward(k)), w.d_kl) for w in each(worlds)())
        loss = worst(apart(w.grad(k), w.d_kl) for w in each(worlds)())
        placed = {f"{k}_reward": reward, f"{k}_loss": loss}
        yield numbers(**{name: "unbiased" if e < 1e-9 else "biased" for name, e in placed.items()})


def _clipped(advantage: torch.Tensor, w: Enumeration, low: float = 0.8, high: float = 1.28) -> torch.Tensor:
    """Expected update with PPO's clip: samples whose ratio has gone far enough drop out."""
    blocked = ((advantage > 0) & (w.rho > high)) | ((advantage < 0) & (w.rho < low))
    return w.E(w.times_score(advantage * ~blocked))


@claim("SH-clip")
def estimators_under_a_clipped_ratio() -> Iterator[Found]:
    """About the paper's runs; on bandits a clip changes the KL's part where the estimate is in the reward."""
    beta, off = 0.3, []
    for w in (w for w in each(sampled_elsewhere)() if w.problem.rows.shape[1] == 1):
        gain = w.R - w.E(w.R)
        through = _clipped(gain, w) - _clipped(gain - beta * w.l, w)
        off.append(100 * relative(through, beta * w.d_kl))
    yield numbers(bandits=len(off), least=min(off), most=max(off))


@claim("SH-find1")
def a_wrong_gradient_can_be_unstable() -> Iterator[Found]:
    """Exact descent on k3 in the reward lets arms die out; k3 in the loss, biased too, does not."""
    problem = arms(50, 6)
    path = learn(problem, "k3", n=None, steps=600, lr=0.5, record=600).logp
    before, after = sums.reverse_kl(path, problem.ref_logits.squeeze(1).log_softmax(-1))
    yield at_most(after, before)
    yield printed(learning.training_is_unstable("k3"))
    yield printed(learning.training_is_stable("k1"))
    yield numbers(**learning.training_numbers("k3"))


def _frontier(w: Enumeration) -> tuple[float, float]:
    """Reward at equal KL(pi || pi_ref): of the optimum of reverse KL, and of that of forward KL."""
    ref_logp, r = w.t.ref_logp[:, 0], w.R
    other = optimal_policy(r, ref_logp, "forward_kl", 0.5).logp
    best, _ = learning.optimum_at(float(sums.reverse_kl(other, ref_logp)), r, ref_logp)
    return float((best.exp() * r).sum()), float((other.exp() * r).sum())


@claim("SH-find2")
def right_gradients_perform_better() -> Iterator[Found]:
    """About language models; on bandits the right gradient ends on the frontier of reward against its KL."""
    lacks = [best - other for best, other in map(_frontier, each(bandits)())]
    behind = [lack for lack in lacks if lack > 1e-6]
    yield numbers(bandits=len(lacks), behind=len(behind), most=max(behind, default=0.0))


def _second_moment(w: Enumeration, beta: float) -> float:
    """E[rho^2] of the regularized optimum on samples of the reference, 1 where the two are equal."""
    ref_logp = w.t.ref_logp[:, 0]
    logp = optimal_policy(w.R, ref_logp, "reverse_kl", beta).logp
    return float((2 * logp - ref_logp).exp().sum())


@claim("SH-find3")
def regularization_stabilizes_off_policy_learning() -> Iterator[Found]:
    """About language models; on bandits it keeps the ratio to an old sampler in bounds."""
    count = len(bandits())
    strong, weak = (sum(_second_moment(w, beta) for w in each(bandits)()) / count for beta in (1.0, 0.05))
    yield numbers(bandits=count, strong=strong, weak=weak)
