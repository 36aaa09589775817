"""Policy-gradient losses from KL estimators: sample by sample against loops, exact facts by enumeration."""

import math
from functools import partial

import jaxtyping
import pytest
import torch

from kl_companion import bandit, expected_gradient, prefix_tree
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

BETA = 0.7
WORLDS = [
    bandit(3, seed=1),
    bandit(4, seed=2),
    prefix_tree(2, 2, seed=3),
    prefix_tree(2, 3, seed=4, eos=True, scale=2.0),
]
OFF_POLICY = [
    bandit(3, seed=5, off_policy=True),
    prefix_tree(2, 2, seed=6, off_policy=True, scale=2.0),
    prefix_tree(2, 3, seed=7, eos=True, off_policy=True, scale=2.0),
]
FULL = ["k2", "k3_plus_plus", "k4"]
CORRECTIONS = [(None, None), ("sequence", None), ("sequence", (0.2, 0.1)), (None, (0.1, 0.2))]
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
NEAR = {"rtol": 1e-11, "atol": 1e-11}  # a group of equal values: its rounding over an eps of 1e-4


def log_probs(problem):
    """log-probs of every sequence under policy, reference, sampler; [count] each."""
    behavior = problem.logits if problem.behavior_logits is None else problem.behavior_logits
    return [problem.token_logp(x).sum(-1) for x in (problem.logits, problem.ref_logits, behavior)]


def scores(problem):
    """Gradient of log pi of every sequence, [count, rows, vocab], by automatic differentiation."""
    return torch.autograd.functional.jacobian(lambda x: problem.token_logp(x).sum(-1), problem.logits)


def everything(problem, size):
    """Every group of ``size`` sequences as one batch, a group per prompt; their chances; the sequences."""
    chances = log_probs(problem)[2].exp().tolist()
    members, chance = zip(*oracle.groups(chances, size), strict=True)
    which = torch.tensor(members)
    tables = (problem.logits, problem.ref_logits, problem.sampled_from)
    logp, ref_logp, behavior = (problem.token_logp(x)[which.flatten()] for x in tables)
    rollout = Rollout(
        problem.sequences[which.flatten()],
        problem.completion_mask[which.flatten()],
        logp.detach().requires_grad_(),
        ref_logp,
        None if problem.behavior_logits is None else behavior,
        problem.rewards[which.flatten()],
        torch.arange(len(which)).repeat_interleave(size),
    )
    return rollout, torch.tensor(chance, dtype=torch.float64), which


def seen(loss_fn, problem, size):
    """The number that a loss puts in front of each score, [groups, size]; chances; sequences."""
    rollout, chance, which = everything(problem, size)
    (slope,) = torch.autograd.grad(loss_fn(rollout), rollout.logp)
    inside = rollout.completion_mask.bool()
    assert torch.equal(slope.where(inside, slope[:, :1]), slope[:, :1].expand_as(slope))  # a whole sequence
    return slope[:, 0].reshape(which.shape) * len(which), chance, which


def expected(loss_fn, problem, size):
    """E[gradient] of one group, [rows, vocab]."""
    slope, chance, which = seen(loss_fn, problem, size)
    each = (slope[..., None, None] * scores(problem)[which]).sum(1)
    return (chance[:, None, None] * each).sum(0)


def by_loops(weight, problem, size, beta=BETA):
    """[groups, size]: ``weight(group, j)`` of every sequence of every group, over the size of the group."""
    pi, ref, mu = (x.tolist() for x in log_probs(problem))
    world = [
        {"r": r / beta, "pi": a, "ref": b, "mu": c}
        for r, a, b, c in zip(problem.rewards.tolist(), pi, ref, mu, strict=True)
    ]
    rows = []
    for members, _ in oracle.groups([math.exp(m) for m in mu], size):
        group = [world[i] for i in members]
        rows.append([weight(group, j) / size for j in range(size)])
    return torch.tensor(rows, dtype=torch.float64)


