"""Section 4: MiniRL, its advantage, clip and measurements, and its two variants (zheng2025stabilizing)."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median_high

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, differs, less, numbers, printed, rises, same
from kl_book.ledger.claims.ground import off_policy, sums, surrogates, updates, worlds
from kl_book.ledger.claims.ground.errors import relative, turned

NEAR = 0.1  # share of the way from sampler to policy
UPDATES = 8  # mini-batches of a global step


@claim("QW-4.1-advantage", over=surrogates.sampled_trees)
def rewards_minus_their_mean(w: surrogates.Engines) -> Iterator[Found]:
    """Under the sampler the advantage has mean zero, and the deviation of the rewards is not divided out."""
    sampled, advantage = w.problem.token_logp(w.problem.sampled_from).sum(-1).exp(), w.advantage
    yield same(sampled @ advantage, 0.0)
    yield same(advantage, w.R - sampled @ w.R)
    yield differs(sums.variance(sampled, advantage), 1.0)


def _pooled(prompts: list[surrogates.Engines]) -> float:
    """Variance of the reward over prompts, all alike likely, and over their answers."""
    return sums.variance(torch.cat([w.p for w in prompts]) / len(prompts), torch.cat([w.R for w in prompts]))


def _noise(w: surrogates.Engines) -> float:
    """Variance of the gradient of one answer."""
    return w.var(w.R[:, None, None] * w.s)


@claim("QW-4.1-variance")
def the_mean_of_a_prompt_as_a_baseline() -> Iterator[Found]:
    """A prompt's own variance stays; over prompts the variance of their mean rewards is taken away."""
    raw = [w.replace(behavior_logits=None) for w in surrogates.sampled_trees()]
    centered = [w.with_advantages for w in raw]
    pairs = zip(raw, centered, strict=True)
    yield printed(off_policy.share_of_cases(abs(a.var(a.R) - w.var(w.R)) < 1e-9 for w, a in pairs))
    before, after = _pooled(raw), _pooled(centered)
    yield less(after, before, "inside")
    yield same(after, sum(w.var(w.R) for w in raw) / len(raw), "inside")
    means = torch.stack([w.E(w.R) for w in raw])
    yield same(before - after, means.var(correction=0), "inside")
    graded = [surrogates.Engines(updates.binary(p)) for p in worlds.hedge_trees()]
    quieter = sum(_noise(w.with_advantages) < _noise(w) for w in graded)
    yield numbers(prompts=len(raw), before=before, after=after, quieter=quieter, trees=len(graded))


@claim("QW-eq7-mask")
def the_mask_is_that_of_ppo() -> Iterator[Found]:
    """The derivative of PPO's clipped term is M_t times ratio and advantage, for every token."""
    closed = 0.0
    for w in surrogates.sampled_trees():
        mask, a = w.mask, w.advantage[:, None]
        leaf = w.t.logp.clone().requires_grad_()
        ratio = (leaf - w.problem.token_logp(w.problem.ref_logits)).exp()
        clipped = torch.minimum(ratio * a, ratio.clamp(1 - surrogates.LOW, 1 + surrogates.HIGH) * a) * mask
        (slopes,) = torch.autograd.grad(clipped.sum(), leaf)
        yield same(slopes, w.open * w.t.log_ratio.exp() * a * mask)
        closed += float(((w.open == 0) * mask).sum())
    yield less(0.0, closed, by=1.0)
    yield numbers(low=surrogates.LOW, high=surrogates.HIGH)


@claim("QW-eq7")
def minirl_has_the_gradient_of_the_surrogate() -> Iterator[Found]:
    """The advantage leaves the gradient of eq (3) as it is; the mask takes out the clipped tokens."""
    shares = []
    for w in surrogates.sampled_trees():
        target, update = (w.gradient(objective) for objective in (surrogates.of_tokens, surrogates.minirl))
        yield same(w.gradient(surrogates.without_the_mask), target)
        coefficient = w.ratio * w.advantage[:, None]
        yield same(update, target - w.E(w.tokens((1 - w.open) * coefficient)))
        shares.append(relative(update, target))
        # all policies near each other, the older one between the sampler and the target: nothing is clipped
        near = w.towards(NEAR / 2).replace(ref_logits=w.towards(NEAR / 4).problem.logits)
        yield same(near.gradient(surrogates.minirl), near.gradient(surrogates.of_tokens))
    yield numbers(least=min(shares), most=max(shares))


@claim("QW-4.2-kl", over=surrogates.sampled_trees)
def kl_from_inference_to_training(w: surrogates.Engines) -> Iterator[Found]:
    """Added up over the tokens it is the KL of whole answers, from the sampler to the older policy."""
    log_ratio = (w.problem.token_logp(w.problem.sampled_from) - w.t.ref_logp).sum(-1)
    sampler = w.replace(logits=w.problem.sampled_from, behavior_logits=None)
    yield same(w.E(log_ratio), sampler.kl)
    yield differs(w.E(log_ratio), sampler.forward)


def _entropy_gap(w: surrogates.Engines) -> float:
    """Summed next-token entropies along answers of the sampler minus the entropy of the policy's answers."""
    logp = w.problem.logits.log_softmax(-1)
    along = -(logp.exp() * logp).sum(-1)[w.problem.rows] * w.mask
    return float(w.E(along.sum(-1))) - sums.exact(lambda p, q: -(p.exp() * p).sum(), w.problem)[0]


