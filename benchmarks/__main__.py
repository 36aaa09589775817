"""Speed of the core, as ratios measured side by side in one run: `make bench`.

Each row compares two ways of doing the same thing in alternating rounds and reports the median of the
ratios, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from benchmarks import auditing, figure_two, monitoring, optima, pages, real_model
from kl_companion import audit, k3, kl_loss, prefix_tree
from kl_companion.estimators.vocabulary import exact_kl
from kl_companion.rollout import Rollout
from kl_companion.tabular import expectation

ROUNDS = 9
REPEATS = 200  # of what takes microseconds


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(
    ours: Callable[[], object], theirs: Callable[[], object], rounds: int = ROUNDS
) -> tuple[float, float]:
    """Median of ours/theirs over alternating rounds, and the median seconds of ours."""
    ours(), theirs()
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    return statistics.median(a / b for a, b in pairs), statistics.median(a for a, _ in pairs)


def dispatched_k3() -> tuple[float, float]:
    """K3 through the dispatched operations against the same formula in plain torch, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    logp = -torch.rand(64, 2048, generator=generator)
    ref_logp = -torch.rand(64, 2048, generator=generator)

    def ours() -> None:
        k3(logp.clone().requires_grad_(), ref_logp).sum().backward()

    def plain() -> None:
        x = ref_logp - logp.clone().requires_grad_()
        (torch.expm1(x) - x).sum().backward()

    return ratio(ours, plain)


def whole_kl_loss() -> tuple[float, float]:
    """`kl_loss` with all its checks against the mean of 0.5 (logp - ref_logp)^2 under the mask."""
    generator = torch.Generator().manual_seed(0)
    logp, ref_logp = (-torch.rand(8, 128, generator=generator) for _ in range(2))
    mask = torch.ones(8, 128)
    rollout = Rollout(torch.zeros(8, 128, dtype=torch.long), mask, logp.requires_grad_(), ref_logp)

    def ours() -> None:
        for _ in range(REPEATS):
            kl_loss(rollout, "k2")

    def plain() -> None:
        for _ in range(REPEATS):
            (0.5 * (logp - ref_logp) ** 2 * mask).sum(-1).mean()

    r, s = ratio(ours, plain)
    return r, s / REPEATS


def general_exact_kl() -> tuple[float, float]:
    """Exact KL through the general f-divergence against autograd of sum p (log p - log q)."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 8192, generator=generator)
    ref = torch.randn(64, 8192, generator=generator).log_softmax(-1)

    def ours() -> None:
        exact_kl(logits.clone().requires_grad_().log_softmax(-1), ref).sum().backward()

    def plain() -> None:
        p = logits.clone().requires_grad_().log_softmax(-1)
        (p.exp() * (p - ref)).sum().backward()

    return ratio(ours, plain)


def one_enumeration() -> tuple[float, float]:
    """Exact expected gradient by enumeration against averaging as many sampled sequences."""
    problem = prefix_tree(3, 3, seed=0)
    theta = problem.logits.clone().requires_grad_()
    picks = torch.multinomial(problem.probabilities(), len(problem.sequences), replacement=True)

    def loss(rollout: Rollout) -> torch.Tensor:
        return (k3(rollout.logp, rollout.ref_logp) * rollout.completion_mask).sum(-1).mean()

    def sampled() -> None:
        torch.stack([loss(problem.rollout(theta, i.unsqueeze(0))) for i in picks]).mean().backward()

    return ratio(lambda: expectation(loss, problem), sampled)


def imports() -> tuple[float, float]:
    """`import kl_companion` against `import torch`, each in a fresh process."""

    def run(code: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, "-c", code], check=True)

    return ratio(run("import kl_companion"), run("import torch"))


def main() -> None:
    """Print the table."""
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"threads: {torch.get_num_threads()}; median of {ROUNDS} alternating rounds\n")
    print(f"{'measured':<58}{'ratio':>8}{'seconds':>10}")
    rows = {
        "K3, dispatched / plain torch (64 x 2048)": dispatched_k3,
        "kl_loss of k2 / its plain formula, at most 5 (8 x 128)": whole_kl_loss,
        "exact KL, general f / plain autograd (64 x 8192)": general_exact_kl,
        "expected gradient, enumerated / as many samples (27)": one_enumeration,
        "import kl_companion / import torch": imports,
    }
    for name, measure in rows.items():
        r, s = measure()
        print(f"{name:<58}{r:>8.2f}{s:>10.4f}", flush=True)
    for name in ("k3", "exact_kl"):
        print(
            f"{f'audit of {name}, all conditions':<58}{'':>8}{seconds(lambda n=name: str(audit(n))):>10.2f}"
        )
    lm, task = real_model.model()
    for name, work in (("sampling", real_model.sampling), ("scoring", real_model.scoring)):
        r, s = ratio(*work(lm, task), rounds=3)  # seconds each
        print(f"{f'{name}, 135 million parameters / transformers, at most 1.3':<58}{r:>8.2f}{s:>10.4f}")
    monitoring.main([])
    auditing.main()
    figure_two.main()
    optima.main()
    pages.main()


if __name__ == "__main__":
    main()
