"""The formulas that the explorer's page is given, and the package's numbers that it is compared with."""

from __future__ import annotations

import re

import pytest
import sympy
import torch

from kl_book.explorer import formulas
from kl_book.explorer.enumerated import estimator_of, exact, loss_of, problem_of, ratio_of
from kl_book.explorer.page import MOST_ARMS, Explorer
from kl_book.explorer.presets import PLAIN, PRESETS
from kl_companion import bandit, exact_moments, expected_gradient
from kl_companion.divergences import W
from kl_companion.estimators import ESTIMATORS
from kl_companion.theory.calculus import gradient_weight, value

LOG = sympy.log(W)


@pytest.mark.parametrize(
    ("expr", "low", "high"),
    [
        (W - 1 - LOG, 0, 1), (LOG**2 / 2, 0, 0), (W * LOG, 1, 1), ((W - 1) ** 2, 0, 2), (1 / W - 1, -1, 0),
        (sympy.sqrt(W) - 1, 0, 0.5), (sympy.S.Zero, 0, 0), (sympy.log((1 + W) / 2), 0, 0),
    ],
)  # fmt: skip
def test_growth_is_the_exponent_at_either_end(expr: sympy.Expr, low: float, high: float) -> None:
    assert formulas.growth(formulas.in_log_ratio(expr)) == (low, high)


def evaluated(text: str, u: float) -> float:
    """A printed arrow function, read as Python: an independent way through the same text."""
    import math

    body = text.partition("=>")[2]
    names = {"expm1": math.expm1, "exp": math.exp, "log": math.log, "abs": abs, "pow": pow}
    names["sqrt"], names["sign"] = math.sqrt, lambda x: (x > 0) - (x < 0)
    python = re.sub(r"Math\.(\w+)", r"\1", body)
    assert not re.search(r"[^\w\s+\-*/().,]", python), python
    return float(eval(python, {"__builtins__": {}}, {**names, "u": u}))


@pytest.mark.parametrize("name", [n for n, e in ESTIMATORS.items() if e.inputs == "sampled"])
def test_a_printed_estimator_is_the_estimator(name: str) -> None:
    for expr in (value(name), gradient_weight(name)):
        printed = formulas.function(expr)
        ends = re.search(r"growth: \[(\S+), (\S+)\]", printed)
        assert ends is not None
        forms = dict(re.findall(r"(at|low|high): (\(u\) => .*?)(?=, (?:growth|low|high): |\}$)", printed))
        assert set(forms) == {"at", "low", "high"}
        for u in (-3.7, -0.01, 0.01, 2.3):
            want = float(expr.subs(W, sympy.exp(sympy.Rational(str(u)))).evalf(30))
            got = [evaluated(forms["at"], u)]
            got += [evaluated(forms[end], u) * 2.718281828459045 ** (float(a) * u)
                    for end, a in zip(("low", "high"), ends.groups(), strict=True)]  # fmt: skip
            assert got == pytest.approx([want] * 3, rel=1e-9, abs=1e-12)


def test_every_registered_estimator_and_divergence_is_printed() -> None:
    text = formulas.script()
    for name, entry in ESTIMATORS.items():
        if entry.inputs == "sampled" or name in ("exact_kl", "exact_forward_kl"):
            assert f'"{name}": {{label: "{formulas.said_of(entry)}"' in text
    for name in formulas.DIVERGENCES:
        assert f'"{name}": {{label:' in text
    assert not re.search(r"\b(zoo|nan|oo|Derivative|Piecewise|StopGradient)\b|// Not supported", text)


@pytest.mark.parametrize("ratio", ["none", "detached", "attached"])
@pytest.mark.parametrize("est", ["k2", "k3", "k4"])
def test_two_ways_to_the_expected_gradient(est: str, ratio: str) -> None:
    state = {**PLAIN, "est": est, "off": True, "ratio": ratio}
    by_loss = expected_gradient(loss_of(state), problem_of(state)).flatten()
    assert torch.allclose(by_loss, exact(state).gradient, atol=1e-12)


def test_a_bandit_becomes_a_state_and_back() -> None:
    world = bandit(4, seed=3)
    lists = {"p": world.logits[0], "q": world.ref_logits[0], "m": world.logits[0], "r": world.rewards}
    state = {**PLAIN, **{name: x.tolist() for name, x in lists.items()}}
    want = exact_moments("k3", world)
    got = exact(state)
    assert got.value == pytest.approx(want.value, abs=1e-12)
    assert got.variance == pytest.approx(want.value_variance, abs=1e-12)
    assert torch.allclose(got.gradient, want.gradient.flatten(), atol=1e-12)


def test_choices_that_do_not_go_together() -> None:
    assert ratio_of({**PLAIN, "ratio": "attached"}) == "attached"
    assert ratio_of({**PLAIN, "ratio": "attached", "place": "reward"}) == "detached"
    assert ratio_of({**PLAIN, "ratio": "attached", "est": "exact_kl"}) == "detached"
    assert estimator_of({**PLAIN, "est": "top_k_reverse_kl", "k": 9}).name == "top_k_reverse_kl(3)"


def test_the_page_offers_every_preset_and_labels_every_control() -> None:
    html = Explorer().html
    assert all(f'data-preset="{name}"' in html for name in PRESETS)
    assert all(len(preset.state["p"]) <= MOST_ARMS for preset in PRESETS.values())
    for tag in ("select", "input"):
        for found in re.finditer(f"<{tag}[ >]", html):
            before = html[: found.start()]
            assert before.rfind("<label>") > before.rfind("</label>"), html[
                found.start() : found.start() + 60
            ]
    assert "</script" not in re.search(r'class="kl-data">(.*?)</script>', html, re.S).group(1)
