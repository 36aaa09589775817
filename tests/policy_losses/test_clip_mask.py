"""PPO's clip as a mask: at its edges, and its gradient."""

import math
from functools import partial

import pytest
import torch

from kl_companion.policy_losses import ppo_mask
from kl_companion.policy_losses.ratio_losses import POLICY_LOSSES, policy_loss
from tests.support.transforms import SETTINGS, compiled_by_default, host_reads


def test_ppo_mask_by_cases_and_at_its_edges():
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    ratio = torch.tensor([1.25, 1.26, 0.1, 0.5, 0.49, 9.0, 9.0, 0.1], dtype=torch.float64)
    wanted = [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert ppo_mask(advantages, ratio, 0.5, 0.25).tolist() == wanted
    assert not ppo_mask(advantages, ratio.requires_grad_(), 0.5, 0.25).requires_grad


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_ppo_mask_times_the_ratio_has_the_gradient_of_ppo_clip(sign):
    for log_rho in (-1.0, -0.1, 0.0, 0.1, 1.0):
        x = torch.tensor([log_rho], dtype=torch.float64, requires_grad=True)
        a = torch.tensor([sign], dtype=torch.float64)
        clipped = torch.minimum(a * x.exp(), a * x.exp().clamp(1 - 0.2, 1 + 0.28)).sum()
        (wanted,) = torch.autograd.grad(clipped, x)
        ours = (x.exp().detach() * ppo_mask(a, x.exp(), 0.2, 0.28) * a * x).sum()
        assert torch.autograd.grad(ours, x)[0].item() == pytest.approx(wanted.item(), abs=1e-15)


def of_tokens(length):
    """Log-ratios, advantages and a mask, [3, length]."""
    generator = torch.Generator().manual_seed(length)
    log_ratio, advantages = torch.randn(2, 3, length, generator=generator, dtype=torch.float32)
    return log_ratio, advantages, torch.ones(3, length, dtype=torch.float32)


LOSSES = {name: partial(policy_loss, name) for name in POLICY_LOSSES}
FORMULAS = {
    **LOSSES,
    "ppo with a dual clip": partial(policy_loss, "ppo", dual=2.0),
    "ppo_mask": lambda log_ratio, advantages, mask: ppo_mask(advantages, log_ratio.exp(), 0.2, 0.3),
}


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name != "vmap"])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_in_every_setting(name, setting):
    SETTINGS[setting](FORMULAS[name], of_tokens)
    assert host_reads(FORMULAS[name], *of_tokens(3)) == []


@pytest.mark.parametrize("name", ["ppo with a dual clip", "ppo_mask"])
def test_a_formula_in_graphs_by_default(name):
    compiled_by_default(FORMULAS[name], of_tokens)


def test_ppo_mask_under_vmap():
    SETTINGS["vmap"](FORMULAS["ppo_mask"], of_tokens)


def test_nan_is_refused_or_returned():
    for place in (0, 1):
        pair = [torch.tensor([1.0, -1.0, 1.0]), torch.tensor([1.0, 2.0, 9.0])]
        pair[place][1] = math.nan
        mask = ppo_mask(*pair, 0.2, 0.2)
        assert mask[[0, 2]].tolist() == [1.0, 0.0]
        assert mask[1].isnan()
        with pytest.raises(ValueError, match=r"is NaN at \[1\]"):
            ppo_mask(*pair, 0.2, 0.2, validate=True)
