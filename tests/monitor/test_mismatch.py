"""Engines that warm and cut, written out: the fit finds them, and the parts add up to the difference."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kl_companion.monitor import KLMonitor
from kl_companion.monitor.mismatch import Engine, fitted, parts
from tests.oracles import monitor as oracle

VOCAB, ANSWERS, LENGTH = 12, 5, 6


@pytest.fixture
def batch() -> dict[str, Any]:
    """A policy, its answers under an engine's favorite tokens, and a mask with an end."""
    draw = torch.Generator().manual_seed(1)
    logits = 1.5 * torch.randn(ANSWERS, LENGTH, VOCAB, generator=draw, dtype=torch.float64)
    mask = torch.ones(ANSWERS, LENGTH)
    mask[2, 4:] = 0
    tokens = logits.argmax(-1)  # every engine keeps it; every second token is the next best
    tokens[:, ::2] = logits.topk(2).indices[:, ::2, 1]
    return {"logits": logits, "tokens": tokens, "mask": mask}


def spoken(batch: dict[str, Any], engine: Engine) -> dict[str, torch.Tensor]:
    """What an engine says of the tokens, with its kept mass and its log-prob before the cut, [batch, seq]."""
    found = torch.zeros(3, ANSWERS, LENGTH, dtype=torch.float64)
    for i in range(ANSWERS):
        for t in range(LENGTH):
            row, token = batch["logits"][i, t].tolist(), int(batch["tokens"][i, t])
            found[:, i, t] = torch.tensor(oracle.engine(row, token, *engine), dtype=torch.float64)
    assert found.isfinite().all()
    return dict(zip(("logp", "kept", "before"), found, strict=True))


def observed(batch: dict[str, Any], logp: torch.Tensor, **settings: Any) -> Any:
    return KLMonitor(**settings).observe(
        batch["logits"], batch["logits"], batch["tokens"], batch["mask"], behavior_logp=logp
    )


ENGINES = [
    Engine(0.7),
    Engine(1.3),
    Engine(1.0, 0.9),
    Engine(1.0, 1.0, 3),
    Engine(0.8, 0.85),
    Engine(1.0, 0.87),
    Engine(1.2, 1.0, 4),
]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_an_engine_is_found(batch: dict[str, Any], engine: Engine) -> None:
    said, inside = spoken(batch, engine), batch["mask"].bool()
    found = observed(batch, said["logp"])
    own = batch["logits"].log_softmax(-1).gather(-1, batch["tokens"].unsqueeze(-1)).squeeze(-1)
    assert found.engine_temperature == pytest.approx(engine.temperature, abs=1e-6)
    assert found.engine_kept == pytest.approx(said["kept"][inside].mean().item(), abs=1e-6)
    warm, cut = (said["before"] - own)[inside], -said["kept"].log()[inside]
    assert found.mismatch_temperature == pytest.approx(warm.abs().mean().item(), abs=1e-6)
    assert found.mismatch_truncation == pytest.approx(cut.mean().item(), abs=1e-6)
    assert found.mismatch_rounding == pytest.approx(0, abs=1e-6)
    off = (said["logp"] - own)[inside]
    assert found.mismatch == pytest.approx(off.abs().mean().item(), abs=1e-9)
    assert found.mismatch > 0.01
    # K3 of KL(engine || trainer) by hand
    assert found.mismatch_kl == pytest.approx(((-off).exp() - 1 + off).mean().item(), abs=1e-9)


def test_top_k_then_top_p_where_both_are_declared(batch: dict[str, Any]) -> None:
    engine = Engine(0.9, 0.8, 4)
    batch["tokens"] = batch["logits"].argmax(-1)
    said = spoken(batch, engine)
    found = observed(batch, said["logp"], engine=engine)
    assert found.engine_kept == pytest.approx(said["kept"][batch["mask"].bool()].mean().item(), abs=1e-9)
    assert found.mismatch_rounding == pytest.approx(0, abs=1e-9)


