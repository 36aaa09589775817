"""Policy-gradient losses in parts: any f, log Z of a group, the mask, decompositions, and errors."""

import math
from functools import partial

import pytest
import torch

from kl_companion.divergences import DIVERGENCES
from kl_companion.policy_losses import (
    PARTITIONS,
    apa_loss,
    decompose,
    f_policy_loss,
    log_partition,
    ppo_mask,
    reinforce_loss,
    rwr_loss,
    target_loss,
)
from kl_companion.rollout import Rollout
from tests.oracles import policy_losses as oracle
from tests.oracles.worlds import GENERATORS
from tests.support.policy_groups import (
    BETA,
    CLOSE,
    OFF_POLICY,
    WORLDS,
    by_loops,
    everything,
    expected,
    gradient_of,
    log_z,
    seen,
)

# --- f-divergences ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["policy_target", "target_policy"])
@pytest.mark.parametrize("name", oracle.PHI)
def test_weights_of_f_losses(name, direction):
    weight = (oracle.PHI if direction == "policy_target" else oracle.PSI)[name]
    partition = 0.25  # no estimate: in a group of equal sequences w is 1 up to rounding, where |t - 1| jumps
    for problem in (WORLDS[0], WORLDS[2]):

        def by_hand(group, j):
            return weight(math.exp(group[j]["r"] + group[j]["ref"] - group[j]["pi"] - partition))

        loss = partial(f_policy_loss, divergence=name, direction=direction, partition=partition)
        got = seen(partial(loss, beta=BETA), problem, 2)[0]
        torch.testing.assert_close(got, by_loops(by_hand, problem, 2), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("direction", ["policy_target", "target_policy"])
@pytest.mark.parametrize("name", [n for n in DIVERGENCES if n in GENERATORS])
@pytest.mark.parametrize("form", ["bregman", "generic", "published"])
def test_with_the_exact_partition_the_gradient_is_that_of_the_f_divergence(name, direction, form):
    f = GENERATORS[name]

    def wanted(logp, ref_logp, rewards, target):
        p, q = logp.exp(), target.exp()
        return (q * f(p / q)).sum() if direction == "policy_target" else (p * f(q / p)).sum()

    for problem in (WORLDS[1], WORLDS[3]):
        loss = partial(
            f_policy_loss,
            divergence=name,
            direction=direction,
            beta=BETA,
            partition=log_z(problem),
            form=form,
        )
        exact = gradient_of(wanted, problem)
        torch.testing.assert_close(expected(loss, problem, 1), exact, rtol=1e-10, atol=1e-12)


def test_forms_differ_by_a_constant_weight():
    """t log t has slope 1 and so the weight 1 - log w; exchanged it is -log t with psi = 1 - log w."""
    for direction, name in (("policy_target", "reverse_kl"), ("target_policy", "forward_kl")):
        a, b = (
            seen(partial(f_policy_loss, divergence=name, direction=direction, form=form), WORLDS[0], 2)[0]
            for form in ("bregman", "generic")
        )
        torch.testing.assert_close(b - a, torch.full_like(a, 0.5), **CLOSE)  # 1 over the group of two


def test_f_losses_take_weights_and_masks():
    for option in ({"importance": "sequence"}, {"mask": (0.1, 0.1)}):
        f_loss = partial(f_policy_loss, divergence="reverse_kl", beta=BETA, **option)
        k4 = partial(target_loss, estimator="k4", beta=BETA, **option)
        for problem in OFF_POLICY:
            torch.testing.assert_close(seen(f_loss, problem, 2)[0], seen(k4, problem, 2)[0], **CLOSE)
            assert not torch.allclose(
                seen(f_loss, problem, 2)[0], seen(partial(f_loss, **dict.fromkeys(option)), problem, 2)[0]
            )


# --- log Z, mask, groups ---------------------------------------------------------------------------------


def batch(**changes):
    """Five sequences of two prompts, in no order; NaN outside the mask."""
    nan = float("nan")
    fields = {
        "tokens": torch.zeros(5, 2, dtype=torch.long),
        "completion_mask": torch.tensor([[1, 1], [0, 1], [1, 1], [1, 0], [1, 1]]),
        "logp": torch.tensor(
            [[-1.0, -0.5], [nan, -2.0], [-1.0, -1.0], [-0.3, nan], [-2.0, -0.2]], dtype=torch.float64
        ).requires_grad_(),
        "ref_logp": torch.tensor(
            [[-0.5, -0.5], [nan, -1.0], [-2.0, -1.0], [-0.9, nan], [-1.0, -0.1]], dtype=torch.float64
        ),
        "rewards": torch.tensor([1, 0, 2, 5, 3]),
        "prompt_index": torch.tensor([7, -1, 7, -1, 7]),
    }
    return Rollout(**{**fields, **changes})


@pytest.mark.parametrize("partition", PARTITIONS)
def test_log_partition_of_groups_in_any_order(partition):
    got = log_partition(batch(), partition, beta=2.0)
    log_ratio, r = [-0.5, -1.0, 1.0, 0.6, -1.1], [0.5, 0.0, 1.0, 2.5, 1.5]
    for members in ([0, 2, 4], [1, 3]):
        group = [{"r": r[i], "ref": 0.0, "pi": log_ratio[i], "mu": log_ratio[i]} for i in members]
        for j, i in enumerate(members):
            assert got[i].item() == pytest.approx(oracle.log_z(partition, group, j), rel=1e-13)
    assert got.dtype == torch.float64
    assert not got.requires_grad


def test_log_partition_that_is_given():
    exact = torch.tensor([1.0, 2.0, 1.0, 2.0, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.equal(log_partition(batch(), exact), exact.detach())
    assert not log_partition(batch(), exact).requires_grad
    assert log_partition(batch(), 3).tolist() == [3.0] * 5
    assert log_partition(batch(), torch.tensor(3.0)).tolist() == [3.0] * 5


def test_the_importance_estimate_of_the_partition_is_unbiased_and_above_the_bound():
    for problem in [*WORLDS, *OFF_POLICY]:
        for size in (1, 2):
            rollout, chance, which = everything(problem, size)
            z = log_partition(rollout, "importance", beta=BETA).reshape(which.shape)
            assert (chance * z[:, 0].exp()).sum().item() == pytest.approx(
                log_z(problem).exp().item(), rel=1e-12
            )
            if problem.behavior_logits is None:
                bound = log_partition(rollout, "lower_bound", beta=BETA).reshape(which.shape)
                assert (bound <= z + 1e-12).all()
                assert (chance * bound[:, 0]).sum() < log_z(problem)


def test_beta_is_one_by_default():
    for loss in NAMED:
        assert loss(batch()).item() == loss(batch(), beta=1.0).item() != loss(batch(), beta=2.0).item()
    for how in PARTITIONS:
        assert torch.equal(log_partition(batch(), how), log_partition(batch(), how, beta=1.0))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_gradients_reach_the_policy_alone(partition):
    rewards = torch.tensor([1.0, 0.0, 2.0, 5.0, 3.0], requires_grad=True)
    attached = batch(rewards=rewards, ref_logp=batch().ref_logp.requires_grad_())
    assert not log_partition(attached, partition).requires_grad
    for loss in NAMED:
        options = {} if loss in (rwr_loss, reinforce_loss) else {"partition": partition}
        wanted = loss(attached, **options)
        found = torch.autograd.grad(wanted, [rewards, attached.ref_logp], allow_unused=True)
        assert found == (None, None)


def test_large_rewards_do_not_overflow():
    rollout = batch(rewards=torch.tensor([1000.0, 0.0, 999.0, 2000.0, 1000.0]))
    for loss in (rwr_loss, apa_loss, reinforce_loss, partial(target_loss, estimator="k5")):
        (slope,) = torch.autograd.grad(loss(rollout, beta=0.1), rollout.logp)
        assert slope.isfinite().all()


def test_losses_ignore_what_stands_outside_the_mask_and_see_prompts_apart():
    for loss in (target_loss, apa_loss, reinforce_loss, partial(f_policy_loss, divergence="pearson")):
        rollout = batch()
        whole = loss(rollout)
        (slope,) = torch.autograd.grad(whole, rollout.logp)
        assert slope[[1, 3], [0, 1]].tolist() == [0.0, 0.0]
        parts = []
        for members in ([0, 2, 4], [1, 3]):
            own = {n: getattr(batch(), n)[members] for n in ("tokens", "completion_mask", "logp", "ref_logp")}
            parts.append(loss(Rollout(**own, rewards=batch().rewards[members])) * len(members) / 5)
        assert whole.item() == pytest.approx(sum(parts).item(), rel=1e-12)
    parts = []
    for members in ([0, 2, 4], [1, 3]):
        own = {n: getattr(batch(), n)[members] for n in ("tokens", "completion_mask", "logp", "ref_logp")}
        parts.append(rwr_loss(Rollout(**own, rewards=batch().rewards[members])) / 2)
    assert rwr_loss(batch()).item() == pytest.approx(sum(parts).item(), rel=1e-12)


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


# --- decompose -------------------------------------------------------------------------------------------


def test_decompose_by_hand():
    x, y = torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    found = decompose(3 * x - y / 2 + torch.tensor([[0.0, 4.0], [0.0, 0.0]]), a=x, b=y)
    assert found.coefficients == pytest.approx({"a": 3.0, "b": -0.5}, rel=1e-14)
    assert found.residual == pytest.approx(4 / math.sqrt(9 + 1 + 16), rel=1e-14)
    assert decompose(0 * x, a=x) == ({"a": 0.0}, 0.0)
    assert decompose(1e-200 * y.double(), a=y).coefficients["a"] == pytest.approx(1e-200)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "got no field"),
        ({"a": torch.ones(2)}, r"a has shape \[2\], expected \[3\] like gradient"),
        ({"a": torch.zeros(3)}, "a depend on one another"),
        ({"a": torch.ones(3), "b": 2 * torch.ones(3)}, "a, b depend on one another"),
    ],
)
def test_decompose_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        decompose(torch.ones(3), **fields)


