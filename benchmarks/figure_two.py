"""Exact moments behind figure 2 of Tang & Munos: token coefficients against one autograd call per arm."""

from __future__ import annotations

import statistics
import time

import torch

from kl_companion import bandit, get_estimator, stack
from kl_companion.tabular import Problem, draw_statistics

SIZES = 2 ** torch.arange(11)
STUDY = (("k1", "reward"), ("k1", "loss"), ("k3", "loss"))  # vanilla, vanilla and var-reduced differentiated
REPEATS = 25


def looped(name: str, problem: Problem, placement: str) -> torch.Tensor:
    """Root mean squared error against every n, from the gradient of each arm on its own, [sizes]."""
    theta = problem.logits.clone().requires_grad_()
    logp = theta.log_softmax(-1)[0]
    ref_logp = problem.ref_logits.log_softmax(-1)[0]
    x = get_estimator(name).fn(logp, ref_logp)
    terms = x if placement == "loss" else x.detach() * logp
    each = torch.stack([torch.autograd.grad(term, theta, retain_graph=True)[0] for term in terms])
    (target,) = torch.autograd.grad((logp.exp() * (logp - ref_logp)).sum(), theta)
    p = logp.detach().exp()[:, None, None]
    mean = (p * each).sum(0)
    variance = (p * (each - mean) ** 2).sum()
    return ((mean - target).square().sum() + variance / SIZES).sqrt()


def main() -> None:
    """Print the seconds of both ways and their ratio; they must agree."""
    worlds = [bandit(100, seed=seed) for seed in range(100)]
    both = stack(worlds)

    def exact() -> torch.Tensor:
        return torch.stack(
            [
                draw_statistics(n, both, placement=p, target="reverse_kl").at(SIZES).gradient_rmse
                for n, p in STUDY
            ]
        )

    start = time.perf_counter()
    loop = torch.stack([torch.stack([looped(n, w, p) for w in worlds]) for n, p in STUDY])
    slow = time.perf_counter() - start
    exact()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        ours = exact()
        times.append(time.perf_counter() - start)
    fast = statistics.median(times)
    apart = (ours - loop).abs().max().item()
    if not apart < 1e-9:
        raise RuntimeError(f"the two ways differ by {apart:g}, expected less than 1e-9")
    print(
        f"\nFigure 2: root MSE of {len(STUDY)} gradient estimates, {len(worlds)} bandits of 100 arms, exact"
    )
    print(f"{'one autograd call per arm, seconds':<58}{slow:>18.4f}")
    print(f"{'token coefficients, all bandits at once, seconds':<58}{fast:>18.4f}")
    print(
        f"{'times faster (they agree within ' + format(apart, '.0e') + ')':<58}{slow / fast:>18.0f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