@claim("QW-4.2-entropy")
def entropy_along_sampled_prefixes() -> Iterator[Found]:
    """Equal to the policy's own where it samples; elsewhere the error is of first order in the distance."""
    for w in surrogates.sampled_trees():
        yield same(_entropy_gap(w.towards(0.0)), 0.0)
        power = surrogates.exponent(lambda h, w=w: abs(_entropy_gap(w.towards(h))))  # type: ignore[misc]
        yield same(power, 1, by=surrogates.not_of_order)
    yield numbers(
        share=NEAR, most=max(abs(_entropy_gap(w.towards(NEAR))) for w in surrogates.sampled_trees())
    )


@claim("QW-4.2-batches")
def sizes_of_batches() -> Iterator[Found]:
    """Prompts times answers are the mini-batch, and global over mini-batch is N."""
    main, small = 64 * 16, 128 * 16
    yield same(main, 1024)
    yield same(small, 2048)
    for whole, part, n in ((2048, main, 2), (4096, main, 4), (8192, main, 8), (4096, small, 2)):
        yield same(whole / part, n)
    yield numbers(main=main)


@claim("QW-2.4-later")
def later_updates_are_further_from_the_rollout() -> Iterator[Found]:
    """Eight updates with the answers of one rollout: its KL to the target grows with every update."""
    drift = []
    for w in surrogates.sampled_trees():
        w, path = w.one_engine(), [0.0]
        for _ in range(UPDATES):
            w = w.replace(logits=w.problem.logits + 0.2 * w.gradient(surrogates.of_tokens))
            path.append(w.forward)
        yield rises(path, by=1e-9)
        yield same(path[-1], w.E(-w.l))
        drift.append(path[-1] / path[1])
    yield numbers(updates=UPDATES, least=min(drift), most=max(drift))


BOTH = (surrogates.of_tokens, surrogates.without_weights)


@claim("QW-4.3-reduces", over=surrogates.sampled_trees)
def on_policy_the_weight_is_that_between_engines(w: surrogates.Engines) -> Iterator[Found]:
    """With the parameters of the rollout no token is clipped, and the weight is constant."""
    here = w.at_the_rollout()
    yield same(here.open, 1.0)
    yield same(here.at(surrogates.minirl), here.at(surrogates.on_policy))
    yield same(here.gradient(surrogates.minirl), here.gradient(surrogates.on_policy))
    yield differs(here.gradient(surrogates.on_policy), here.gradient(surrogates.without_correction))
    alike = here.replace(behavior_logits=here.problem.ref_logits)
    yield same(alike.gradient(surrogates.without_correction), alike.d_reward)
    yield same(alike.gradient(surrogates.on_policy), alike.d_reward)


@claim("QW-4.3-lennorm")
def length_normalization_has_another_gradient() -> Iterator[Found]:
    """With answers of many lengths it is the gradient of E[A / |y|], also where all policies are equal."""
    proportional, angles = [], []
    for w in surrogates.sampled_trees():
        here = w.one_engine()
        update = here.gradient(surrogates.divided_by_length)
        away = turned(update, here.d_reward)
        proportional.append(away < 1e-9)
        if not w.even:
            shorter = here.replace(rewards=here.advantage / here.lengths)
            yield same(update, shorter.d_reward, "inside")
            yield less(0.0, away, "inside")
            yield same(w.order_of_gradient(surrogates.per_length), 0, "inside", by=surrogates.not_of_order)
            yield same(w.order_of_value(surrogates.per_length), 1, "inside", by=surrogates.not_of_order)
            angles.append(away)
    yield printed(off_policy.share_of_cases(proportional))
    yield numbers(proportional=sum(proportional), trees=len(angles), least=min(angles), most=max(angles))


def _with_and_without(w: surrogates.Engines) -> list[float]:
    """Relative error of the gradient near the sampler, with the weights of tokens and with none."""
    return [w.with_advantages.towards(NEAR).relative_gap(surrogate) for surrogate in BOTH]


def _is_first_order(surrogate: surrogates.Surrogate, w: surrogates.Engines) -> bool:
    """Whether value and gradient are off by orders two and one, and the gradient is exact at the sampler."""
    value = surrogates.not_of_order(w.with_advantages.order_of_value(surrogate), 2)
    gradient = surrogates.not_of_order(w.with_advantages.order_of_gradient(surrogate), 1)
    return w.one_engine().with_advantages.gap(surrogate) < 1e-12 and value + gradient == 0


@claim("QW-4.3-wo-is")
def an_objective_without_weights_is_of_first_order_as_well() -> Iterator[Found]:
    """log(1 + delta) is delta to first order: both have remainders of order two, both gradients of one."""
    alike = []
    for w in surrogates.sampled_trees():
        alike.append(all(_is_first_order(surrogate, w) for surrogate in BOTH))
        w, start = w.with_advantages, w.one_engine().with_advantages
        yield same(start.gradient(surrogates.without_weights), start.d_reward, "corrected")
        with_weights, without = (w.gradient(surrogate) for surrogate in BOTH)
        lost = w.E(w.tokens((w.ratio - 1) * w.R[:, None]))
        yield same(with_weights - without, lost, "corrected")
        for update in (with_weights, without):
            yield less(0.0, turned(update, w.d_reward), "corrected")
    yield printed(off_policy.share_of_cases(alike))
    errors, bare = zip(*map(_with_and_without, surrogates.sampled_trees()), strict=True)
    yield numbers(trees=len(alike), share=NEAR, least=min(errors), most=max(errors))
    yield numbers(least_without=min(bare), most_without=max(bare))
    others = map(_with_and_without, surrogates.sampled_by_the_reference()[::2])
    shares = [error / without for error, without in others]
    yield numbers(
        others=len(shares), least_share=min(shares), most_share=max(shares), median=median_high(shares)
    )
