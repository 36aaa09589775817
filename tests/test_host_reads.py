"""One read of a GPU for a loss, a batch, a call of the kernels; and the parts that this is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from kl_companion import aggregate, kl_loss, kl_reward, kl_terms, policy_gradient_loss
from kl_companion.host_reads import any_of, any_wrong, collecting, on_host, reads_once, to_host
from kl_companion.kernels import fused_f_divergence, fused_kl, fused_logp, linear_kl, linear_logp
from kl_companion.kl_term import KLTerm
from kl_companion.policy_losses import (
    PARTITIONS,
    apa_loss,
    f_policy_loss,
    log_partition,
    ppo_mask,
    reinforce_loss,
    rwr_loss,
    target_loss,
)
from kl_companion.rollout import Rollout, center, credit, importance_ratio
from kl_companion.token_terms import token_costs, token_terms
from tests.support.emulated_gpu import EmulatedGPU

NAN = float("nan")
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.bool)


# -- the parts -----------------------------------------------------------------------------------------------


def test_many_tensors_come_by_one_read_bit_by_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    tensors = [(4 * torch.randn(2, 3, generator=draw)).to(dtype) for dtype in DTYPES]
    tensors += [torch.tensor([NAN, torch.inf, -0.0, 5e-324], dtype=torch.float64), torch.tensor(2**62 + 1)]
    tensors += [torch.zeros(0, 2), torch.randn(3, 2).T]
    with EmulatedGPU() as gpu:
        away = [gpu.put(x) for x in tensors]
        with gpu.counted() as reads:
            here = to_host([away[0], tensors[1], *away[1:]])
    assert len(reads) == 1
    assert here.pop(1) is not None
    for copy, x in zip(here, tensors, strict=True):
        assert (copy.dtype, copy.shape, copy.device.type) == (x.dtype, x.shape, "cpu")
        torch.testing.assert_close(copy, x, rtol=0, atol=0, equal_nan=True)
    assert here[7][2].signbit()


def test_a_structure_comes_by_one_read() -> None:
    class Pair(NamedTuple):
        x: torch.Tensor
        rest: Any = None

    x, y = torch.arange(3), torch.tensor(0.5)
    with EmulatedGPU() as gpu:
        structure = Pair(gpu.put(x), [None, (gpu.put(y), 3, "text"), slice(1, 2), x])
        with gpu.counted() as reads:
            here = on_host(structure)
    assert len(reads) == 1
    assert isinstance(here, Pair)
    assert torch.equal(here.x, x)
    nothing, (number, *others), part, same = here.rest
    assert (nothing, number.device.type, number, others) == (None, "cpu", y, [3, "text"])
    assert (part, same is not None) == (slice(1, 2), True)


def test_flags_are_read_at_once_or_collected() -> None:
    wrong, right = torch.tensor([False, True]), torch.tensor(False)
    assert any_wrong(wrong)
    assert not any_wrong(right)
    with collecting() as flags:
        assert not any_wrong(wrong)
        assert not any_wrong(right)
        with collecting() as inner:
            assert not any_wrong(wrong)
    assert any_wrong(wrong)
    assert [bool(flag) for flag in flags] == [True, False]
    assert len(inner) == 1
    assert any_of(flags)
    assert not any_of(flags[1:])
    assert not any_of([])


def numbers() -> dict[str, torch.Tensor]:
    """Logits of three policies in float64, a mask with a hole, and tokens, of two sequences."""
    draw = torch.Generator().manual_seed(1)
    logits, ref_logits, mu = (torch.randn(2, 4, 5, generator=draw, dtype=torch.float64) for _ in range(3))
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 0]])
    tokens = torch.randint(5, (2, 4), generator=draw)
    policies = {"logits": logits, "ref_logits": ref_logits, "behavior_logits": mu}
    return {**policies, "mask": mask, "tokens": tokens}


def rollout_of(batch: dict[str, torch.Tensor], **options: Any) -> Rollout:
    return Rollout.from_logits(
        batch["tokens"],
        batch["mask"],
        batch["logits"].clone().requires_grad_(),
        batch["ref_logits"],
        behavior_logits=batch["behavior_logits"],
        **options,
    )


def test_a_rollout_and_its_losses_collect_what_is_wrong() -> None:
    batch = numbers()
    batch["ref_logits"][0, 1, 2] = NAN
    with collecting() as flags:
        rollout = rollout_of(batch)
        made = len(flags)
        kl_loss(rollout, "exact_kl")
    assert made == 1
    assert [bool(flag) for flag in flags] == [True, True]
    with pytest.raises(ValueError, match=r"ref_logits is NaN at \[0, 1, 2\]"):
        rollout_of(batch)


def test_padding_is_not_trusted_while_flags_are_collected() -> None:
    batch = numbers()
    batch["logits"][0, 0] = NAN
    with collecting() as flags:
        rollout = rollout_of(batch)
        kl_loss(rollout, "k3").backward()
    assert not any_of(flags)
    assert rollout.logits is not None
    assert rollout.logits.grad is not None
    assert rollout.logits.grad.isfinite().all()


# -- one read ------------------------------------------------------------------------------------------------

ESTIMATORS = (
    *("k1", "k2", "k3", "k4", "k5", "k_lambda(0.5)", "kf_plus_plus(pearson)", "exact_kl", "exact_forward_kl"),
    *("f_divergence(jensen_shannon)", "top_k_reverse_kl(4)", "top_k_forward_kl(2)", "truncated_kl(2)"),
)
WAYS: dict[str, Callable[[Rollout], torch.Tensor]] = {
    **{f"loss {name}": lambda r, name=name: kl_loss(r, name) for name in ESTIMATORS},
    **{f"token terms {name}": lambda r, name=name: token_terms(KLTerm(name), r).sum() for name in ESTIMATORS},
    "attached ratio": lambda r: kl_loss(r, "k3", importance="prefix", ratio="attached", clip=(0.5, 2.0)),
    "sequence": lambda r: kl_loss(r, "k2", level="sequence"),
    "score": lambda r: kl_loss(r, "k1", credit=0.9, beta=torch.tensor(0.1, device=r.logp.device)),
    "token mean": lambda r: kl_loss(r, "k1", how="token_mean"),
    "terms": lambda r: kl_terms(r, "k3").sum(),
    "reward": lambda r: kl_reward(r, "k1"),
    "exact reward": lambda r: kl_reward(r, "exact_kl", level="token"),
    "costs": lambda r: token_costs(KLTerm("top_k_reverse_kl(2)"), r),
    "policy gradient": lambda r: policy_gradient_loss(r, r.logp[:, 0]),
    "ratio": lambda r: importance_ratio(r, scope="sequence"),
    "aggregate": lambda r: aggregate(r.logp, r.completion_mask, "sequence_mean"),
    "credit": lambda r: credit(r.logp, r.completion_mask, discount=0.5),
    "standardized": lambda r: center(r.logp[:, 0], torch.zeros_like(r.tokens[:, 0]), "standardized"),
    "leave one out": lambda r: center(r.logp[:, 0], torch.zeros_like(r.tokens[:, 0])),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("off_policy", [False, True])
def test_a_loss_and_its_gradient_read_once(way: str, off_policy: bool) -> None:
    batch = numbers() if off_policy else {**numbers(), "behavior_logits": None}
    plain = rollout_of(batch)
    expected = WAYS[way](plain)
    with EmulatedGPU() as gpu:
        rollout = rollout_of(gpu.put(batch))
        with gpu.counted() as reads:
            result = WAYS[way](rollout)
            if result.requires_grad:
                result.sum().backward()
        assert len(reads) <= 1, reads
        torch.testing.assert_close(result.detach().cpu(), expected.detach())
        if expected.requires_grad:
            expected.sum().backward()
            assert rollout.logits.grad is not None
            torch.testing.assert_close(rollout.logits.grad.cpu(), plain.logits.grad)


def test_a_rollout_reads_once_or_never() -> None:
    with EmulatedGPU() as gpu:
        batch = gpu.put(numbers())
        assert len(gpu.reads_of(lambda: rollout_of(batch))) == 1
        assert gpu.reads_of(lambda: rollout_of(batch, validate=False)) == []
        r = rollout_of(batch)
        rewards = r.logp[:, 0].detach()

        def make(**options: Any) -> Rollout:
            more = {"rewards": rewards, "prompt_index": r.tokens[:, 0], **options}
            return Rollout(r.tokens, r.completion_mask, r.logp, r.ref_logp, r.behavior_logp, **more)

        assert len(gpu.reads_of(make)) == 1
        assert gpu.reads_of(lambda: make(validate=False)) == []
        assert gpu.reads_of(lambda: (r[0], r[:1], r[[1, 0]], r[gpu.put(torch.tensor([1]))], len(r))) == []
        assert len(gpu.reads_of(lambda: r[gpu.put(torch.tensor([True, False]))])) == 1
        assert torch.equal(r[gpu.put(torch.tensor([False, True]))].tokens.cpu(), r.tokens[1:].cpu())


def test_an_error_on_a_gpu_names_the_place() -> None:
    batch = numbers()
    batch["logits"][1, 2, 3] = NAN
    with EmulatedGPU() as gpu, pytest.raises(ValueError, match=r"logits is NaN at \[1, 2, 3\]"):
        rollout_of(gpu.put(batch))


POLICY_LOSSES: dict[str, Callable[[Rollout], torch.Tensor]] = {
    **{f"log_partition {name}": lambda r, name=name: log_partition(r, name) for name in PARTITIONS},
    "target_loss": lambda r: target_loss(r, "k3", importance="sequence", mask=(0.2, 0.3)),
    "apa_loss": apa_loss,
    "rwr_loss": rwr_loss,
    "reinforce_loss": lambda r: reinforce_loss(r, importance="sequence", mask=(0.2, 0.3)),
    "f_policy_loss": lambda r: f_policy_loss(r, "jensen_shannon", "target_policy"),
    "ppo_mask": lambda r: ppo_mask(r.ref_logp, r.logp.detach().exp(), 0.2, 0.2, validate=True),
}


def rewarded(rollout: Rollout, *rewards: float) -> Rollout:
    return rollout.unchecked(rewards=torch.tensor(rewards, dtype=torch.float64).to(rollout.logp.device))


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_policy_loss_reads_once(name: str) -> None:
    expected = POLICY_LOSSES[name](rewarded(rollout_of(numbers()), 1.0, 0.0))
    with EmulatedGPU() as gpu:
        rollout = rewarded(rollout_of(gpu.put(numbers())), 1.0, 0.0)
        with gpu.counted() as reads:
            result = POLICY_LOSSES[name](rollout)
        assert len(reads) <= 1, reads
        torch.testing.assert_close(result.detach().cpu(), expected.detach())


def test_the_first_wrong_value_of_a_policy_loss_is_named() -> None:
    rollout = rewarded(rollout_of(numbers()), 1.0, NAN)
    with pytest.raises(ValueError, match=r"rewards are \[1.0, nan\], expected finite numbers"):
        target_loss(rollout)
    with collecting() as flags:
        target_loss(rollout)
    assert [bool(flag) for flag in flags] == [True]


def test_a_value_that_is_right_the_second_time_is_an_error() -> None:
    answers = iter([True, False])

    @reads_once
    def fickle() -> float:
        any_wrong(torch.tensor(next(answers)))
        return 0.5

    with pytest.raises(RuntimeError, match="right when it was computed again"):
        fickle()
    answers = iter([False])
    assert fickle() == 0.5


KERNELS: dict[str, Callable[..., torch.Tensor]] = {
    "fused_kl": lambda x, y, m, t: fused_kl(x, y, mask=m),
    "fused_f_divergence": lambda x, y, m, t: fused_f_divergence("pearson", x, y),
    "fused_logp": lambda x, y, m, t: fused_logp(x, t),
    "linear_kl": lambda x, y, m, t: linear_kl(x, y[0], ref_hidden=y, ref_weight=y[1]),
    "linear_logp": lambda x, y, m, t: linear_logp(x, y[0], t.clamp(max=3)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_read_nothing(name: str) -> None:
    batch = numbers()
    with EmulatedGPU() as gpu:
        x, y, mask, tokens = (gpu.put(batch[key]) for key in ("logits", "ref_logits", "mask", "tokens"))
        x = x.float().requires_grad_()
        assert gpu.reads_of(lambda: KERNELS[name](x, y.float(), mask.bool(), tokens).sum().backward()) == []
        assert x.grad is not None


def test_a_mask_of_hidden_states_is_read_once() -> None:
    """Only the rows inside are multiplied by the weights of the output layer, so their number is needed."""
    batch = numbers()
    with EmulatedGPU() as gpu:
        x, y, mask = (gpu.put(batch[key]) for key in ("logits", "ref_logits", "mask"))
        x.requires_grad_()
        options = {"ref_hidden": y, "ref_weight": y[1], "mask": mask.bool()}
        assert len(gpu.reads_of(lambda: linear_kl(x, y[0], **options).sum().backward())) == 1
