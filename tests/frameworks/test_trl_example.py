"""The training that is there to be tried: it runs, is TRL's when told so, and says what cannot work."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read by the libraries when they are imported

import pytest

from kl_companion.frameworks.trl_example import main, train
from kl_companion.frameworks.trl_trainer import ema_anchor
from kl_companion.kl_term import KLTerm


def test_told_to_do_what_trl_does_it_reaches_the_same_weights() -> None:
    stock = train(stock=True, steps=2, beta=0.3)
    same = train(KLTerm("k3", importance="token", ratio="attached"), steps=2, beta=0.3)
    other = train("exact_kl", steps=2, beta=0.3)
    assert (stock.parameters - same.parameters).abs().max() < 1e-6
    assert (stock.parameters - other.parameters).abs().max() > 1e-5
    assert [row["step"] for row in stock.log] == [1, 2]
    assert stock.log[1]["kl"] == pytest.approx(same.log[1]["kl"], abs=1e-6)


def test_the_anchor_is_said_to_have_moved() -> None:
    assert train("k2", steps=1).drawn == 0
    assert train("k2", steps=1, **ema_anchor(decay=0.5)).drawn > 0.01


def test_a_watcher_gets_the_trainer_before_it_trains() -> None:
    steps: list[int] = []
    train(stock=True, steps=1, watch=lambda trainer: steps.append(trainer.state.global_step))
    assert steps == [0]


def test_the_program_prints_a_line_per_step(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--kl", "k1", "--placement", "reward", "--steps", "2"])
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["step", "reward", "kl"]
    assert [line.split()[0] for line in lines] == ["1", "2"]


def test_what_cannot_work() -> None:
    with pytest.raises(ValueError, match="stock=True got kl='k2'"):
        train("k2", stock=True)
    with pytest.raises(SystemExit, match="trl_example: unknown estimator 'k33'"):
        main(["--kl", "k33"])
    with pytest.raises(SystemExit, match=r"trl_example: kl=.* got beta = 0"):
        main(["--beta", "0"])
