"""Settings are checked at the door: the message names what was got and what was wanted."""

import pytest

from kl_companion.llm.distillation import METHODS, distillation_settings
from kl_companion.llm.settings import Settings, expand


def test_lists_of_a_notebook_become_tuples(as_installed):
    assert Settings(clip=[0.2, 0.28]).clip == (0.2, 0.28)


def test_top_k_is_named_by_its_parts():
    settings = Settings(estimator="top_k_reverse_kl", k=3, form="published")
    assert settings.entry.name == "top_k_reverse_kl(3, published)"
    assert settings.entry.fn.k == 3
    assert settings.needs_logits
    assert Settings(estimator="top_k_reverse_kl(3, published)").entry.name == settings.entry.name
    assert not Settings(estimator="k2").needs_logits


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_settings(method):
    assert distillation_settings(method, lr=1e-3).lr == 1e-3
    assert distillation_settings(method).beta == 1.0


def test_methods_are_told_apart():
    assert len({distillation_settings(method) for method in METHODS}) == len(METHODS)


def test_lists_become_every_combination(as_installed):
    runs = expand({"beta": [0.1, 0.3], "clip": [0.2, 0.28], "seed": [0, 1, 2], "lr": 1e-3})
    assert [(r.beta, r.seed) for r in runs] == [(b, s) for b in (0.1, 0.3) for s in (0, 1, 2)]
    assert {(r.clip, r.lr) for r in runs} == {((0.2, 0.28), 1e-3)}
    assert [r.clip for r in expand({"clip": [[0.2, 0.2], [0.2, 0.28]]})] == [(0.2, 0.2), (0.2, 0.28)]
