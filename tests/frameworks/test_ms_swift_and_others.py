"""What is peculiar to ms-swift, RLinf, EasyR1, XTuner and axolotl: exchanged arguments, clamps, defaults."""

import ast
import math
from types import SimpleNamespace

import pytest
import torch

from kl_companion import Rollout, prefix_tree
from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks import axolotl, ms_swift, rlinf, setting
from kl_companion.frameworks.installed import find, known, load
from kl_companion.frameworks.verdicts import dead_zones

# -- RLinf ---------------------------------------------------------------------------------------------------


def _calls(file):
    """The names that a file hands to `kl_penalty`, by call."""
    tree = ast.parse((find(*known("rlinf")).root / file).read_text())
    found = (n for n in ast.walk(tree) if isinstance(n, ast.Call))
    return [[ast.unparse(a) for a in n.args] for n in found if getattr(n.func, "id", "") == "kl_penalty"]


def test_one_back_end_of_rlinf_exchanges_the_arguments():
    """What the adapter says of the calls, in the installed files; the function's own order beside them."""
    kind = "self.kl_penalty_type"
    right = ["curr_logprobs", "ref_logprobs", kind]
    assert _calls(rlinf.CALLS["fsdp"].file) == [["ref_logprobs", "logprobs", kind]]
    assert _calls(rlinf.CALLS["megatron"].file) == [right]
    assert _calls("rlinf/workers/actor/ma_megatron_actor_worker.py") == [right]
    assert _calls("rlinf/algorithms/advantages.py") == [["logprob", "ref_logprob"]]
    code = rlinf.functions().kl_penalty.__code__
    assert code.co_varnames[: code.co_argcount] == ("logprob", "ref_logprob", "kl_penalty")


def test_the_exchange_pulls_nothing_back_from_where_the_reference_is_unlikely():
    """The clamp of 10 is at x - 1 - log x = 10 for x = pi/ref there, and for x = ref/pi on the other side."""
    edge = math.log(13.610977)  # 13.610977 - 1 - log 13.610977 = 10
    (low, high) = dead_zones(setting("rlinf.fsdp_loss_low_var_kl"))
    assert (low[0], high[1]) == (-math.inf, math.inf)
    assert (low[1], high[0]) == pytest.approx((-edge, 11.0), abs=1e-4)
    (low, high) = dead_zones(setting("rlinf.megatron_loss_low_var_kl"))
    assert (low[1], high[0]) == pytest.approx((-11.0, edge), abs=1e-4)


# -- ms-swift ------------------------------------------------------------------------------------------------


def test_the_penalty_in_the_reward_is_subtracted_before_rewards_are_divided():
    """Rewards less the penalty are divided: where they agree no beta is left."""
    rewards, penalty = torch.ones(4, dtype=torch.float64), torch.tensor([0.1, 0.5, 0.2, 0.4]).double()
    one = torch.ones(1, dtype=torch.float64)
    found = [
        ms_swift.functions().compute_advantages(
            rewards.unsqueeze(1), one, 4, "grpo", "group", True, beta, penalty
        )[0]
        for beta in (1e6, 1e9)
    ]
    apart = penalty - 0.3
    assert torch.allclose(found[0], -apart / penalty.std(), rtol=1e-6)
    assert torch.allclose(*found, rtol=1e-6)


# -- axolotl -------------------------------------------------------------------------------------------------


def test_axolotls_distillation_multiplies_its_value_by_the_squared_temperature_and_not_its_gradient():
    """`forward` of the installed function: what it saves for backward beside the derivative of its value."""
    method = "LigerFusedLinearKLTopKLogprobFunction"
    parts = [f"{method}.{n}" for n in ("forward", "_compute_loss_kl_topk")]
    found = load(find(*known("axolotl")), axolotl._KD.file, *parts)
    kind = SimpleNamespace(
        _compute_loss_kl_topk=found["_compute_loss_kl_topk"],
        distillation_loss_fn=axolotl.functions().distillation_loss_fn,
    )
    kept = {}
    context = SimpleNamespace(save_for_backward=lambda *x: kept.update(gradient=x[0]))
    hidden = torch.tensor([[[1.0, 0.0, -1.0]]])
    logq = torch.tensor([[[0.2, 0.3, 0.5]]]).log()
    t = 2.0
    value = found["forward"](
        kind,
        context,
        hidden,
        torch.eye(3),
        torch.arange(3).view(1, 1, 3),
        logq,
        torch.ones(1, 1, 3),
        torch.zeros(1, 1, dtype=torch.long),
        weight_hard_loss=0.0,
        weight_soft_loss=1.0,
        temperature=t,
    )
    p = (hidden / t).softmax(-1)
    forward_kl = (logq.exp() * (logq - p.log())).sum()
    assert value.item() == pytest.approx(t**2 * forward_kl.item(), rel=1e-5)
    assert torch.allclose(kept["gradient"], (p - logq.exp()) / t, atol=1e-6)  # of the KL itself, not 4 times


def test_what_a_stored_teacher_head_asks_for_is_the_head_and_nothing_else():
    """The optimum of the default is not the reference: the gradient is not 0 where both policies agree."""
    problem = prefix_tree(3, 2, seed=4)
    r = problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 4, 8]))
    same = Rollout.from_logits(r.tokens, r.completion_mask, r.logits, r.logits.detach())
    for name, zero in (("kd_forward_top_2", False), ("kd_forward_top_2_normalized", True)):
        loss = exactly(setting(f"axolotl.{name}").loss)(same)
        (gradient,) = torch.autograd.grad(loss, r.logits)
        assert (gradient.norm() < 1e-9) == zero
