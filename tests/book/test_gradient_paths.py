"""Diagrams of the paths of a gradient: what is traced, how it is told, and what is drawn."""

import pytest

from kl_book.gradient_paths import GradientPath, gradient_paths, in_sentences, kl_words, trace
from kl_companion.plotting import color, on_dark

BOTH = ["reverse KL", "no KL", "reverse KL"]
OF_VALUE = ["reverse KL", "no KL", "reverse − forward KL"]
OF_DERIVATIVE = ["zero", "reverse KL", "forward KL"]


@pytest.mark.parametrize(
    ("loss", "factor", "flags", "expected"),
    [
        (lambda rho, k: k, "ρ", (False, False, True), ["no KL"] * 3),
        (lambda rho, k: rho.detach() * k, "ρ", (True, False, True), OF_DERIVATIVE),
        (lambda rho, k: rho * k, "ρ", (True, True, True), BOTH),
        (lambda rho, k: rho * k.detach(), "ρ", (True, True, False), OF_VALUE),
        (lambda logp, k: k, "log π", (False, False, True), OF_DERIVATIVE),
        (lambda logp, k: logp * k.detach(), "log π", (True, True, False), OF_VALUE),
    ],
)
def test_paths_are_traced_and_gradients_named(loss, factor, flags, expected):
    assert trace(loss, factor) == (*flags, dict(zip(("k1", "k2", "k3"), expected, strict=True)))


@pytest.mark.parametrize(
    ("matches", "residual", "words"),
    [
        ({}, 0.0, "zero"),
        ({}, 0.3, "no KL"),
        ({"sequence_forward_kl": 1.0, "sequence_reverse_kl": -1.0}, 0.0, "forward − reverse KL"),
        ({"sequence_reverse_kl": 2.0}, 0.0, "no KL"),
        ({"behavior_log_likelihood": 1.0}, 0.0, "no KL"),
    ],
)
def test_only_whole_kls_are_named(matches, residual, words):
    assert kl_words(matches, residual) == words


PATHS = {
    "sg(ρ) k": GradientPath(True, False, True, {"k1": "zero", "k2": "reverse KL"}),
    "ρ k": GradientPath(True, True, True, {"k1": "reverse KL", "k2": "no KL"}),
}


def test_readers_who_see_nothing_are_told_the_same():
    assert in_sentences(PATHS, "ρ") == (
        "sg(ρ) k: the gradient passes through k; K1 zero, K2 reverse KL. "
        "ρ k: the gradient passes through ρ and k; K1 reverse KL, K2 no KL."
    )


def test_a_cut_is_drawn_only_where_the_gradient_is_cut(monkeypatch):
    drawn = []
    monkeypatch.setattr("kl_book.gradient_paths.figure", lambda draw, **how: drawn.append((draw, how)))
    gradient_paths(PATHS, caption="Thin and thick.")
    ((draw, how),) = drawn
    assert (how["rows"], how["columns"], how["caption"]) == (1, 2, "Thin and thick.")
    from matplotlib.figure import Figure

    axes = list(Figure().subplots(1, 2))
    draw(axes)
    texts = [[text.get_text() for text in axis.texts] for axis in axes]
    assert [said.count("sg") for said in texts] == [1, 0]
    assert [len(axis.lines) for axis in axes] == [1, 0]  # the bar
    assert [sum(not text for text in said) for said in texts] == [9, 10]  # arrows of values, and of gradients
    assert all({"policy", "k", "ρ", "×", "loss", "K1", "reverse KL"} <= set(said) for said in texts)


def test_the_figure_has_both_themes():
    alone = {"k": GradientPath(False, False, True, {"k1": "zero"})}
    drawn = gradient_paths(alone, caption="c")
    shade = color("gradient")
    assert shade.encode() in drawn.svg["light-narrow"]
    assert on_dark(shade).encode() in drawn.svg["dark-narrow"]
    assert drawn.alt == in_sentences(alone, "ρ")
