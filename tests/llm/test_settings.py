"""Settings are checked at the door: the message names what was got and what was wanted."""

import pytest

from kl_companion.llm.distillation import METHODS, distillation_settings
from kl_companion.llm.settings import Settings, expand

WRONG = [
    ({"placement": "rewards"}, "unknown placement 'rewards'"),
    ({"estimator": "k9"}, "k9"),
    ({"beta": -0.1}, "beta is -0.1, expected a finite number of at least 0$"),
    ({"lr": 0.0}, "lr is 0.0, expected a finite number above 0$"),
    ({"decay": 1.5}, "decay is 1.5, expected a finite number of at least 0 and at most 1$"),
    ({"beta": float("nan")}, "beta is nan"),
    ({"decay": 1.5}, "decay is 1.5"),
    ({"lag": 0}, "lag is 0"),
    ({"steps": -1}, "steps is -1"),
    ({"steps": 2.5}, "steps is 2.5"),
    ({"lr": 0.0}, "lr is 0.0"),
    ({"temperature": 0.0}, "temperature is 0.0"),
    ({"clip": (0.2,)}, "clip is"),
    ({"clip": (-0.1, 0.2)}, "clip is"),
    ({"estimator": "top_k_reverse_kl"}, "k=None"),
    ({"k": 2}, "k=2"),
    ({"form": "published"}, "form='published'"),
    ({"estimator": "exact_kl", "level": "sequence"}, "exact_kl"),
    ({"placement": "both", "level": "sequence"}, "placement='both'"),
    ({"credit": 0.5}, "credit=0.5"),
    ({"center_costs": True}, "center_costs=True"),
    ({"importance_clip": (0.5, 2.0)}, "ratio='detached', clip=(0.5, 2.0"),
    ({"importance": "token", "placement": "reward"}, "the policy gradient brings its own ratio"),
    ({"importance": "tokens"}, "unknown importance 'tokens'"),
    ({"group": 1}, "group is 1"),
    ({"accumulate": 65}, "accumulate is 65"),
    ({"how": "constant"}, "length=None"),
    ({"dtype": "float16"}, "unknown dtype 'float16'"),
    ({"max_grad_norm": -1.0}, "max_grad_norm is -1.0"),
    ({"lesson": -1}, "lesson is -1"),
    ({"lesson": 9, "steps": 8}, "lesson is 9 with anchor='fixed', .* from 0 to steps=8"),
    ({"anchor": "taught"}, "lesson is 0 with anchor='taught', .* from 1 to"),
]


@pytest.mark.parametrize(("given", "said"), WRONG, ids=lambda x: str(x))
def test_refused(given, said, as_installed):
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        Settings(**given)


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


def test_unknown_method_or_setting():
    with pytest.raises(ValueError, match="token_exact"):
        distillation_settings("token_exct")
    with pytest.raises(ValueError, match="'learning_rate'"):
        distillation_settings("token_k2", learning_rate=1.0)


def test_lists_become_every_combination(as_installed):
    runs = expand({"beta": [0.1, 0.3], "clip": [0.2, 0.28], "seed": [0, 1, 2], "lr": 1e-3})
    assert [(r.beta, r.seed) for r in runs] == [(b, s) for b in (0.1, 0.3) for s in (0, 1, 2)]
    assert {(r.clip, r.lr) for r in runs} == {((0.2, 0.28), 1e-3)}
    assert [r.clip for r in expand({"clip": [[0.2, 0.2], [0.2, 0.28]]})] == [(0.2, 0.2), (0.2, 0.28)]
    with pytest.raises(ValueError, match="'betas'"):
        expand({"betas": 1.0})
    with pytest.raises(ValueError, match="beta is an empty list"):
        expand({"beta": []})