def gradient_of(scalar, problem):
    """Exact gradient of a scalar of (log pi, ref, rewards over beta, target) of all sequences."""
    theta = problem.logits.detach().clone().requires_grad_()
    logp, ref_logp = problem.token_logp(theta).sum(-1), log_probs(problem)[1]
    wanted = ref_logp + problem.rewards / BETA
    value = scalar(logp, ref_logp, problem.rewards / BETA, wanted - wanted.logsumexp(0))
    return torch.autograd.grad(value, theta)[0]


def reverse_kl(logp, ref_logp, rewards, target):
    return (logp.exp() * (logp - ref_logp)).sum()


def value(logp, ref_logp, rewards, target):
    return (logp.exp() * rewards).sum()


def to_target(logp, ref_logp, rewards, target):
    return (logp.exp() * (logp - target)).sum()


def from_target(logp, ref_logp, rewards, target):
    return (target.exp() * (target - logp)).sum()


def log_z(problem):
    return (log_probs(problem)[1] + problem.rewards / BETA).logsumexp(0)


def at_target(problem):
    """The same world with the target as its policy: the soft value of every prefix, from the leaves up."""
    wanted = log_probs(problem)[1] + problem.rewards / BETA
    logits = torch.zeros_like(problem.logits)
    for row in range(len(logits)):
        for token in range(logits.shape[1]):
            below = (
                (problem.rows == row) & (problem.sequences == token) & (problem.completion_mask > 0)
            ).any(1)
            logits[row, token] = wanted[below].logsumexp(0)
    return problem._replace(logits=logits)


def stacked(field, problems=WORLDS):
    return torch.cat([field(p).flatten() for p in problems])


