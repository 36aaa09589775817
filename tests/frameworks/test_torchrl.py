"""torchrl: what the mean of its KL term counts, its defaults, and settings that are those of others."""

import pytest
import torch
import torch.nn.functional as F

from kl_companion import Rollout, prefix_tree
from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks import setting, torchrl


def batch():
    """Answers of one, two and three tokens, off-policy."""
    problem = prefix_tree(3, 3, seed=0, eos=True, off_policy=True)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))


def longer(r, more):
    """The same answers with so many positions of padding behind them."""

    def pad(x):
        return F.pad(x, (0, more))

    logp, mask = pad(r.logp), pad(r.completion_mask)
    return Rollout(pad(r.tokens), mask, logp, pad(r.ref_logp), behavior_logp=pad(r.sampled_from))


def test_padding_makes_the_kl_of_grpo_smaller_and_not_its_policy_loss():
    r = batch()
    width = r.tokens.shape[1]
    advantages = torch.tensor([[1.0], [-0.5], [2.0]], dtype=torch.float64).expand(3, width)
    for more in (1, 3, 9):
        padded = longer(r, more)
        kl, wide = (torchrl.grpo(x, part="loss_kl_to_ref") for x in (r, padded))
        assert wide.item() == pytest.approx(kl.item() * width / (width + more), rel=1e-12)
        policy = torchrl.grpo(r, part="loss_objective", advantages=advantages)
        again = torchrl.grpo(padded, part="loss_objective", advantages=F.pad(advantages, (0, more)))
        assert again.item() == pytest.approx(policy.item(), rel=1e-12)


def test_the_denominator_is_the_number_of_positions():
    r = batch()
    inside = r.completion_mask.bool()
    d = (r.ref_logp - r.logp)[inside]
    total = (d.exp() - d - 1).sum().item()
    assert inside.sum() < inside.numel()
    assert torchrl.grpo(r, part="loss_kl_to_ref").item() == pytest.approx(total / inside.numel(), rel=1e-12)


def test_aggregation_is_that_of_the_policy_loss_alone():
    advantages = torch.tensor([[1.0], [-0.5], [2.0]], dtype=torch.float64).expand(3, 3)
    kl, policy = set(), set()
    for how in ("token_mean", "prompt_mean"):
        kl.add(torchrl.grpo(batch(), part="loss_kl_to_ref", mode=how).item())
        loss = torchrl.grpo(batch(), part="loss_objective", mode=how, advantages=advantages)
        policy.add(loss.item())
    kl.add(torchrl.grpo(batch(), part="loss_kl_to_ref", mode="none").item())
    assert (len(kl), len(policy)) == (1, 2)


def test_the_kl_to_the_sampler_never_reads_the_reference():
    r = batch()
    loss = exactly(setting("torchrl.kl_to_inference").loss)
    other = Rollout(r.tokens, r.completion_mask, r.logp, r.ref_logp * 2, behavior_logp=r.behavior_logp)
    assert loss(r).item() == loss(other).item() != 0


def test_what_divides_a_group_is_at_least_a_millionth():
    normalize = setting("torchrl.reward").algorithms[0].recipe.normalize
    x = torch.tensor([[0.0, 1e-9], [1.0, 3.0]], dtype=torch.float64)
    wanted = (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True).clamp_min(1e-6)
    torch.testing.assert_close(normalize(x), wanted, rtol=1e-12, atol=1e-15)
