"""The picture of the book: gradients by enumeration and autograd, and where training ends."""

import pytest
import torch

from kl_book import simplex
from kl_book.example import ANSWERS, TOKENS, policy, reference
from kl_companion.plotting import PALETTE, on_dark


def k3(logp, ref_logp):
    return (ref_logp - logp).exp() - (ref_logp - logp) - 1


KS = {
    "k1": lambda logp, ref_logp: logp - ref_logp,
    "k2": lambda logp, ref_logp: (logp - ref_logp) ** 2 / 2,
    "k3": k3,
    "k3 reward": k3,
}


@pytest.mark.parametrize("loss", list(simplex.LOSSES))
def test_a_gradient_is_the_mean_over_all_tokens(loss):
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    logits = p.log().requires_grad_()
    logp = logits.log_softmax(-1)
    k = KS[loss](logp, reference().log())
    mean = (p * k.detach() * logp).sum() if loss == "k3 reward" else (p * k).sum()
    (wanted,) = torch.autograd.grad(mean, logits)
    torch.testing.assert_close(simplex.gradient(loss, p), wanted, rtol=1e-12, atol=1e-14)


def test_where_training_ends():
    ends = {loss: simplex.paths(loss)[-1] for loss in simplex.LOSSES}
    torch.testing.assert_close(ends["k1"], torch.tensor(simplex.STARTS, dtype=torch.float64))
    for loss in ("k2", "k3"):
        torch.testing.assert_close(ends[loss], reference().expand(4, 3), rtol=0, atol=1e-6)
    assert (ends["k3 reward"].max(-1).values > 0.999).all()
    k2, k3_ = simplex.paths("k2"), simplex.paths("k3")
    assert (k2[40] - k3_[40]).norm(dim=-1).max() > 0.02  # by different routes


def test_arrows_are_changes_of_probabilities():
    points, steps = simplex.arrows("k2")
    assert len(points) == 28
    torch.testing.assert_close(steps.sum(-1), torch.zeros(28, dtype=torch.float64), rtol=0, atol=1e-15)
    tiny = 1e-6
    moved = (points.log() - tiny * simplex.gradient("k2", points)).softmax(-1)
    torch.testing.assert_close((moved - points) / tiny, steps, rtol=1e-4, atol=1e-7)
    assert simplex.arrows("k1")[1].abs().max() < 1e-16


def test_the_figure_has_the_colors_of_the_book():
    drawn = simplex.simplex_figure()
    assert set(drawn.svg) == {"light-wide", "dark-wide", "light-narrow", "dark-narrow"}
    shades = [PALETTE["k1"], PALETTE["k2"], PALETTE["k3"]]
    assert all(shade.encode() in drawn.svg["light-narrow"] for shade in shades)
    assert all(on_dark(shade).encode() in drawn.svg["dark-narrow"] for shade in shades)


def test_the_example():
    assert TOKENS == tuple(ANSWERS) == ("No", "Yes", "Let")
    for p in (policy(), reference()):
        assert p.sum().item() == pytest.approx(1.0, abs=1e-15)
    assert (reference() / policy())[2].item() == pytest.approx(2.0)
    assert [reward for _, reward, _ in ANSWERS.values()] == [1.0, 0.0, 1.0]
