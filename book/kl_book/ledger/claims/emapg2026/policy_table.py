"""Appendix J.4 and table 8: K3, K3++ and K4 as sums of losses, and the note on other samplers (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from kl_book.ledger.claims.checks import claim, words
from kl_book.ledger.claims.comparisons import Found, same
from kl_book.ledger.claims.ground import rollouts as sampled
from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.estimates import SAMPLED, full_square, k1, k2, k3, k3_plus_plus, k4, k5
from kl_book.ledger.claims.ground.world import Enumeration, each
from kl_book.ledger.claims.ground.worlds import few_sampled_elsewhere, three_policies

FORWARD = ("K3", "K5")


def l1_and_l5(w: Enumeration) -> torch.Tensor:
    """What eq (150) has for K3, [count]."""
    return w.log_z - w.R - w.log_w.exp()


def l1_and_l2(w: Enumeration) -> torch.Tensor:
    """What eq (151) has for K3++, [count]."""
    return w.log_z - w.R - w.log_w


@claim("EMA-eq150", over=each(sampled.rollouts))
def k3_as_a_sum(w: Enumeration) -> Iterator[Found]:
    """grad K3 is (1 - w) s: that of KL(pi*||pi); a REINFORCE term is not in it."""
    c, ratio = w.at_target(k3), w.log_w.exp()
    yield same(w.Es(l1_and_l5(w)), w.Es(c), by=relative)
    yield same(c, 1 - ratio, "corrected")
    yield same(w.Es(c), w.d_target_forward, "corrected")
    yield same(c, w.at_target(k1) - ratio, "corrected")
    yield same(c, w.at_target(k5), "corrected")


@claim("EMA-eq151", over=each(sampled.rollouts))
def k3_plus_plus_as_a_sum(w: Enumeration) -> Iterator[Found]:
    """grad K3++ is (l - R + log Z) s, that of K2 alone; the printed sum has a REINFORCE term on top."""
    c, claimed = w.at_target(k3_plus_plus), w.Es(l1_and_l2(w))
    yield same(claimed, w.d_target, by=relative)
    yield same(c, w.at_target(k2), "corrected")
    yield same(c, -w.log_w, "corrected")
    yield same(w.Es(c), w.d_target, "corrected")
    yield same(claimed, w.d_target - w.d_reward, "corrected")


@claim("EMA-eq152", over=each(sampled.rollouts))
def k4_as_k2(w: Enumeration) -> Iterator[Found]:
    """(l - R + log Z) s sample by sample: K2's gradient."""
    c = w.at_target(k4)
    yield same(c, -w.log_w)
    yield same(c, w.at_target(k2))
    yield same(w.Es(c), w.d_target)


# the rows of table 8 that have the same sums


def row_of_k3(w: Enumeration) -> torch.Tensor:
    """Expected L1 + L5 of the table, [rows, vocab]."""
    return sampled.eq147(w) + w.Es(-w.log_w.exp())


def row_of_k3_plus_plus(w: Enumeration) -> torch.Tensor:
    """Expected L1 + L2 of the table, the square without half and V for log Z, [rows, vocab]."""
    return sampled.eq147(w) + w.Es(sampled.with_mean_reward(full_square, w))


@claim("EMA-tab8-K2", over=each(sampled.rollouts))
def k2_in_the_table(w: Enumeration) -> Iterator[Found]:
    """The expression has a half, the gradient beside it has none."""
    of_k2 = w.Es(w.at_target(k2))
    yield same(w.Es(sampled.with_mean_reward(full_square, w)), of_k2, by=relative)
    yield same(w.Es(sampled.with_mean_reward(k2, w)), w.d_target, "corrected")
    yield same(of_k2, w.d_target, "corrected")


@claim("EMA-tab8-K3", over=each(sampled.rollouts))
def k3_in_the_table(w: Enumeration) -> Iterator[Found]:
    """grad K3 is that of KL(pi*||pi), as K5; the L1 of the table would add all of KL(pi||pi*)."""
    of_k3 = w.Es(w.at_target(k3))
    yield same(row_of_k3(w), of_k3, by=relative)
    yield same(of_k3, w.d_target_forward, "corrected")
    yield same(row_of_k3(w), w.d_target_forward + w.d_target, "corrected")


@claim("EMA-tab8-K3pp", over=each(sampled.rollouts))
def k3_plus_plus_in_the_table(w: Enumeration) -> Iterator[Found]:
    """K3++ is K2's gradient, sample by sample; the row's sum is three times as long in expectation."""
    c = w.at_target(k3_plus_plus)
    yield same(row_of_k3_plus_plus(w), w.Es(c), by=relative)
    yield same(c, w.at_target(k2), "corrected")
    yield same(w.Es(c), w.d_target, "corrected")
    yield same(row_of_k3_plus_plus(w), 3 * w.d_target, "corrected")


