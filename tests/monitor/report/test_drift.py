"""The policy: how far it went, how beta acts, whether it still chooses; each on both sides of its bound."""

import pytest

from kl_companion.monitor.report import drift, read_run
from tests.support import monitored_runs as runs


def judged(tmp_path, rule, change=lambda _i, _r: {}, count=40, **settings):
    return rule(read_run(runs.write(tmp_path, runs.changed(change, count=count), settings)))


def far_away(kl):
    return lambda _i, _r: {"kl": kl, "kl_low": 0.9 * kl, "kl_high": 1.1 * kl, "kl_of_answers": 100 * kl}


@pytest.mark.parametrize(("kl", "level"), [(0.29, None), (0.31, "attention"), (1.2, "wrong")])
def test_far_by_the_size_of_the_kl(tmp_path, kl, level):
    found = judged(tmp_path, drift.far, far_away(kl))
    assert (found and found.level) == level
    if found:
        assert f"{round(100 * kl)} per answer" in found.says
        assert f"typically e^{round(100 * kl)} times likelier" in found.why
        assert "The reward went from 0.5" in found.why


def test_what_the_headline_averages_is_said(tmp_path):
    rows = far_away(0.4)
    few = judged(tmp_path, drift.far, lambda i, r: rows(i, r) | {"kl_of_answers": 0.91}, count=3)
    assert few.says == "Over the last 3 observations the KL is 0.4 nats per token (0.91 per answer)."
    assert "typically about 2.5 times likelier" in few.why
    (tmp_path / "one").mkdir()
    one = judged(tmp_path / "one", drift.far, rows, count=1)
    assert one.says == "The KL is 0.4 nats per token (40 per answer)."


def test_a_kl_that_grows_with_the_steps_is_what_training_is(tmp_path):
    def linear(i, _):
        kl = 0.005 * (i + 1)
        return {"kl": kl, "kl_low": 0.9 * kl, "kl_high": 1.1 * kl}

    assert judged(tmp_path, drift.far, linear) is None


@pytest.mark.parametrize(("half", "grown"), [(0.05, True), (0.6, False)])
def test_growth_has_to_be_beyond_doubt(tmp_path, half, grown):
    def change(i, _):
        kl = 0.02 * 1.06**i
        return {"kl": kl, "kl_low": (1 - half) * kl, "kl_high": (1 + half) * kl}

    found = judged(tmp_path, drift.far, change)
    assert (found is not None) == grown
    if found:
        assert ", 2.9 times as much as around step 200." in found.says


@pytest.mark.parametrize(
    ("acts", "level", "says"),
    [
        (0.011, None, ""),
        (0.008, "attention", "β = 0.04 acts like 0.008: 5 times weaker."),
        (0.001, "wrong", "β = 0.04 acts like 0.001: 40 times weaker."),
        (0.2, "attention", "β = 0.04 acts like 0.2: 5 times stronger."),
    ],
)
def test_beta_by_its_factor(tmp_path, acts, level, says):
    found = judged(tmp_path, drift.effective_beta, lambda _i, _r: {"effective_beta": acts})
    assert (found and found.level) == level
    assert (found.says if found else "") == says
    if acts == 0.008:
        assert "0.2 on average, which makes them 5 times larger" in found.why
        assert "set β to 0.2" in found.todo


@pytest.mark.parametrize(("share", "level"), [(0.49, None), (0.5, "attention"), (0.95, "wrong")])
def test_equal_groups_by_their_share(tmp_path, share, level):
    found = judged(tmp_path, drift.equal_groups, lambda _i, _r: {"equal_groups": share})
    assert (found and found.level) == level


@pytest.mark.parametrize(
    ("now", "start", "level"),
    [
        (0.35, 1.0, None),
        (0.25, 1.0, "attention"),
        (0.09, 1.0, "wrong"),
        (0.045, 0.12, "attention"),
        (0.06, 0.12, None),
        (0.04, 0.08, None),
    ],
)
def test_entropy_by_what_is_left_of_it(tmp_path, now, start, level):
    found = judged(tmp_path, drift.entropy, lambda i, _: {"entropy": start if i < 10 else now})
    assert (found and found.level) == level


@pytest.mark.parametrize(
    ("kl", "reward", "found"),
    [
        (0.009, 0.0, ""),
        (0.02, 0.05, ""),
        (0.03, 0.05, "shorter"),
        (-0.03, 0.05, "longer"),
        (0.02, None, "shorter"),
    ],
)
def test_pull_on_length_beside_that_of_the_reward(tmp_path, kl, reward, found):
    change = lambda _i, _r: {"length_pull_kl": kl, "length_pull_reward": reward}  # noqa: E731
    seen = judged(tmp_path, drift.length_pull, change)
    assert (seen is not None) == bool(found)
    assert not seen or seen.says.startswith(f"The KL term pulls toward {found} answers, with 0.0")


def test_the_answers_that_a_decision_needs(tmp_path):
    change = lambda _i, _r: {"kl": 0.02, "kl_low": 0.008, "kl_high": 0.032}  # noqa: E731
    found = judged(tmp_path, drift.wide, change)
    assert found.todo.startswith(("Read about 576 answers for ±20 %", "Read about 577 answers for ±20 %"))
    cut = judged(tmp_path, drift.wide, lambda _i, _r: {"kl": 0.02, "kl_low": 0.0, "kl_high": 0.05})
    assert cut.todo.startswith(("Read about 3,600 answers for ±20 %", "Read about 3,601 answers for ±20 %"))
    near = lambda _i, _r: {"kl": 0.02, "kl_low": 0.011, "kl_high": 0.029}  # noqa: E731
    assert judged(tmp_path, drift.wide, near) is None


def test_no_kl_needs_some_observations(tmp_path):
    same = lambda _i, _r: {"kl": 0.0}  # noqa: E731
    assert judged(tmp_path, drift.no_kl, same, count=4) is None
    assert judged(tmp_path, drift.no_kl, same, count=5).topic == "no_kl"
    assert judged(tmp_path, drift.no_kl, lambda i, _: {"kl": 0.001 if i == 2 else 0.0}) is None


@pytest.mark.parametrize(("last", "count", "found"), [(0.09, 40, False), (0.12, 40, True), (0.12, 9, False)])
def test_small_growth_and_short_runs_are_what_training_is(tmp_path, last, count, found):
    def change(i, _):
        kl = last * 1.08 ** (i + 1 - count)
        return {"kl": kl, "kl_low": 0.99 * kl, "kl_high": 1.01 * kl}

    assert (judged(tmp_path, drift.far, change, count) is not None) == found


def test_what_the_kl_bought_is_told(tmp_path):
    def change(i, row):
        return far_away(0.4)(i, row) | {"reward": 1.0 if i >= 35 else 0.5 if 18 <= i < 23 else 0.0}

    assert (
        "The reward went from 0.5 to 1 in the second half of the run."
        in judged(tmp_path, drift.far, change).why
    )


@pytest.mark.parametrize(("kl", "found"), [(5e-8, True), (1.5e-7, False)])
def test_rounding_of_two_passes_is_no_kl(tmp_path, kl, found):
    assert (judged(tmp_path, drift.no_kl, lambda _i, _r: {"kl": kl}) is not None) == found