def apart(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.fixture
def as_installed(monkeypatch):
    """Without pytest's own checker of types, which would answer before the function does."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


# --- sample by sample ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("estimator", ["k1", *FULL, "k3", "k5"])
def test_every_estimator_with_every_partition_is_the_loop(estimator, partition, size):
    if size == 1 and partition.endswith("_others"):
        return
    for problem in [*WORLDS[: 4 if size < 3 else 3], OFF_POLICY[0]]:
        for importance, mask in CORRECTIONS if problem.behavior_logits is not None else CORRECTIONS[:1]:
            options = {"partition": partition, "importance": importance, "mask": mask}
            got, _, _ = seen(partial(target_loss, estimator=estimator, beta=BETA, **options), problem, size)

            def weight(group, j, importance=importance, mask=mask):
                y = group[j]
                rho = math.exp(y["pi"] - y["mu"]) if importance else 1.0
                free = oracle.passes(y, group, *mask) if mask else 1.0
                return oracle.slope(estimator, y, oracle.log_z(partition, group, j)) * rho * free

            torch.testing.assert_close(got, by_loops(weight, problem, size), **CLOSE)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_named_losses_are_the_loops(size):
    for problem in [WORLDS[0], WORLDS[3], *OFF_POLICY]:
        got, _, _ = seen(partial(rwr_loss, beta=BETA), problem, size)
        wanted = by_loops(lambda g, j: -oracle.softmax_weight(g, j) * size, problem, size)
        torch.testing.assert_close(got, wanted, **CLOSE)
        got, _, _ = seen(partial(apa_loss, beta=BETA), problem, size)
        wanted = by_loops(lambda g, j: oracle.slope("k2", g[j], oracle.log_z("value", g, j)), problem, size)
        torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize("centering", ["none", "mean", "leave_one_out", "standardized"])
@pytest.mark.parametrize("penalty", ["k1", "k3"])
def test_reinforce_is_the_loop(penalty, centering):
    def cost(y):
        log_w = y["ref"] - y["pi"]
        return -log_w if penalty == "k1" else math.exp(log_w) - 1 - log_w

    def weight(group, j, weighted=False):
        values = [BETA * (y["r"] - cost(y)) for y in group]
        rho = math.exp(group[j]["pi"] - group[j]["mu"]) if weighted else 1.0
        return -oracle.centered(values, j, centering) * rho

    loss = partial(reinforce_loss, beta=BETA, penalty=penalty, centering=centering)
    for problem in (WORLDS[0], WORLDS[1]):  # of one token: K3 of a sequence is not the sum of its tokens' K3
        torch.testing.assert_close(seen(loss, problem, 2)[0], by_loops(weight, problem, 2), **NEAR)
    got = seen(partial(loss, importance="sequence"), OFF_POLICY[0], 3)[0]
    torch.testing.assert_close(got, by_loops(partial(weight, weighted=True), OFF_POLICY[0], 3), **NEAR)


def test_values_of_the_losses_by_hand():
    y = {"tokens": torch.zeros(2, 1, dtype=torch.long), "completion_mask": torch.ones(2, 1)}
    logp = torch.tensor([[-1.0], [-2.0]], dtype=torch.float64).requires_grad_()
    ref_logp = torch.tensor([[-1.5], [-1.0]], dtype=torch.float64)
    rollout = Rollout(**y, logp=logp, ref_logp=ref_logp, rewards=torch.tensor([1.0, 3.0]))
    # l = (1/2, -1); R / beta = (2, 6), mean 4; l - (R - V) / beta = (5/2, -3)
    assert apa_loss(rollout, beta=0.5).item() == pytest.approx((2.5**2 + 3**2) / 4, rel=1e-14)
    assert target_loss(rollout, "k4", beta=0.5, partition=4.0).item() == pytest.approx(-0.25, rel=1e-14)
    w = [math.exp(1.5), math.exp(7.0)]
    weighted = (w[0] * 1.0 + w[1] * 2.0) / sum(w)
    assert rwr_loss(rollout, beta=0.5).item() == pytest.approx(weighted, rel=1e-13)
    # R - beta l = (3/4, 7/2), apart by 11/4
    assert reinforce_loss(rollout, beta=0.5).item() == pytest.approx((-1.375 * 1 + 1.375 * 2) / 2, rel=1e-14)
    # with Z = 2 exp(3/2), w = (1/2, exp(11/2) / 2); Pearson is the mean of w (1/w - 1)^2
    v = [0.5, math.exp(5.5) / 2]
    pearson = f_policy_loss(rollout, "pearson", beta=0.5, partition=1.5 + math.log(2))
    assert pearson.item() == pytest.approx(sum(x * (1 / x - 1) ** 2 for x in v) / 2, rel=1e-12)


def test_one_batch_of_all_groups_is_the_enumeration_of_the_package():
    for problem in (WORLDS[0], OFF_POLICY[0]):
        for loss in (
            partial(target_loss, estimator="k5", partition="importance", beta=BETA),
            partial(rwr_loss, beta=BETA),
            partial(reinforce_loss, beta=BETA, centering="standardized"),
        ):
            wanted = expected_gradient(loss, problem, group_size=2)
            torch.testing.assert_close(expected(loss, problem, 2), wanted, **CLOSE)


# --- exact facts -----------------------------------------------------------------------------------------


def test_k1_differentiated_knows_no_reward():
    for problem in WORLDS:
        loss = partial(target_loss, estimator="k1", beta=BETA)
        other = problem._replace(rewards=problem.rewards.flip(0) * 5)
        assert torch.equal(seen(loss, problem, 2)[0], seen(loss, other, 2)[0])
        assert (seen(loss, problem, 2)[0] == 0.5).all()
        assert expected(loss, problem, 2).norm() < 1e-12


@pytest.mark.parametrize("partition", [*PARTITIONS, 0.3])
def test_k2_k3_plus_plus_and_k4_are_one_loss_sample_by_sample(partition):
    for problem in (WORLDS[0], WORLDS[3], OFF_POLICY[1]):
        loss = partial(target_loss, beta=BETA, partition=partition)
        k2, k3, k4 = (seen(partial(loss, estimator=e), problem, 2)[0] for e in FULL)
        torch.testing.assert_close(k3, k2, **CLOSE)
        torch.testing.assert_close(k4, k2, **CLOSE)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize(
    ("estimator", "wanted"),
    [*((e, to_target) for e in FULL), ("k3", from_target), ("k5", from_target)],
)
def test_with_the_exact_partition_it_is_a_divergence_from_the_target(estimator, wanted, size):
    for problem in WORLDS[: 4 if size < 3 else 3]:
        loss = partial(target_loss, estimator=estimator, beta=BETA, partition=log_z(problem))
        torch.testing.assert_close(expected(loss, problem, size), gradient_of(wanted, problem), **CLOSE)


def test_the_reverse_kl_to_the_target_is_the_regularized_reward():
    for problem in WORLDS:
        both = gradient_of(reverse_kl, problem) - gradient_of(value, problem)
        torch.testing.assert_close(gradient_of(to_target, problem), both, **CLOSE)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("partition", "on_kl", "on_reward"),
    [
        ("lower_bound", lambda n: 1 - 1 / n, lambda n: 1 - 1 / n),
        ("value", lambda n: 1.0, lambda n: 1 - 1 / n),
        ("lower_bound_others", lambda n: 1.0, lambda n: 1.0),
        ("value_others", lambda n: 1.0, lambda n: 1.0),
        ("importance_others", lambda n: 1.0, lambda n: 1.0),
    ],
)
def test_coefficients_of_k4_by_partition(partition, on_kl, on_reward, size):
    loss = partial(target_loss, estimator="k4", beta=BETA, partition=partition)
    for problem in WORLDS:
        kl, gain = gradient_of(reverse_kl, problem), gradient_of(value, problem)
        wanted = on_kl(size) * kl - on_reward(size) * gain
        torch.testing.assert_close(expected(loss, problem, size), wanted, **CLOSE)


@pytest.mark.parametrize("size", [2, 3])
def test_k4_with_the_importance_estimate_of_the_partition_leaves_the_span(size):
    fields = {"kl": stacked(partial(gradient_of, reverse_kl)), "value": stacked(partial(gradient_of, value))}
    loss = partial(target_loss, estimator="k4", beta=BETA)
    assert decompose(stacked(lambda p: expected(loss, p, size)), **fields).residual > 0.02
    fixed = partial(loss, partition="importance_others")
    found = decompose(stacked(lambda p: expected(fixed, p, size)), **fields)
    assert found.residual < 1e-12
    assert found.coefficients == pytest.approx({"kl": 1.0, "value": -1.0}, abs=1e-12)


def test_self_normalized_k5_is_biased_and_less_so_in_larger_groups():
    problem = WORLDS[0]
    wanted = gradient_of(from_target, problem)
    loss = partial(target_loss, estimator="k5", beta=BETA)
    bias = [apart(expected(loss, problem, n), wanted) for n in (2, 4, 6)]
    assert bias[0] > bias[1] > bias[2] > 0.01
    for n in (2, 4):
        others = partial(loss, partition="importance_others")
        assert apart(expected(others, problem, n), wanted) > 0.01  # E[1/Z] is not 1/E[Z]


def test_the_mean_kl_of_the_group_has_the_gradient_of_the_kl_and_enters_with_a_minus():
    for problem in WORLDS:
        value_only, bound = (
            partial(target_loss, estimator="k4", beta=BETA, partition=p) for p in ("value", "lower_bound")
        )
        difference = expected(bound, problem, 3) - expected(value_only, problem, 3)
        torch.testing.assert_close(difference, -gradient_of(reverse_kl, problem) / 3, **CLOSE)


def test_reinforce_with_the_kl_in_the_reward_is_k4_with_the_lower_bound_sample_by_sample():
    for problem in WORLDS:
        for centering, partition in (("mean", "lower_bound"), ("leave_one_out", "lower_bound_others")):
            theirs = seen(partial(reinforce_loss, beta=BETA, centering=centering), problem, 3)[0]
            ours = seen(partial(target_loss, estimator="k4", beta=BETA, partition=partition), problem, 3)[0]
            torch.testing.assert_close(theirs, BETA * ours, **CLOSE)
        free = partial(reinforce_loss, beta=BETA, centering="none")
        torch.testing.assert_close(
            expected(free, problem, 2), BETA * gradient_of(to_target, problem), **CLOSE
        )


def test_rwr_is_k5_without_its_baseline():
    for problem in WORLDS:
        rwr, _, _ = seen(partial(rwr_loss, beta=BETA), problem, 3)
        k5 = seen(partial(target_loss, estimator="k5", beta=BETA), problem, 3)[0]
        torch.testing.assert_close(rwr, k5 - 1 / 3, **CLOSE)
    for problem in OFF_POLICY:
        rwr, _, which = seen(partial(rwr_loss, beta=BETA), problem, 2)
        k5 = seen(partial(target_loss, estimator="k5", beta=BETA, importance="sequence"), problem, 2)[0]
        pi, _, mu = log_probs(problem)
        torch.testing.assert_close(rwr, k5 - (pi - mu).exp()[which] / 2, **CLOSE)


def test_apa_is_k2_at_the_value():
    rollout, _, _ = everything(WORLDS[1], 2)
    assert torch.equal(apa_loss(rollout, beta=BETA), target_loss(rollout, "k2", beta=BETA, partition="value"))
    assert apa_loss(rollout, beta=BETA, partition=0.3) != apa_loss(rollout, beta=BETA)


@pytest.mark.parametrize("estimator", [*FULL, "k5", "k3"])
def test_off_policy_weights_are_unbiased_and_masks_are_not(estimator):
    wanted = to_target if estimator in FULL else from_target
    loss = partial(target_loss, estimator=estimator, beta=BETA)
    for problem in OFF_POLICY:
        exact, target = partial(loss, partition=log_z(problem)), gradient_of(wanted, problem)
        weighted = partial(exact, importance="sequence")
        torch.testing.assert_close(expected(weighted, problem, 2), target, **CLOSE)
        assert apart(expected(exact, problem, 2), target) > 0.05
        assert apart(expected(partial(weighted, mask=(0.2, 0.28)), problem, 2), target) > 0.001
        if estimator in FULL:
            for partition in ("importance_others", "lower_bound_others", "value_others"):
                others = partial(loss, partition=partition, importance="sequence")
                torch.testing.assert_close(expected(others, problem, 2), target, **CLOSE)


@pytest.mark.parametrize("size", [2, 3])
def test_off_policy_weights_keep_the_factors_of_the_group(size):
    for problem in OFF_POLICY[:2]:
        kl, gain = gradient_of(reverse_kl, problem), gradient_of(value, problem)
        for partition, on_kl in (("lower_bound", 1 - 1 / size), ("value", 1.0)):
            loss = partial(target_loss, beta=BETA, partition=partition, importance="sequence")
            wanted = on_kl * kl - (1 - 1 / size) * gain
            torch.testing.assert_close(expected(loss, problem, size), wanted, **CLOSE)


@pytest.mark.parametrize("estimator", [*FULL, "k3", "k5"])
def test_the_target_is_a_fixed_point_whoever_samples(estimator):
    """Every weight vanishes at w = 1, so no correction is wanted there, if log Z is the same for all."""
    for problem in OFF_POLICY[::2]:  # a bandit, and a tree whose target is built below
        p = at_target(problem)
        for partition in (log_z(problem), "lower_bound", "lower_bound_others"):
            slope = seen(partial(target_loss, estimator=estimator, beta=BETA, partition=partition), p, 2)[0]
            assert slope.abs().max() < 1e-12
        assert seen(partial(reinforce_loss, beta=BETA), p, 2)[0].abs().max() < 1e-12
        assert expected(partial(apa_loss, beta=BETA), p, 2).norm() > 0.01
        assert expected(partial(rwr_loss, beta=BETA), p, 2).norm() > 0.001  # weights of two that sum to one
        stale = partial(target_loss, estimator=estimator, beta=BETA, partition="importance")
        assert expected(stale, p, 2).norm() > 0.001


def test_on_policy_weights_and_masks_change_nothing():
    for problem in WORLDS:
        plain = seen(partial(target_loss, beta=BETA), problem, 2)[0]
        both = partial(target_loss, beta=BETA, importance="sequence", mask=(0.0, 0.0))
        assert torch.equal(seen(both, problem, 2)[0], plain)


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
