"""Six shapes of the KL of a run as small pictures: of a result table, or of exact runs of small worlds."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from kl_book import tables
from kl_book.example import policy, reference
from kl_companion import bandit, descend, k3, kl_reward, policy_gradient_loss
from kl_companion.tabular import AnchoredPath, Problem, follow_anchor

if TYPE_CHECKING:
    from kl_companion.plotting import ThemedFigure

START = (0.4, 0.3, 0.2, 0.09, 0.01)  # probabilities of five answers under the reference
REWARDS = (0.0, 0.0, 0.0, 0.5, 1.0)
RESET = 250  # steps after which a reference is replaced by the policy
DRAWN = 256  # tokens of a logged mean
SEEN = 0.001  # a token that is rarer is not in a batch of about a thousand


class ShapeLine(NamedTuple):
    """One line of a picture.

    Attributes:
        steps: Of the run.
        nats: A KL at each step, or a logged estimate of it.
        look: Name whose color the line has (`kl_companion.plotting.color`).
        words: Written beside the line; "" for nothing.
        at: Where they are written, as shares of the width and the height of the picture.
    """

    steps: list[float]
    nats: list[float]
    look: str
    words: str = ""
    at: tuple[float, float] = (0.5, 0.5)


def five_answers() -> Problem:
    """Return a world of five answers: a rare one has half of the reward, the rarest all of it."""
    logits = torch.tensor([START], dtype=torch.float64).log()
    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    return bandit(vocab=5, seed=0)._replace(logits=logits, ref_logits=logits, rewards=rewards)


@cache
def run(beta: float, period: int, steps: int = 1000) -> AnchoredPath:
    """Return the exact run of `five_answers` whose reference becomes the policy every ``period`` steps.

    Args:
        beta: Coefficient of the KL.
        period: Steps between two replacements; more than ``steps`` for a fixed reference.
        steps: Of the run.
    """
    return follow_anchor(
        five_answers(), decay=0.0, lr=1.0, beta=beta, iterations=steps, period=period, record=10
    )


def kl_to_start(path: AnchoredPath) -> list[float]:
    """Return the KL to where a run of `five_answers` began, in nats, at each record."""
    logp = path.logits.log_softmax(-1)
    return (logp.exp() * (logp - logp[0])).sum((-1, -2)).tolist()


def take_off_curves() -> list[ShapeLine]:
    """Return a run that grows, levels off, and takes off near step 900."""
    path = run(0.04, 10_000, 1200)
    return [ShapeLine(path.steps.tolist(), path.kl.tolist(), "exact", "KL", (0.45, 0.62))]


def steady_growth_curves() -> list[ShapeLine]:
    """Return runs of the table `llm_rl` with K1 and with K2 in the loss: means over seeds."""
    runs = tables.load("llm_rl")
    runs = runs[runs.beta == 0.3].assign(study=runs.study.str.removesuffix(", more"))
    mean = runs.groupby(["study", "step"]).kl.mean()
    beside = {"K1 in loss": ("k1", (0.12, 0.9)), "K2 in loss": ("k2", (0.45, 0.42))}
    return [
        ShapeLine(list(mean[name].index), mean[name].tolist(), look, name.replace("in", "in the"), at)
        for name, (look, at) in beside.items()
    ]


def low_k3_curves() -> list[ShapeLine]:
    """Return the exact KL and the K3 that a batch shows while K3 in the reward drives a token out."""
    logits, ref_logits = (
        torch.tensor([x], dtype=torch.float64) for x in ([2.0, 1.0, 0.0, -1.6], [2.0, 1.0, 0.0, -1.0])
    )
    world = bandit(vocab=4, seed=0)._replace(logits=logits, ref_logits=ref_logits)

    def loss(rollout: Any) -> torch.Tensor:
        return policy_gradient_loss(rollout, -kl_reward(rollout, "k3", beta=1.0))

    logp = torch.stack(descend(loss, world, steps=150, lr=2.0)).log_softmax(-1)[:, 0]
    ref_logp = ref_logits.log_softmax(-1)[0]
    p = logp.exp()
    exact = (p * (logp - ref_logp)).sum(-1)
    shown = (p * k3(logp, ref_logp.expand_as(logp))).where(p > SEEN, 0.0).sum(-1)
    steps = [float(i) for i in range(len(logp))]
    return [
        ShapeLine(steps, exact.tolist(), "exact", "exact KL", (0.5, 0.86)),
        ShapeLine(steps, shown.tolist(), "k3", "logged K3", (0.5, 0.3)),
    ]


def one_spike_curves() -> list[ShapeLine]:
    """Return the exact KL and the logged K3 where the policy nearly never writes one token of four."""
    often = torch.tensor([1e-4, 1e-2], dtype=torch.float64)  # of the fourth token: policy, reference
    p, q = (
        torch.cat([(1 - x) * first, x[None]]) for x, first in zip(often, (policy(), reference()), strict=True)
    )
    generator = torch.Generator().manual_seed(1)
    tokens = torch.multinomial(p.expand(40, -1), DRAWN, replacement=True, generator=generator)
    exact = (p * (p / q).log()).sum().item()
    logged = k3(p.log(), q.log())[tokens].mean(-1)
    steps = [float(i) for i in range(40)]
    return [
        ShapeLine(steps, logged.tolist(), "k3", "logged K3", (0.05, 0.6)),
        ShapeLine(steps, [exact] * 40, "exact", "exact KL", (0.05, 0.3)),
    ]


def sawtooth_curves() -> list[ShapeLine]:
    """Return the logged KL and the KL to the start of a run whose reference is replaced."""
    path = run(0.3, RESET)
    return [
        ShapeLine(path.steps.tolist(), path.kl.tolist(), "exact", "KL in the log", (0.55, 0.3)),
        ShapeLine(path.steps.tolist(), kl_to_start(path), "k4", "KL to the start", (0.07, 0.8)),
    ]


def flat_zero_curves() -> list[ShapeLine]:
    """Return the same where the reference is the policy at every step."""
    path = run(0.3, 1)
    return [
        ShapeLine(path.steps.tolist(), path.kl.tolist(), "exact", "KL in the log", (0.5, 0.13)),
        ShapeLine(path.steps.tolist(), kl_to_start(path), "k4", "KL to the start", (0.3, 0.8)),
    ]


def take_off() -> ThemedFigure:
    """Return the picture of growth and a take-off."""
    return _picture(
        take_off_curves(),
        alt="The KL grows to 2.2 nats, levels off, and rises to 4.5 nats between steps 800 and 900.",
        caption="One-token answers, five of them, exact gradients, β = 0.04: the policy finds the best "
        "answer, which its reference writes once in a hundred.",
    )


def steady_growth() -> ThemedFigure:
    """Return the picture of a KL that nothing holds, beside one that is held."""
    return _picture(
        steady_growth_curves(),
        alt="With K1 in the loss the KL grows to 1.6 nats, with K2 in the loss to 0.6 nats.",
        caption="A transformer of 75,000 parameters that sorts digits, β = 0.3, means of five seeds.",
    )


def low_k3() -> ThemedFigure:
    """Return the picture of a logged K3 that falls while the KL stays high."""
    return _picture(
        low_k3_curves(),
        alt="The exact KL rises to 0.44 nats and stays. The logged K3 rises with it and falls back to 0.08.",
        caption="One-token answers, four of them, K3 in the reward and nothing else; logged from "
        "tokens that a batch of a thousand holds.",
    )


def one_spike() -> ThemedFigure:
    """Return the picture of one spike."""
    return _picture(
        one_spike_curves(),
        alt="The logged K3 lies near the exact KL of 0.07 nats, but for one step at which it is 0.4.",
        caption=f"Four tokens, one of which the policy writes once in 10,000 times and the reference once "
        f"in 100; K3 of {DRAWN} sampled tokens a step.",
    )


def sawtooth() -> ThemedFigure:
    """Return the picture of a reference that is replaced now and then."""
    return _picture(
        sawtooth_curves(),
        alt=f"The KL in the log returns to zero every {RESET} steps; the KL to the start grows to 4.5 nats.",
        caption=f"The five answers again, β = 0.3; the reference becomes the policy every {RESET} steps.",
    )


def flat_zero() -> ThemedFigure:
    """Return the picture of a reference that is the policy."""
    return _picture(
        flat_zero_curves(),
        alt="The KL in the log is zero at every step, while the KL to the start grows to 2.4 nats.",
        caption="The five answers again; the reference is the policy itself at every step.",
    )


def _picture(curves: list[ShapeLine], *, alt: str, caption: str) -> ThemedFigure:
    from kl_companion.plotting import color, figure

    def draw(axis: Any) -> None:
        for curve in curves:
            axis.plot(curve.steps, curve.nats, color=color(curve.look), linewidth=2.2)
            look = {"color": color(curve.look), "fontweight": "bold", "va": "center"}
            axis.text(*curve.at, curve.words, transform=axis.transAxes, **look)
        axis.set(xlabel="step", ylabel="nats", ylim=(-0.02 * axis.get_ylim()[1], None))

    return figure(draw, size=(4.6, 2.5), alt=alt, caption=caption)
