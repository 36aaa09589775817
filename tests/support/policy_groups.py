"""Every group of sequences of small worlds, and what a policy-gradient loss puts in front of each score."""

import math

import torch

from kl_companion import bandit, prefix_tree
from kl_companion.rollout import Rollout
from tests.oracles import policy_losses as oracle

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


def stacked(field, problems=WORLDS):
    return torch.cat([field(p).flatten() for p in problems])


def apart(a, b):
    return ((a - b).norm() / b.norm()).item()


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
