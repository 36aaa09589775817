"""Every column of an observation, against enumeration of all draws on a vocabulary of three tokens."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from kl_companion.kl_term import KLTerm
from kl_companion.monitor import KLMonitor, Observation
from kl_companion.monitor.observation import COLUMNS
from tests.oracles import monitor as oracle
from tests.support.data import data
from tests.support.monitored import inside, small_batch

DATA = data(__file__)

NEAR = {"rel": 1e-9, "abs": 1e-12}
T_2 = 4.302652729911275  # Student's 97.5 % quantile of two degrees of freedom
LENGTHS = [1, 2, 2]


@pytest.fixture
def batch() -> dict[str, Any]:
    return small_batch()


def rows_of(batch: dict[str, Any], temperature: float = 1.0) -> list[tuple[list[float], list[float]]]:
    """(p, q) of every token under the mask."""
    both = (inside(batch, name).tolist() for name in ("logits", "ref_logits"))
    return [tuple(oracle.softmax(x, temperature) for x in pair) for pair in zip(*both, strict=True)]  # type: ignore[misc]


def sums(values: list[float]) -> list[float]:
    """Of answers of `LENGTHS` tokens."""
    return [sum(values[:1]), sum(values[1:3]), sum(values[3:])]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_exact_kls_and_their_intervals(batch: dict[str, Any], temperature: float) -> None:
    found = KLMonitor(temperature=temperature).observe(**batch)
    rows = rows_of(batch, temperature)
    reverse, forward = [oracle.kl(p, q) for p, q in rows], [oracle.kl(q, p) for p, q in rows]
    mean, low, high = oracle.ratio_interval(sums(reverse), LENGTHS, T_2)
    assert (found.kl, found.kl_high) == (pytest.approx(mean, **NEAR), pytest.approx(high, **NEAR))
    assert found.kl_low == pytest.approx(max(0.0, low), **NEAR)
    mean, low, high = oracle.ratio_interval(sums(forward), LENGTHS, T_2)
    assert (found.forward_kl, found.forward_kl_high) == pytest.approx((mean, high), **NEAR)
    assert found.forward_kl_low == pytest.approx(max(0.0, low), **NEAR)
    assert found.kl_of_answers == pytest.approx(sum(reverse) / 3, **NEAR)
    assert found.entropy == pytest.approx(sum(-oracle.kl(p, [1.0] * 3) for p, _ in rows) / 5, **NEAR)
    assert (found.answers, found.tokens) == (3, 5)


def test_an_interval_above_zero_keeps_its_lower_end() -> None:
    batch = small_batch()
    for name in ("logits", "ref_logits"):  # the same row everywhere: no answer differs from another
        batch[name] = batch[name][:1, :1].expand(3, 3, 3)
    found = KLMonitor().observe(**batch)
    assert found.kl_low == pytest.approx(found.kl, rel=1e-9)
    assert found.kl > 0.05


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_the_errors_are_those_of_all_draws(spread: float) -> None:
    batch = small_batch(spread=spread)
    found = KLMonitor(estimator="k2").observe(**batch, logged=0.25)
    rows = rows_of(batch)
    of = {fn: oracle.mean_and_error(rows, fn) for fn in (oracle.k1, oracle.k2, oracle.k3)}
    assert found.k1_error == pytest.approx(of[oracle.k1][1], **NEAR)
    assert found.k2_error == pytest.approx(of[oracle.k2][1], **NEAR)
    assert found.k3_error == pytest.approx(of[oracle.k3][1], **NEAR)
    assert found.k2_bias == pytest.approx(of[oracle.k2][0] - of[oracle.k1][0], **NEAR)
    assert found.logged_expected == pytest.approx(of[oracle.k2][0], **NEAR)
    assert found.logged_error == pytest.approx(of[oracle.k2][1], **NEAR)
    assert found.logged_bias == pytest.approx(found.k2_bias, **NEAR)
    assert found.logged_noise == pytest.approx(0.25 - of[oracle.k2][0], **NEAR)


def test_a_clamp_is_part_of_the_trainers_number(batch: dict[str, Any]) -> None:
    found = KLMonitor(estimator="k3", clamp=(-0.4, 0.3)).observe(**batch)
    wanted = oracle.mean_and_error(rows_of(batch), lambda u: oracle.k3(min(max(u, -0.4), 0.3)))
    assert (found.logged_expected, found.logged_error) == pytest.approx(wanted, **NEAR)
    ratios = [
        math.log(p[y] / q[y]) for (p, q), y in zip(rows_of(batch), inside(batch, "tokens"), strict=True)
    ]
    assert found.dead_zone == sum(u < -0.4 or u > 0.3 for u in ratios) / 5
    assert 0 < found.dead_zone < 1
    assert found.largest_log_ratio == pytest.approx(max(map(abs, ratios)), **NEAR)
    assert found.k3_error == pytest.approx(oracle.mean_and_error(rows_of(batch), oracle.k3)[1], **NEAR)


def test_estimators_of_whole_distributions(batch: dict[str, Any]) -> None:
    exact = KLMonitor(estimator="exact_kl").observe(**batch)
    assert (exact.logged_bias, exact.logged_error) == (pytest.approx(0, abs=1e-12), 0)
    head = KLMonitor(estimator="top_k_reverse_kl(1)").observe(**batch)
    assert head.logged_bias == pytest.approx(0, abs=1e-12)
    assert 0 < head.logged_error < exact.k1_error


# -- the pull on the length ----------------------------------------------------------------------------------


def expected_k3(logits: torch.Tensor, ref: torch.Tensor) -> Any:
    """K3 as a loss of a token that is drawn: its probability carries no gradient."""
    p = logits.softmax(-1)
    return lambda logp: (p * ((ref - logp).exp() - 1 - (ref - logp))).sum() / 3


def exact(logits: torch.Tensor, ref: torch.Tensor) -> Any:
    return lambda logp: (logp.exp() * (logp - ref)).sum() / 3


def expected_clamped(logits: torch.Tensor, ref: torch.Tensor) -> Any:
    p = logits.softmax(-1)
    return lambda logp: (p * (logp - ref).clamp(-0.4, 0.3) ** 2 / 2).sum() / 3


@pytest.mark.parametrize(
    ("term", "clamp", "wanted"),
    [
        (None, None, exact),
        ("k2", None, exact),
        ("k3", None, expected_k3),
        (KLTerm("k3", importance="token", ratio="attached"), None, exact),
        (KLTerm("k1", "reward", "sequence"), None, exact),
        ("k2", (-0.4, 0.3), expected_clamped),
        ("exact_kl", None, exact),
        ("k3_plus_plus", None, exact),
    ],
)
@pytest.mark.parametrize("ends", [(2,), (0, 1)])
def test_the_pull_of_the_kl_term(
    batch: dict[str, Any], term: Any, clamp: Any, wanted: Any, ends: tuple[int, ...]
) -> None:
    found = KLMonitor(term=term, clamp=clamp, beta=0.3, eos_token_id=ends).observe(**batch)
    logits, ref = inside(batch, "logits"), inside(batch, "ref_logits").log_softmax(-1)
    pull = oracle.pull(logits, ends, wanted(logits, ref))
    assert found.length_pull_kl == pytest.approx(0.3 * pull, **NEAR)
    assert abs(pull) > 1e-3


@pytest.mark.parametrize("per_token", [False, True])
def test_the_pull_of_the_reward_term(batch: dict[str, Any], per_token: bool) -> None:
    advantages = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    if per_token:
        advantages = advantages[:, None] * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    found = KLMonitor(eos_token_id=2).observe(**batch, advantages=advantages)
    whole = advantages if per_token else advantages[:, None].expand(3, 3)
    weights, tokens = whole[batch["mask"].bool()], inside(batch, "tokens")
    pull = oracle.pull(
        inside(batch, "logits"), (2,), lambda logp: -(weights * logp[range(5), tokens]).sum() / 3
    )
    assert found.length_pull_reward == pytest.approx(pull, **NEAR)
    assert found.length_pull_kl is None  # without a coefficient there is no KL term


# -- rewards -------------------------------------------------------------------------------------------------

REWARDS = torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0, 6.0])
GROUPS = torch.tensor([0, 0, 1, 1, 2, 2])


def test_groups(batch: dict[str, Any]) -> None:
    given = {**batch, "rewards": REWARDS, "prompt_index": GROUPS}
    found = KLMonitor(beta=0.1, rewards_divided="group_std").observe(**given)
    assert (found.reward, found.equal_groups) == pytest.approx((11 / 6, 1 / 3))
    assert found.effective_beta == pytest.approx(0.1 * (math.sqrt(0.5) + 0 + math.sqrt(8)) / 3)
    whole = KLMonitor(beta=0.1, rewards_divided="batch_std").observe(**given)
    assert whole.effective_beta == pytest.approx(0.1 * REWARDS.std().item())
    assert KLMonitor(beta=0.1).observe(**given).effective_beta == 0.1
    assert KLMonitor(beta=0.1, rewards_divided="else").observe(**given).effective_beta is None
    given["deviations"] = torch.tensor([1.0, 1.0, 2.0, 2.0, 6.0, 6.0])
    assert KLMonitor(beta=0.1).observe(**given).effective_beta == pytest.approx(0.3)
    given["deviations"] = 0.5
    assert KLMonitor(beta=0.1).observe(**given).effective_beta == pytest.approx(0.05)
    given["rewards"] = REWARDS.where(REWARDS < 6, torch.nan)  # one was not scored: its group is one answer
    found = KLMonitor(beta=0.1).observe(**given)
    assert (found.reward, found.equal_groups) == pytest.approx((1, 1 / 2))


def test_groups_of_different_sizes_count_alike(batch: dict[str, Any]) -> None:
    index, deviations = torch.tensor([0, 0, 0, 1]), torch.tensor([1.0, 1.0, 1.0, 5.0])
    given = {**batch, "rewards": torch.ones(4), "prompt_index": index, "deviations": deviations}
    found = KLMonitor(beta=1.0).observe(**given)
    assert (found.effective_beta, found.equal_groups) == (3, 1)  # a single answer agrees with nobody
    without = KLMonitor(beta=1.0).observe(**batch, deviations=deviations)
    assert (without.effective_beta, without.equal_groups) == (2, None)
    two = KLMonitor(beta=1.0, rewards_divided="batch_std")
    assert two.observe(**batch, rewards=torch.tensor([0.0, 2.0])).effective_beta == pytest.approx(2**0.5)
    assert two.observe(**batch, rewards=torch.tensor([0.0])).effective_beta is None


def test_one_answer_has_no_interval(batch: dict[str, Any]) -> None:
    found = KLMonitor().observe(**{name: x[1:2] for name, x in batch.items()})
    assert found.kl > 0
    assert found.kl_low is None
    assert found.forward_kl_high is None
    two = KLMonitor().observe(**{name: x[1:] for name, x in batch.items()})
    both = [oracle.kl(p, q) for p, q in rows_of(batch)[1:]]
    wanted = oracle.ratio_interval([sum(both[:2]), sum(both[2:])], [2, 2], 12.706204736174698)
    assert two.kl_high == pytest.approx(wanted[2], **NEAR)


# -- what is given -------------------------------------------------------------------------------------------


def test_sampled_log_probs_alone(batch: dict[str, Any]) -> None:
    ids = batch["tokens"].unsqueeze(-1)
    logp, ref_logp = (
        batch[name].log_softmax(-1).gather(-1, ids).squeeze(-1) for name in ("logits", "ref_logits")
    )
    given = {"tokens": batch["tokens"], "mask": batch["mask"], "logp": logp, "ref_logp": ref_logp}
    more = {"behavior_logp": logp - 0.1, "logged": 0.3}
    found = KLMonitor(estimator="k3", clamp=(-0.4, 0.3)).observe(None, None, **given, **more)
    whole = KLMonitor(estimator="k3", clamp=(-0.4, 0.3)).observe(**batch, **more)
    for name in ("largest_log_ratio", "dead_zone", "mismatch", "mismatch_kl", "logged"):
        assert getattr(found, name) == pytest.approx(getattr(whole, name), **NEAR)
    assert found.mismatch == pytest.approx(0.1)
    assert found.mismatch_kl == pytest.approx(math.exp(0.1) - 1 - 0.1)
    for name in ("kl", "entropy", "logged_expected", "k1_error", "engine_temperature", "length_pull_kl"):
        assert getattr(found, name) is None


def test_at_the_clamps_ends_there_is_a_gradient() -> None:
    logp, ref_logp = torch.tensor([[-1.0, -2.0, -1.0, -4.0]]), torch.tensor([[-2.0, -1.0, -2.5, -1.0]])
    found = KLMonitor(clamp=(-1, 1)).observe(
        None, None, torch.zeros(1, 4).long(), torch.ones(1, 4), logp=logp, ref_logp=ref_logp
    )
    assert found.dead_zone == 0.5
    assert found.largest_log_ratio == 3


def test_masked_tokens_of_the_vocabulary() -> None:
    batch = small_batch()
    wider = {
        name: torch.cat([batch[name], torch.full((3, 3, 1), -math.inf, dtype=torch.float64)], -1)
        for name in ("logits", "ref_logits")
    }
    monitor = KLMonitor(beta=1.0, estimator="k3", eos_token_id=2)
    found, wanted = monitor.observe(**{**batch, **wider}), monitor.observe(**batch)
    for name in ("kl", "forward_kl", "entropy", "k3_error", "logged_expected", "length_pull_kl"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), **NEAR)


def test_halves_are_read_in_double_precision(batch: dict[str, Any]) -> None:
    short = {name: batch[name].bfloat16() for name in ("logits", "ref_logits")}
    found = KLMonitor().observe(**{**batch, **short})
    wanted = KLMonitor().observe(**{**batch, **{name: x.double() for name, x in short.items()}})
    assert found.kl == wanted.kl


def test_nothing_is_changed_and_nothing_gets_a_gradient(batch: dict[str, Any]) -> None:
    batch["logits"].requires_grad_()
    before, version = batch["logits"].detach().clone(), batch["logits"]._version
    KLMonitor(term="k3", beta=1.0, eos_token_id=1).observe(**batch)
    assert torch.equal(batch["logits"], before)
    assert batch["logits"]._version == version
    assert batch["logits"].grad is None


@pytest.mark.parametrize(
    ("change", "said"),
    DATA["refused"],
)
@pytest.mark.usefixtures("as_installed")
def test_what_is_refused_leaves_nothing_behind(
    batch: dict[str, Any], change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    monitor = KLMonitor(tmp_path / "run")
    with pytest.raises(ValueError, match=said):
        monitor.observe(**{**batch, **{name: eval(x) for name, x in change.items()}})
    assert not (tmp_path / "run").exists()
    assert monitor.observations == []


def test_what_stands_outside_of_the_mask_is_never_read(batch: dict[str, Any]) -> None:
    outside = batch["mask"] == 0
    said = torch.full((3, 3), -1.0)
    plain = KLMonitor(beta=1.0).observe(**batch, behavior_logp=said, advantages=said, deviations=0.0)
    batch["tokens"] = batch["tokens"].masked_fill(outside, -7)
    said = said.masked_fill(outside, math.inf)
    for name in ("logits", "ref_logits"):
        batch[name] = batch[name].masked_fill(outside.unsqueeze(-1), math.nan)
    found = KLMonitor(beta=1.0).observe(**batch, behavior_logp=said, advantages=said, deviations=0.0)
    assert {**found.known(), "seconds": 0} == {**plain.known(), "seconds": 0}
    assert found.effective_beta == 0


def test_an_infinite_kl_is_refused(batch: dict[str, Any]) -> None:
    batch["ref_logits"][1, 0, 2] = -math.inf
    with pytest.raises(ValueError, match="the reference gives token 2 probability 0"):
        KLMonitor().observe(**batch)
    batch["logits"][1, 0, 2] = -math.inf
    batch["tokens"][1, 0] = 2
    with pytest.raises(ValueError, match="a sampled token has probability 0 under the policy"):
        KLMonitor().observe(**batch)


def test_an_end_outside_the_vocabulary(batch: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="eos_token_id is 3, expected 0 to 2"):
        KLMonitor(eos_token_id=[1, 3]).observe(**batch)


# -- the folder ----------------------------------------------------------------------------------------------


def test_what_is_written(batch: dict[str, Any], tmp_path: Path) -> None:
    monitor = KLMonitor(tmp_path / "a/run", beta=0.1, estimator="k3", clamp=(-1, 1), model="tiny")
    first = monitor.observe(**batch, step=10, loss=torch.tensor(0.5))
    monitor.observe(**batch)
    with (tmp_path / "a/run/kl_monitor.csv").open(newline="") as stream:
        header, *rows = list(csv.reader(stream))
    assert tuple(header) == COLUMNS == tuple(Observation.__dataclass_fields__)
    assert [row[0] for row in rows] == ["10", "1"]
    read = dict(zip(header, rows[0], strict=True))
    assert float(read["kl"]) == pytest.approx(first.kl, rel=1e-9)
    assert (read["loss"], read["mismatch"], read["answers"]) == ("0.5", "", "3")
    lines = [json.loads(x) for x in (tmp_path / "a/run/kl_monitor_tokens.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 1]
    ratios = [abs(token["log_ratio"]) for token in lines[0]["tokens"]]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] == pytest.approx(first.largest_log_ratio)
    assert json.loads((tmp_path / "a/run/kl_monitor.json").read_text()) == DATA["settings"]


def test_due() -> None:
    assert not KLMonitor(every=10).due(0)
    assert [step for step in range(1, 31) if KLMonitor(every=10).due(step)] == [1, 10, 20, 30]