# --- errors ----------------------------------------------------------------------------------------------

NAMED = [target_loss, apa_loss, rwr_loss, reinforce_loss, partial(f_policy_loss, divergence="pearson")]
ALONE = {"prompt_index": torch.tensor([7, -1, 7, 5, 7])}


@pytest.mark.parametrize("loss", NAMED)
@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf")])
def test_beta_is_positive(loss, beta):
    with pytest.raises(ValueError, match=r"beta is .*, expected a positive number"):
        loss(batch(), beta=beta)


@pytest.mark.parametrize("loss", [*NAMED, partial(log_partition, how=0.0)])
def test_rewards_are_wanted_and_finite(loss):
    with pytest.raises(ValueError, match="holds no rewards, expected one per sequence"):
        loss(batch(rewards=None))
    with pytest.raises(ValueError, match=r"rewards are .*inf.*, expected finite"):
        loss(batch(rewards=torch.tensor([1.0, 0.0, float("inf"), 5.0, 3.0])))
    with pytest.raises(ValueError, match="rewards is NaN"):
        loss(batch(rewards=torch.tensor([1.0, 0.0, float("nan"), 5.0, 3.0])))


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: target_loss(batch(), "k44"), "unknown estimator 'k44'.* Did you mean 'k4'"),
        (lambda: target_loss(batch(), "exact_kl"), "reads next-token distributions, expected a sampled"),
        (lambda: reinforce_loss(batch(), penalty="exact_kl"), "reads next-token distributions"),
        (
            lambda: target_loss(batch(), partition="value_other"),
            "unknown partition.*Did you mean 'value_others'",
        ),
        (lambda: target_loss(batch(), importance="token"), "unknown importance 'token'.* Known: sequence"),
        (lambda: target_loss(batch(), mask=0.2), r"mask is 0.2, expected \(eps_low, eps_high\)"),
        (
            lambda: target_loss(batch(), mask=(0.2, -0.1)),
            "eps_high is -0.1, expected a finite number of at least 0",
        ),
        (lambda: target_loss(batch(), mask=(float("nan"), 0.1)), "eps_low is nan"),
        (lambda: target_loss(batch(**ALONE), partition="value_others"), "prompt -1 has one sequence"),
        (lambda: target_loss(batch(**ALONE), partition="importance_others"), "prompt -1 has one sequence"),
        (lambda: reinforce_loss(batch(**ALONE), centering="leave_one_out"), "prompt -1 has one sequence"),
        (lambda: reinforce_loss(batch(**ALONE), centering="standardized"), "prompt -1 has one sequence"),
        (lambda: reinforce_loss(batch(), centering="loo"), "unknown how 'loo'"),
        (lambda: f_policy_loss(batch(), "pearsen"), "unknown divergence 'pearsen'.* Did you mean 'pearson'"),
        (lambda: f_policy_loss(batch(), "pearson", "target"), "unknown direction 'target'"),
        (lambda: f_policy_loss(batch(), "pearson", form="raw"), "unknown form 'raw'"),
        (
            lambda: log_partition(batch(), torch.zeros(4)),
            r"shape \[4\].*expected a finite log Z: a number or \[5\]",
        ),
        (lambda: log_partition(batch(), float("inf")), "values inf, expected a finite log Z"),
        (
            lambda: ppo_mask(torch.zeros(2), torch.ones(3), 0.1, 0.1),
            r"advantages has shape \[2\], expected \[3\]",
        ),
        (lambda: ppo_mask(torch.zeros(2), torch.ones(2).long(), 0.1, 0.1), "ratio has dtype torch.int64"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
