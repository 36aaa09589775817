"""Each picture of a run has the shape that it is named for, and its caption says which world it is of."""

from __future__ import annotations

import math

import pytest
import torch

from kl_book import run_shapes as shapes
from kl_companion.plotting import PALETTE, on_dark

NAMES = ("take_off", "steady_growth", "low_k3", "one_spike", "sawtooth", "flat_zero")


def kl_of(logits: torch.Tensor) -> float:
    """Return the KL to the start of the five answers, by hand."""
    p = [math.exp(x) for x in logits.flatten().tolist()]
    p = [x / sum(p) for x in p]
    return sum(x * math.log(x / q) for x, q in zip(p, shapes.START, strict=True) if x)


def test_a_run_follows_the_exact_gradient() -> None:
    """One step of ascent on reward − β KL, by autograd."""
    problem = shapes.five_answers()
    logits = torch.tensor([[0.3, -0.2, 0.1, 0.5, -1.0]], dtype=torch.float64)
    moved = shapes.follow_anchor(
        problem._replace(logits=logits), beta=0.04, decay=0.0, period=9, lr=1.0, iterations=1
    )
    theta = logits.clone().requires_grad_()
    logp, start = theta.log_softmax(-1), logits.log_softmax(-1)
    objective = (logp.exp() * (problem.rewards - 0.04 * (logp - start))).sum()
    (slope,) = torch.autograd.grad(objective, theta)
    torch.testing.assert_close(moved.logits[-1], logits + slope)


def test_growth_and_a_take_off() -> None:
    (curve,) = shapes.take_off_curves()
    at = dict(zip(curve.steps, curve.nats, strict=True))
    assert at[200] > 2.2
    assert abs(at[800] - at[200]) < 0.1
    assert at[900] > 4.3
    path = shapes.run(0.04, 10_000, 1200)
    reward = (path.logits.softmax(-1) * shapes.five_answers().rewards).sum((-1, -2))
    assert reward[-1] > 0.98 > 0.6 > reward[80]  # it rises with the KL
    assert curve.nats[-1] == pytest.approx(kl_of(path.logits[-1]), abs=1e-6)


def test_what_a_larger_beta_does_there() -> None:
    """The page says 0.5 nats instead of 4.5."""
    ends = [round(shapes.run(beta, 10_000, n).kl[-1].item(), 1) for beta, n in ((0.3, 1000), (0.04, 1200))]
    assert ends == [0.5, 4.5]


def test_steady_growth() -> None:
    free, held = shapes.steady_growth_curves()
    assert (free.words, held.words) == ("K1 in the loss", "K2 in the loss")
    assert free.nats == sorted(free.nats)
    assert free.nats[-1] > 2.4 * held.nats[-1] > 1.2
    assert free.steps == [0, 50, 100, 150, 200]


def test_k3_falls_while_the_kl_stays() -> None:
    exact, logged = shapes.low_k3_curves()
    top = math.exp(2) / (math.exp(2) + math.exp(1) + 1 + math.exp(-1))
    assert exact.nats[-1] == pytest.approx(-math.log(top), abs=1e-3)  # one token is left
    assert logged.nats[-1] == pytest.approx(top - 1 - math.log(top), abs=1e-3)
    assert [round(c.nats[-1], 2) for c in (exact, logged)] == [0.44, 0.08]
    assert max(logged.nats) > 0.3


def test_one_spike() -> None:
    logged, exact = shapes.one_spike_curves()
    high = [x for x in logged.nats if x > 3 * exact.nats[0]]
    assert len(high) == 1
    assert len(set(exact.nats)) == 1
    mine = [(1 - 1e-4) * x for x in (0.45, 0.5, 0.05)] + [1e-4]
    theirs = [0.99 * x for x in (0.3, 0.6, 0.1)] + [1e-2]
    kl = sum(p * math.log(p / q) for p, q in zip(mine, theirs, strict=True))
    assert exact.nats[0] == pytest.approx(kl)


def test_a_replaced_reference() -> None:
    logged, far = shapes.sawtooth_curves()
    at = dict(zip(logged.steps, logged.nats, strict=True))
    assert all(at[step] < 1e-9 for step in (250, 500, 750))
    assert at[490] > 0.5
    assert far.nats[-1] > 4
    logged, far = shapes.flat_zero_curves()
    assert max(logged.nats) < 1e-12
    assert far.nats[-1] > 2.3


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_names_its_world_and_has_the_colors_of_the_book(name: str) -> None:
    drawn, curves = getattr(shapes, name)(), getattr(shapes, f"{name}_curves")()
    assert any(word in drawn.caption for word in ("answers", "tokens", "transformer"))
    for curve in curves:
        for theme, shade in (("light", PALETTE[curve.look]), ("dark", on_dark(PALETTE[curve.look]))):
            assert f"stroke: {shade}; stroke-width: 2.2" in drawn.svg[f"{theme}-narrow"].decode()
        assert curve.words
