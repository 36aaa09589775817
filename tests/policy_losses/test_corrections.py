"""Weights and masks of a sampler that is not the trainer, on worlds whose tokens are enumerated."""

import math
from itertools import product

import pytest
import torch

from kl_companion.policy_losses import confident_cap, correction_weight, mismatch, trust_region_mask

# ten tokens, p(j) ~ 1/j, of which three are right; the engine samples at a temperature
P = [1 / j / sum(1 / i for i in range(1, 11)) for j in range(1, 11)]
RIGHT = [float(j in (2, 5, 9)) for j in range(1, 11)]


def at_temperature(tau):
    powers = [x ** (1 / tau) for x in P]
    return [x / sum(powers) for x in powers]


def column(probabilities):
    """Log-probs of each token as an answer of its own, [10, 1]."""
    return torch.tensor(probabilities, dtype=torch.float64).log().unsqueeze(-1)


def field(weights, engine):
    """E_engine[w (R - b) s] by logit, b the engine's mean reward, written out."""
    b = math.fsum(m * r for m, r in zip(engine, RIGHT, strict=True))
    front = [m * w * (r - b) for m, w, r in zip(engine, weights, RIGHT, strict=True)]
    return [f - math.fsum(front) * p for f, p in zip(front, P, strict=True)]


def error(weights, engine):
    """Size of the difference to the trainer's gradient, over the size of that."""
    right = field([1.0] * 10, P)
    apart = [a - b for a, b in zip(field(weights, engine), right, strict=True)]
    return math.hypot(*apart) / math.hypot(*right)


COLD = {
    "none": (None, 0.332645),
    "IS": ({"high": math.inf}, 0.0),
    "IcePop": ({"action": "mask", "low": 0.5, "high": 5.0}, 0.040848),
    "MIS": ({"action": "mask", "low": 0.5, "high": 2.0}, 0.395953),
    "CIS": ({"high": confident_cap(column(P))}, 0.061838),
}


@pytest.mark.parametrize("name", COLD)
def test_bias_where_the_engine_samples_cold(name):
    """A mask that drops what differs is worse than no correction."""
    choices, bias = COLD[name]
    engine = at_temperature(0.5)
    weights = [1.0] * 10
    if choices is not None:
        found = correction_weight(column(P), column(engine), torch.ones(10, 1), **choices)
        weights = found.squeeze(-1).tolist()
    assert error(weights, engine) == pytest.approx(bias, abs=1e-6)


def test_truncation_by_hand():
    engine = at_temperature(0.5)
    found = correction_weight(column(P), column(engine), torch.ones(10, 1))
    assert found.squeeze(-1).tolist() == pytest.approx(
        [min(p / m, 2) for p, m in zip(P, engine, strict=True)]
    )


@pytest.mark.parametrize(("tokens", "mean"), [(6, 1.0), (250, 0.927484), (1000, 0.5875)])
def test_a_mask_of_whole_answers_takes_the_gradient_of_long_ones(tokens, mean):
    """A coin of 0.5 at the engine and 0.52 at the trainer: the mean weight of the answers' mask at 3."""
    heads = torch.arange(tokens + 1, dtype=torch.float64)
    first = torch.arange(tokens) < heads.unsqueeze(-1)  # one answer for each count
    logp = torch.tensor([0.48, 0.52], dtype=torch.float64).log()[first.long()]
    engine = torch.full_like(logp, math.log(0.5))
    weights = correction_weight(
        logp, engine, torch.ones_like(logp), level="sequence", action="mask", high=3.0
    )[:, 0].tolist()
    ratios = [math.exp(k * math.log(1.04) + (tokens - k) * math.log(0.96)) for k in range(tokens + 1)]
    assert weights == pytest.approx([x if x <= 3 else 0.0 for x in ratios], rel=1e-9)
    found = math.fsum(w * math.comb(tokens, k) / 2**tokens for k, w in enumerate(weights))
    assert found == pytest.approx(mean, abs=1e-6)


def test_the_geometric_ratio_is_over_own_tokens():
    logp = torch.tensor([[-1.0, -9.0, -2.0], [-1.0, -1.0, -1.0]], requires_grad=True)
    engine = torch.tensor([[-1.5, -1.0, -1.5], [-2.0, -2.0, -1.0]])
    mask = torch.tensor([[1, 0, 1], [1, 1, 0]])
    found = correction_weight(logp, engine, mask, level="geometric", high=2.5)
    assert found.tolist() == [[1, 0, 1], pytest.approx([2.5, 2.5, 0])]
    kept = correction_weight(logp, engine, mask, level="geometric", action="keep", low=0.9, high=1.1)
    assert kept.tolist() == [[1, 0, 1], [0, 0, 0]]
    assert not found.requires_grad


def test_a_cap_that_is_tight_where_the_policy_is_sure():
    found = confident_cap(torch.tensor([0.9, 0.5, 0.999], dtype=torch.float64).log())
    assert found.tolist() == pytest.approx([1.23, 2.15, 1.0115])


@pytest.mark.parametrize("measure", ["tv", "binary_kl"])
def test_who_is_left_out_by_a_trust_region(measure):
    grid = [0.05, 0.2, 0.5, 0.8, 0.95]
    cases = list(product((1.0, 0.0, -1.0), grid, grid))
    a, p, m = torch.tensor(cases, dtype=torch.float64).T.unsqueeze(1)
    found = trust_region_mask(a, p.log(), m.log(), measure=measure, low=0.1, high=0.25)[0].tolist()
    for kept, (sign, now, before) in zip(found, cases, strict=True):
        far = abs(now - before)
        if measure == "binary_kl":
            far = before * math.log(before / now) + (1 - before) * math.log((1 - before) / (1 - now))
        away = sign * (now - before) > 0
        assert kept == float(not (away and far > (0.25 if sign > 0 else 0.1)))


def test_a_sure_engine_has_a_binary_kl():
    sure, one = torch.zeros(1, 1), torch.ones(1, 1)
    half = sure - math.log(2)
    assert trust_region_mask(-one, half, sure, measure="binary_kl", low=0.69) == 0
    assert trust_region_mask(-one, half, sure, measure="binary_kl", low=0.7) == 1


def test_what_a_log_shows_of_an_engine_that_samples_from_six_tokens():
    """K1 minus K3 is the probability of the four tokens that it cannot sample."""
    inside = math.fsum(P[:6])
    answers = torch.tensor(P[:6], dtype=torch.float64) / inside
    counts = (answers * 840 * 10).round().long()  # in proportion: 1/j for j up to 6
    rows = torch.arange(6).repeat_interleave(counts)
    logp, engine = column(P)[rows], answers.log().unsqueeze(-1)[rows]
    found = mismatch(logp, engine, torch.ones_like(logp))
    assert found.kl == pytest.approx(-math.log(inside), abs=1e-9)
    assert (found.kl, found.k3) == pytest.approx((0.178562, 0.015034), abs=1e-6)
    assert found.unsampled == pytest.approx(1 - inside, abs=1e-9)
    assert found.gradient_error == pytest.approx(math.sqrt(2 * found.kl))


def test_a_negative_mean_has_no_error():
    found = mismatch(torch.tensor([[-1.0, -5.0]]), torch.tensor([[-1.5, -9.0]]), torch.tensor([[1, 0]]))
    assert found.kl == -0.5
    assert math.isnan(found.gradient_error)
