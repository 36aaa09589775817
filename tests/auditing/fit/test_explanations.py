"""One explanation on several worlds, from worlds that are written by hand."""

import pytest
import torch

from kl_companion.auditing.fit import explanations as matching
from kl_companion.auditing.fit.explanations import COMMON, Seen, matched, value_matches

FACTORS = [
    {"": 1.0, "tokens": 1.5, "positions": 3.0, "deviation": 0.7, "tokens_deviation": 1.05},
    {"": 1.0, "tokens": 1.2, "positions": 2.0, "deviation": 0.9, "tokens_deviation": 1.08},
    {"": 1.0, "tokens": 1.8, "positions": 2.0, "deviation": 1.3, "tokens_deviation": 2.34},
]
NAMES = ("kl", "squares", "entropy", "mass", "reward", "score")


def fields(i):
    made = torch.randn(6, 9, generator=torch.Generator().manual_seed(i), dtype=torch.float64)
    return dict(zip(NAMES, made, strict=True))


def worlds(**parts):
    """Worlds whose gradient is the sum of ``name=(coefficient, unit or one factor per world)``."""
    out = []
    for i, factors in enumerate(FACTORS):
        known = fields(i)
        gradient = torch.zeros(9, dtype=torch.float64)
        for name, (c, unit) in parts.items():
            gradient = gradient + c / (factors[unit] if isinstance(unit, str) else unit[i]) * known[name]
        out.append(Seen(0.0, gradient, False, known, {}, factors))
    return out


@pytest.mark.parametrize(
    ("parts", "units"),
    [
        ({"kl": (0.04, "")}, {"kl": ""}),
        ({"kl": (0.04, "tokens")}, {"kl": "tokens"}),
        ({"kl": (-2.0, "positions")}, {"kl": "positions"}),
        ({"reward": (-1.0, "deviation"), "kl": (0.5, "")}, {"reward": "deviation", "kl": ""}),
        ({"reward": (-1.0, ""), "kl": (0.5, "tokens")}, {"reward": "", "kl": "tokens"}),
        (
            {"reward": (-3.0, (1.5 * 0.701, 1.2 * 0.901, 1.8 * 1.301)), "kl": (0.5, "tokens")},
            {"reward": "tokens_deviation", "kl": "tokens"},
        ),
        (
            {"kl": (1.0, "tokens"), "squares": (2.0, "tokens"), "entropy": (3.0, "tokens")},
            {"kl": "tokens", "squares": "tokens", "entropy": "tokens"},
        ),
        ({"kl": (1.0, (1.0, 1.1, 0.7))}, {"kl": COMMON}),
        ({"kl": (1.0, (1.0, 1.1, 0.7)), "reward": (-2.0, (1.0, 1.1, 0.7))}, {"kl": COMMON, "reward": COMMON}),
        ({"reward": (-1.0, (0.701, 0.901, 1.301)), "kl": (0.5, "")}, {"reward": "deviation", "kl": ""}),
        ({"kl": (1.0, (1.0, 1.0, 1.0 + 1e-5))}, {"kl": COMMON}),
        ({"kl": (1.0, (1.0, 1.0, 1.0 + 1e-9))}, {"kl": ""}),
    ],
)
def test_a_coefficient_is_a_constant_or_has_a_unit_or_all_share_one_factor(parts, units):
    (found,), residual = matched(worlds(**parts), max_terms=3)
    assert found.units == units
    assert residual < 1e-12
    assert found.coefficients == pytest.approx({n: c for n, (c, _) in parts.items()}, rel=1e-8)


def test_of_sums_that_hold_those_with_constants_are_kept():
    for turned in (False, True):
        seen = worlds(kl=(2.0, "tokens"))
        for i, w in enumerate(seen):
            other = {"other": (1.0 + i * i) * w.fields["kl"]}  # the same up to a number of the world
            both = {**other, **w.fields} if turned else {**w.fields, **other}
            seen[i] = w._replace(fields=both)
        found, _ = matched(seen, max_terms=3)
        assert [(e.coefficients, e.units) for e in found] == [({"kl": 2.0}, {"kl": "tokens"})]


def test_a_sum_has_to_hold_on_every_world():
    seen = worlds(kl=(1.0, ""))
    last = seen[-1]
    seen[-1] = last._replace(gradient=last.gradient + 0.1 * last.fields["score"] + 0.1 * last.fields["mass"])
    found, residual = matched(seen, max_terms=1)
    assert found == ()
    assert 0.01 < residual < 1
    # a longer one adds zeros on the first world: it is no nearer, however small its residual there
    assert matched(seen, max_terms=3) == ((), residual)