@words("EMA-eq150", "EMA-eq151", "EMA-tab8-K2", "EMA-tab8-K3", "EMA-tab8-K3pp")
def two_answers_and_all_worlds() -> dict[str, Any]:
    """Entries of the first logit with two answers; lengths beside the row of K3 in all worlds."""
    w = Enumeration(sampled.two_answers())
    lengths = [float(x.d_target_forward.norm() / row_of_k3(x).norm()) for x in each(sampled.rollouts)()]
    gradients = {
        "square": w.Es(sampled.with_mean_reward(full_square, w)),
        "forward": w.d_target_forward,
        "target": w.d_target,
        "l1_and_l5": w.Es(l1_and_l5(w)),
        "l1_and_l2": w.Es(l1_and_l2(w)),
        "row_of_k3": row_of_k3(w),
        "row_of_k3_plus_plus": row_of_k3_plus_plus(w),
    }
    return {name: sampled.first_logit(gradient) for name, gradient in gradients.items()} | {
        "worlds": len(lengths),
        "shortest": min(lengths),
        "longest": max(lengths),
    }


# another sampler


def on_policy(w: Enumeration) -> Enumeration:
    """The same world, sampled by its policy."""
    return w.replace(behavior_logits=None)


def sampled_by_the_reference() -> Enumeration:
    """Two answers with rewards 1 and 0: policy (0.9, 0.1), even reference, which is the sampler."""
    return Enumeration(three_policies((0.9, 0.1), (0.5, 0.5), (0.5, 0.5))).replace(
        rewards=sampled.two_answers().rewards
    )


@claim("EMA-J4-offpolicy", over=each(few_sampled_elsewhere))
def weights_on_losses(w: Enumeration) -> Iterator[Found]:
    """E_mu[sg(pi/mu) grad L] = E_pi[grad L] for all six losses, if mu covers pi and Z is not from (143)."""
    for name, estimate in SAMPLED.items():
        weighted = w.Es(w.at_target(estimate) * w.rho)
        yield same(weighted, on_policy(w).Es(on_policy(w).at_target(estimate)), "inside")
        if name != "K1":
            yield same(weighted, w.d_target_forward if name in FORWARD else w.d_target, "inside")
    yield same(w.E((w.R - w.l).exp() * w.rho), w.log_z.exp(), "inside")
    yield same(w.E((w.R - w.l).exp()) / w.log_z.exp(), 1.0)


def mask(w: Enumeration, low: float, high: float) -> torch.Tensor:
    """M of every sequence, by the sign of R - V and the ratio pi/mu, with V = E_pi[R]."""
    advantage = w.R - on_policy(w).E(w.R)
    blocked = ((advantage > 0) & (w.rho > 1 + high)) | ((advantage < 0) & (w.rho < 1 - low))
    return (~blocked).to(w.rho)


@claim("EMA-J4-offpolicy+mask", over=each(few_sampled_elsewhere))
def masks_on_losses(w: Enumeration) -> Iterator[Found]:
    """E_mu[s M grad L] is the gradient where nothing is masked; a mask leaves rollouts out, and biases."""
    for name, estimate in SAMPLED.items():
        c, right = w.at_target(estimate) * w.rho, on_policy(w).Es(w.at_target(estimate))
        yield same(w.Es(c * mask(w, 1.0, float(w.rho.max()))), right, "inside")
        if name != "K1":  # of K1 the expected gradient is 0, and nothing is relative to it
            yield same(w.Es(c * mask(w, 0.2, 0.28)), right, by=relative)
        if name in ("K2", "K3++", "K4"):
            yield same(right, w.d_kl - w.d_reward, "inside")


@words("EMA-J4-offpolicy", "EMA-J4-offpolicy+mask")
def two_answers_from_the_reference() -> dict[str, Any]:
    """Z by eq (143), and the gradient of K2, entry of the first logit, with a mask and without."""
    w = sampled_by_the_reference()
    unmasked = mask(w, 0.2, 0.28)
    return {
        "under_mu": float(w.E((w.R - w.l).exp())),
        "z": float(w.log_z.exp()),
        "masked": sampled.first_logit(w.Es(-w.log_w * w.rho * unmasked)),
        "full": sampled.first_logit(w.Es(-w.log_w * w.rho)),
        "left_out": int(2 - unmasked.sum()),
        "log_w": w.log_w,
        "rho": w.rho,
    }
