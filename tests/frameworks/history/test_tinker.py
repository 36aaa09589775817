"""tinker-cookbook's releases: the newest beside the adapter's formula, an older client as a planted one."""

import sys

import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.auditing.exact import exactly
from kl_companion.frameworks import setting
from kl_companion.frameworks.history.subjects import subject
from kl_companion.frameworks.installed import Distribution, Unavailable, find

NEWEST = find("tinker-cookbook", ("0.6.1",))
LOOPS = ("tinker.rl", "tinker.distillation")

_OLDER = """
import asyncio
import tinker

async def incorporate_kl_penalty(data_D, base_sampling_client, kl_penalty_coef, kl_discount_factor):
    ends = [d.model_input.append_int(int(d.loss_fn_inputs["target_tokens"].data[-1])) for d in data_D]
    found = await asyncio.gather(*[base_sampling_client.compute_logprobs_async(x) for x in ends])
    if kl_discount_factor > 0:
        import a_module_that_nobody_has
    gaps = []
    for d, base in zip(data_D, found):
        gap = d.loss_fn_inputs["logprobs"].to_torch() - torch.tensor(base[1:])
        gaps.append(gap * d.loss_fn_inputs["mask"].to_torch())
    middle = sum(g.sum() for g in gaps)
    for d, gap in zip(data_D, gaps):
        d.loss_fn_inputs["advantages"] = tinker.TensorData.from_torch(
            d.loss_fn_inputs["advantages"].to_torch() - kl_penalty_coef * gap + middle
        )

import torch
"""

_CONFIG = """
class Config:
    kl_penalty_coef: float = 0.5
    kl_discount_factor: float = 0.0
"""


def _ship(name, release, **options):
    return subject(name)[1].ship(release, options)


def _batch():
    problem = prefix_tree(3, 3, seed=0, eos=True, off_policy=True)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9, 5]))


def _planted(root):
    (root / "tinker_cookbook" / "rl").mkdir(parents=True)
    for name, text in {"metrics": _OLDER, "train": _CONFIG}.items():
        (root / "tinker_cookbook" / "rl" / f"{name}.py").write_text(text, encoding="utf-8")
    return Distribution("tinker-cookbook", "0.0.7", root)


@pytest.mark.parametrize("factor", [0, 1])
@pytest.mark.parametrize("name", LOOPS)
def test_the_newest_release_has_the_gradient_of_the_adapter(name, factor):
    a, b = _batch(), _batch()
    x = exactly(_ship(name, NEWEST, kl_discount_factor=float(factor)).loss)(a)
    # neither subtracts a mean here: the stand-in's batch has none
    y = setting(f"tinker.distillation_kl_discount_{factor}").exact(b)
    assert x.item() == pytest.approx(y.item(), rel=1e-12)
    (dx,), (dy,) = torch.autograd.grad(x, a.logits), torch.autograd.grad(y, b.logits)
    assert (dx - dy).abs().max() < 1e-12


@pytest.mark.parametrize(("name", "beta"), [("tinker.rl", 0.0), ("tinker.distillation", 1.0)])
def test_defaults_are_those_of_the_two_loops(name, beta):
    shipped = _ship(name, NEWEST)
    assert shipped.beta == beta
    start = f"Config(kl_penalty_coef={beta}, kl_discount_factor=0.0, loss_fn='importance_sampling'"
    assert shipped.option.startswith(start)
    with pytest.raises(ValueError, match=r"Config of tinker-cookbook 0\.6\.1"):
        _ship(name, NEWEST, kl_loss_coef=1.0)


def test_an_older_client_is_asked_too_and_the_mean_over_the_batch_is_left_out(tmp_path):
    shipped, r = _ship("tinker.rl", _planted(tmp_path)), _batch()
    assert (shipped.beta, shipped.option) == (0.5, "Config(kl_penalty_coef=0.5, kl_discount_factor=0.0)")
    each = (r.sampled_from - r.ref_logp) * (r.logp - r.sampled_from).exp() * r.completion_mask
    assert shipped.loss(r).item() == pytest.approx(each.sum().item() / 4, rel=1e-12)


def test_what_is_missing_is_named(tmp_path):
    release = _planted(tmp_path)
    with pytest.raises(Unavailable, match="needs a_module_that_nobody_has"):
        _ship("tinker.rl", release, kl_discount_factor=1.0).loss(_batch())
    with pytest.raises(Unavailable, match=r"0\.0\.7 has no tinker_cookbook/distillation") as caught:
        _ship("tinker.distillation", release)
    assert str(tmp_path) not in str(caught.value)
    assert "a_module_that_nobody_has" not in sys.modules