def test_a_longer_sum_that_only_adds_zeros_is_not_looked_at(monkeypatch):
    seen = worlds(kl=(1.0, ""))
    seen[-1] = seen[-1]._replace(gradient=seen[-1].gradient + seen[-1].fields["score"])
    tried = []
    monkeypatch.setattr(
        matching, "_on_all", lambda _, sums, *__: tried.extend(sums) or [(None, 1.0)] * len(sums)
    )
    matched(seen, max_terms=3)
    assert tried == [["kl"], ["kl"]]  # for each of two tolerances; not with one and two of five others


def test_where_a_coefficient_may_not_vary_the_residual_is_that_of_one_for_all():
    factors = (1.0, 1.1, 0.7)
    seen = worlds(kl=(1.0, factors))
    assert matched(seen, max_terms=1)[0][0].units == {"kl": COMMON}
    found, residual = matched(seen, max_terms=1, may_vary=False)
    assert found == ()
    assert 0.05 < residual < 0.5
    assert matched(worlds(kl=(1.0, "tokens")), max_terms=1, may_vary=False)[0][0].units == {"kl": "tokens"}


@pytest.mark.parametrize(
    "parts",
    [
        {"kl": (1.0, (1.0, 1.1, -0.7))},  # of either sign
        {"kl": (1.0, (1.0, 1.1, 0.7)), "squares": (1.0, (1.0, 2.0, 3.0))},
        {"kl": (1.0, (1.0, 1.1, 0.7)), "squares": (3.0, "")},  # one constant beside it is not enough
        {"kl": (1.0, (1.0, 1.1, 0.7)), "squares": (1.0, (1.0, -1.1, 0.7)), "reward": (1.0, (2.0, 1.0, 1.0))},
    ],
)
def test_a_sum_with_a_free_coefficient_is_unknown_and_the_residual_is_that_of_constants(parts):
    found, residual = matched(worlds(**parts), max_terms=3, beside=("reward",))
    assert found == ()
    assert 0.01 < residual < 1


@pytest.mark.parametrize(("entries", "known"), [(2, True), (1, False)])
def test_a_factor_of_all_does_not_count_where_the_worlds_have_no_more_entries_than_numbers_are_free(
    entries, known
):
    seen = [
        w._replace(gradient=w.gradient[:entries], fields={n: f[:entries] for n, f in w.fields.items()})
        for w in worlds(kl=(1.0, (1.0, 1.1, 0.7)))
    ]
    units = [set(e.units.values()) for e in matched(seen, max_terms=1)[0]]
    assert units == ([{COMMON}] if known else [])


def test_rewards_stand_beside_a_sum_uncounted():
    seen = worlds(kl=(1.0, ""), squares=(2.0, ""), entropy=(0.5, ""), reward=(-1.0, ""))
    assert matched(seen, max_terms=3)[0] == ()
    (found,), _ = matched(seen, max_terms=3, beside=("reward", "score"))
    assert found.coefficients == {"kl": 1.0, "squares": 2.0, "entropy": 0.5, "reward": -1.0}
    two = worlds(kl=(1.0, ""), squares=(1.0, ""), reward=(1.0, ""), score=(1.0, ""))
    assert matched(two, max_terms=2, beside=("reward", "score"))[0] == ()  # one of them, not both


@pytest.mark.parametrize(("noise", "found"), [(1e-11, True), (3e-7, True), (3e-5, False)])
def test_a_small_constant_of_the_reader_is_rounding(noise, found):
    seen = []
    for i, w in enumerate(worlds(kl=(1 / 3, ""))):
        away = torch.randn(9, generator=torch.Generator().manual_seed(90 + i), dtype=torch.float64)
        seen.append(w._replace(gradient=w.gradient + noise * w.gradient.norm() * away / away.norm()))
    explanations, residual = matched(seen, max_terms=1)
    assert noise / 3 < residual < 1.01 * noise
    assert bool(explanations) is found
    if found:  # as many digits as are known
        assert explanations[0].coefficients["kl"] == (0.333333333 if noise < 1e-9 else 0.33333)


def test_whose_value_it_is():
    values = [{"kl": 0.5, "other": 1.0}, {"kl": 1.5, "other": 2.0}]
    seen = [Seen(v["kl"] * 2, torch.ones(1), False, {}, v, f) for v, f in zip(values, FACTORS, strict=False)]
    assert value_matches(seen) == {"kl": 2.0}
    assert value_matches(seen[:1]) == {}
    assert value_matches([w._replace(value=0.0) for w in seen]) == {}
