"""The explorer's presets: what is said of each holds near it, by enumeration, and none is a special case."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from kl_book.explorer.enumerated import exact, trained
from kl_book.explorer.page import Notes
from kl_book.explorer.presets import PLAIN, PRESETS
from kl_book.explorer.sentences import Preset, Sentence, failures, neighborhood, same

SENTENCES = [(key, number) for key, preset in PRESETS.items() for number in range(len(preset.sentences))]


@pytest.mark.parametrize(("key", "number"), SENTENCES)
def test_a_sentence_holds_wherever_a_logit_moves(key: str, number: int) -> None:
    preset = PRESETS[key]
    assert failures(preset, preset.sentences[number]) == []


@pytest.mark.parametrize("key", PRESETS)
def test_a_neighborhood_moves_every_logit_both_ways(key: str) -> None:
    state = PRESETS[key].state
    roles = ["p", "q", "m"][: 2 + state["off"]]
    if state["world"] == "gauss":
        roles = [f"g{role}" for role in roles]
    wanted = []
    for role in roles:
        for j, step in itertools.product(range(len(state[role])), (0.1, -0.1)):
            values = list(state[role])
            values[j] += step
            wanted.append({**state, role: values})
    near = neighborhood(state)
    assert near[0] == state
    assert all(any(found == one for found in near) for one in wanted)
    together = near[1 + len(wanted) :]
    assert len(together) >= 10
    for one in together:  # every logit at once
        for role in roles:
            steps = [abs(a - b) for a, b in zip(one[role], state[role], strict=True)]
            assert steps == pytest.approx([0.1] * len(steps))


@pytest.mark.parametrize("key", PRESETS)
def test_no_two_arms_of_a_preset_are_alike(key: str) -> None:
    """Not in what the policy makes of the reference either: a move of 0.1 changes no order."""
    state = PRESETS[key].state
    ratios = [a - b for a, b in zip(state["p"], state["q"], strict=True)]
    for values in (state["p"], state["q"], state["m"], ratios):
        assert all(abs(a - b) > 0.1 for a, b in itertools.combinations(values, 2))
    assert len(set(state["r"])) in (1, len(state["r"]))


def test_a_knife_edge_is_found() -> None:
    """Arms 2 and 3 are copies of one another: K3 in the reward returns from there, and from nowhere near."""
    edge = {
        **PLAIN,
        "place": "reward",
        "p": [0.6, 0.0, 0.0],
        "q": [0.0, 0.6, 0.6],
        "r": [0.0, 0.0, 0.0],
    }
    returns = Sentence("Training ends at the reference.", lambda x: same(x.end, x.reference, 0.01))
    (there,) = trained([edge])
    assert returns.holds(there)
    assert len(failures(Preset("An edge", edge, (returns,)), returns)) > 5


@pytest.mark.parametrize("est", ["k1", "k2", "k3"])
@pytest.mark.parametrize("pair", [([0.0, 1.0], [0.5, 1.3]), ([-0.4, 1.5], [0.6, 0.8])])
def test_gaussians_have_their_closed_forms(est: str, pair: tuple[list[float], list[float]]) -> None:
    x = exact({**PLAIN, "world": "gauss", "est": est, "gp": pair[0], "gq": pair[1]})
    parameters = torch.tensor([pair[0][0], math.log(pair[0][1])], dtype=torch.float64, requires_grad=True)
    p, q = (
        Normal(parameters[0], parameters[1].exp()),
        Normal(*(torch.tensor(v, dtype=torch.float64) for v in pair[1])),
    )
    reverse, forward = kl_divergence(p, q), kl_divergence(q, p)
    by_reverse, by_forward = (
        torch.autograd.grad(kl, parameters, retain_graph=True)[0] for kl in (reverse, forward)
    )
    assert x.reverse_kl == pytest.approx(reverse.item(), abs=1e-9)
    assert x.forward_kl == pytest.approx(forward.item(), abs=1e-9)
    assert torch.allclose(x.reverse_gradient, by_reverse, atol=1e-9)
    assert torch.allclose(x.forward_gradient, by_forward, atol=1e-9)
    wanted = {"k1": torch.zeros(2, dtype=torch.float64), "k2": by_reverse, "k3": by_forward}
    assert torch.allclose(x.gradient, wanted[est], atol=1e-9)
    if est != "k2":
        assert x.bias == pytest.approx(0, abs=1e-9)
    if est == "k1":  # u = log(q/p) is a quadratic form of a standard normal variable
        mean, sd = pair[0]
        a = (1 - (sd / pair[1][1]) ** 2) / 2
        b = -(mean - pair[1][0]) * sd / pair[1][1] ** 2
        assert x.variance == pytest.approx(2 * a**2 + b**2, abs=1e-9)


@pytest.mark.parametrize(("sd", "infinite"), [(1.40, False), (1.42, True), (0.3, False)])
def test_the_variance_of_k3_is_infinite_from_twice_the_variance_on(sd: float, infinite: bool) -> None:
    state = {**PLAIN, "world": "gauss", "gp": [0.3, 1.0], "gq": [0.0, sd]}
    assert (exact(state).variance == math.inf) == infinite
    assert exact({**state, "est": "k1"}).variance < math.inf
    assert exact({**state, "est": "exact_kl"}).variance == 0


def test_only_settings_of_one_term_are_trained_together() -> None:
    assert trained([PRESETS["stale"].state])[0].end.numel() == 0


def test_the_page_says_every_sentence_once_in_whole_sentences() -> None:
    html, text = Notes().html, repr(Notes())
    for preset in PRESETS.values():
        assert f'aria-label="Load: {preset.label}"' in html
        for sentence in preset.sentences:
            assert html.count(sentence.text) >= 1
            assert sentence.text in text
            assert sentence.text[0].isupper()
            assert sentence.text.endswith(".")