def test_the_trainers_temperature_is_where_the_comparison_starts(batch: dict[str, Any]) -> None:
    said = spoken(batch, Engine(0.8, 0.9))
    found = observed(batch, said["logp"], temperature=0.8, engine=(0.8, 1.0, 0))
    assert found.mismatch_temperature == 0
    assert found.engine_temperature == 0.8
    assert found.engine_kept == pytest.approx(said["kept"][batch["mask"].bool()].mean().item(), abs=1e-9)
    elsewhere = observed(batch, spoken(batch, Engine(1.0))["logp"], temperature=0.8)
    assert elsewhere.engine_temperature == pytest.approx(1.0, abs=1e-6)


def test_rounding_is_not_explained_by_a_temperature(batch: dict[str, Any]) -> None:
    draw = torch.Generator().manual_seed(3)
    noise = 0.01 * torch.randn(ANSWERS, LENGTH, generator=draw, dtype=torch.float64)
    own = batch["logits"].log_softmax(-1).gather(-1, batch["tokens"].unsqueeze(-1)).squeeze(-1)
    found = observed(batch, own + noise)
    assert (found.engine_temperature, found.engine_kept) == (1.0, 1.0)
    assert (found.mismatch_temperature, found.mismatch_truncation) == (0, 0)
    assert found.mismatch_rounding == pytest.approx(found.mismatch)
    warmed = observed(batch, spoken(batch, Engine(0.7))["logp"] + noise)
    assert warmed.engine_temperature == pytest.approx(0.7, abs=0.02)
    assert warmed.mismatch_truncation == 0


@pytest.mark.parametrize("engine", [Engine(0.8, 0.85), Engine(1.1, 1.0, 1), Engine(1.0)], ids=str)
def test_signed_parts_add_up_at_every_token(batch: dict[str, Any], engine: Engine) -> None:
    draw = torch.Generator().manual_seed(4)
    inside = batch["mask"].bool()
    said = -torch.rand(ANSWERS, LENGTH, generator=draw, dtype=torch.float64)
    own = batch["logits"].log_softmax(-1).gather(-1, batch["tokens"].unsqueeze(-1)).squeeze(-1)
    found = parts(batch["logits"], batch["tokens"], said, inside, engine)
    whole = found.temperature + found.truncation + found.rounding
    assert torch.allclose(whole, (said - own)[inside], rtol=0, atol=1e-12)
    assert (found.truncation >= 0).all()
    # a token that the engine would not have kept has no truncation to be explained by
    place = (batch["logits"] > batch["logits"].gather(-1, batch["tokens"].unsqueeze(-1))).sum(-1)[inside]
    if engine.top_k == 1:
        assert torch.equal(found.truncation > 0, place == 0)


def test_tokens_that_the_engine_did_not_score(batch: dict[str, Any]) -> None:
    said = spoken(batch, Engine(0.7))["logp"]
    said[0, 1] = said[1] = math.nan
    found = observed(batch, said)
    assert found.engine_temperature == pytest.approx(0.7, abs=1e-6)
    assert math.isfinite(found.mismatch)
    nothing = observed(batch, torch.full_like(said, math.nan))
    assert nothing.mismatch is None
    assert nothing.engine_kept is None


def test_many_tokens_are_fitted_by_the_most_open_ones() -> None:
    draw = torch.Generator().manual_seed(5)
    logits = torch.randn(4, 100, 6, generator=draw, dtype=torch.float64)
    tokens = logits.argmax(-1)
    inside = torch.ones(4, 100, dtype=torch.bool)
    entropy = torch.distributions.Categorical(logits=logits).entropy().flatten()
    said = (logits / 0.6).log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    closed = entropy.view(4, 100) < entropy.median()
    found = fitted(logits, tokens, said.where(~closed, -9.0), inside, entropy)
    assert found.temperature == pytest.approx(0.6, abs=1e-6)
    one = torch.zeros_like(inside)
    one[0, 0] = True  # a single token explains nothing
    assert fitted(logits, tokens, said, one, entropy[:1]) == Engine()
