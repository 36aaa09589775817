"""Exact moments of estimators: time of a token at the vocabulary of a model, and against a Monte Carlo loop.

The loop is what a reader of Tang & Munos would write for one bandit of 100 arms: for every size n, 100 times,
draw n arms, differentiate the mean of the estimates, and take the root mean squared error at the end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from kl_companion import ESTIMATORS, bandit, get_estimator, stack
from kl_companion.tabular.logits import logit_moments
from kl_companion.tabular.scores import SinglePlacement

FAMILIES = (
    *("k_lambda(0.5)", "kf_plus_plus(pearson)", "kf_plus_plus(jensen_shannon)"),
    *("f_divergence(jensen_shannon)", "truncated_kl(32)", "top_k_reverse_kl(32)", "top_k_forward_kl(32)"),
    "top_k_f_divergence(jensen_shannon, 32)",
)
STUDY: tuple[tuple[str, SinglePlacement], ...] = (
    ("k1", "loss"),
    ("k1", "reward"),
    ("k2", "loss"),
    ("k3", "loss"),
    ("k3_plus_plus", "loss"),
)
SIZES = 2 ** torch.arange(1, 11)
ARMS, REPEATS, BANDITS = 100, 100, 100
SPREAD, APART = 3.0, 0.5  # standard deviations of logits, and of what policy and reference differ by


def seconds(work: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def looped(logits: torch.Tensor, ref_logits: torch.Tensor) -> torch.Tensor:
    """Root mean squared error of the gradient of every estimate at every size, simulated: [study, sizes]."""
    torch.manual_seed(0)
    theta = logits.clone().requires_grad_()
    logp, ref_logp = theta.log_softmax(-1), ref_logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - ref_logp)).sum(), theta)
    errors = []
    for name, placement in STUDY:
        fn = get_estimator(name).fn
        for n in SIZES.tolist():
            squares = []
            for _ in range(REPEATS):
                logp = theta.log_softmax(-1)
                arms = torch.multinomial(logp.detach().exp(), n, replacement=True)
                x = fn(logp[arms], ref_logp[arms])
                loss = x.mean() if placement == "loss" else (x.detach() * logp[arms]).mean()
                squares.append((torch.autograd.grad(loss, theta)[0] - exact).square().sum())
            errors.append(torch.stack(squares).mean().sqrt())
    return torch.stack(errors).reshape(len(STUDY), -1)


def exact(logits: torch.Tensor, ref_logits: torch.Tensor) -> torch.Tensor:
    """The same numbers without a draw: [study, ..., sizes]."""
    found = [
        logit_moments(name, logits, ref_logits, SIZES, placement=placement, target="reverse_kl")
        for name, placement in STUDY
    ]
    return torch.stack([x.gradient_rmse for x in found])


def against_the_loop(rounds: int) -> list[dict[str, Any]]:
    """One bandit, and many at once (time of one of them), as ratios to the loop over one."""
    many = stack([bandit(ARMS, seed=seed) for seed in range(BANDITS)])
    logits, ref_logits = many.logits[:, 0], many.ref_logits[:, 0]
    ours = exact(logits[0], ref_logits[0])
    if not torch.allclose(exact(logits, ref_logits)[:, 0], ours, rtol=1e-10):
        raise RuntimeError("a stack of bandits has other moments than each of them")
    light = [i for i, (name, _) in enumerate(STUDY) if name != "k3"]  # 100 repeats of its gradient say little
    ways = {"one bandit": (logits[0], ref_logits[0]), f"{BANDITS} bandits at once": (logits, ref_logits)}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        start = time.perf_counter()
        simulated = looped(logits[0], ref_logits[0])
        loop = time.perf_counter() - start
        apart = (simulated / ours - 1)[light].abs().max().item()
        if not apart < 0.25:
            raise RuntimeError(f"simulation and exact moments differ by {apart:.0%}, expected its noise only")
        for name, parts in ways.items():
            spent = [seconds(lambda parts=parts: exact(*parts)) for _ in range(2 + 4 * rounds)]  # type: ignore[misc]
            times[name].append((statistics.median(spent) / parts[0].shape[:-1].numel(), loop))
    return [
        {
            "name": f"moments of {len(STUDY)} estimates, {name}",
            "vocab": ARMS,
            "tokens": BANDITS if name != "one bandit" else 1,
            "milliseconds": 1e3 * statistics.median(a for a, _ in pairs),
            "times_faster": statistics.median(b / a for a, b in pairs),
        }
        for name, pairs in times.items()
    ]


def per_token(vocab: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of a token for every estimator, in rounds that take turns."""
    generator = torch.Generator().manual_seed(0)
    logits = SPREAD * torch.randn(tokens, vocab, generator=generator)
    ref_logits = logits + APART * torch.randn(tokens, vocab, generator=generator)
    names = [*ESTIMATORS, *FAMILIES]
    for name in names:
        logit_moments(name, logits[:1], ref_logits[:1])
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            spent = seconds(lambda name=name: logit_moments(name, logits, ref_logits))  # type: ignore[misc]
            times[name].append(spent / tokens)
    return [
        {
            "name": name,
            "vocab": vocab,
            "tokens": tokens,
            "milliseconds": 1e3 * statistics.median(found),
            "times_faster": None,
        }
        for name, found in times.items()
    ]


def rows(vocab: int = 151_936, tokens: int = 8, rounds: int = 5) -> list[dict[str, Any]]:
    """What the table `performance` takes up: name, vocab, tokens, milliseconds a token, times_faster.

    ``times_faster`` is the ratio to the Monte Carlo loop, None where there is none.
    """
    return per_token(vocab, tokens, rounds) + against_the_loop(rounds)


def main() -> None:
    """Print the rows."""
    print(f"\nExact bias and variance of value and gradient, {torch.get_num_threads()} threads")
    print(f"{'estimator':<58}{'vocab':>8}{'ms a token':>12}{'loop / ours':>13}")
    for row in rows():
        ratio = "" if row["times_faster"] is None else f"{row['times_faster']:.0f}"
        print(f"{row['name']:<58}{row['vocab']:>8}{row['milliseconds']:>12.3f}{ratio:>13}", flush=True)


if __name__ == "__main__":
    main()
