"""The registry of estimators: a dict, a decorator that changes nothing, and names that are looked up."""

import math
import pickle
import re
from functools import partial, wraps

import pytest
import torch

from kl_companion.divergences import DIVERGENCES, get_divergence
from kl_companion.estimators import (
    ESTIMATORS,
    Estimator,
    TopK,
    get_estimator,
    k_lambda,
    register_estimator,
    registry,
    top_k_f_divergence,
    top_k_forward_kl,
)
from kl_companion.estimators.sampled import of_samples
from tests.support.data import data

DATA = data(__file__)


register_mine = partial(register_estimator, "mine", target="reverse_kl", source="test")


@pytest.fixture(autouse=True)
def restored(monkeypatch):
    """What a test registers is gone after it."""
    kept = dict(ESTIMATORS)
    yield
    ESTIMATORS.clear()
    ESTIMATORS.update(kept)


def plain(logp, ref_logp):
    return logp - ref_logp


def test_registering_returns_the_function_untouched():
    back = register_estimator("mine", target="reverse_kl", source="a note")(plain)
    assert back is plain
    assert ESTIMATORS["mine"] == Estimator("mine", plain, "reverse_kl", "sampled", "a note")
    assert get_estimator("mine").fn is plain


def test_inputs_are_recorded():
    register_estimator("mine", target="pearson", source="a note", inputs="vocab")(plain)
    assert ESTIMATORS["mine"].inputs == "vocab"
    assert ESTIMATORS["mine"].target == "pearson"


def test_a_name_taken_by_another_function_is_refused():
    def k3(logp, ref_logp):
        return ref_logp - logp

    before = ESTIMATORS["k3"]
    wanted = "estimator 'k3' is registered already, by kl_companion.estimators.sampled"
    with pytest.raises(ValueError, match=wanted):
        register_estimator("k3", target="reverse_kl", source="a note")(k3)
    assert ESTIMATORS["k3"] is before


def test_a_module_that_is_loaded_again_may_register_again():
    def again(logp, ref_logp):
        return logp - ref_logp

    again.__module__, again.__qualname__ = plain.__module__, plain.__qualname__
    register_estimator("mine", target="reverse_kl", source="a note")(plain)
    register_estimator("mine", target="reverse_kl", source="a note")(again)
    assert ESTIMATORS["mine"].fn is again


def test_estimators_by_name():
    k3 = ESTIMATORS["k3"]
    assert get_estimator("k3") is k3
    assert get_estimator(k3) is k3
    assert get_estimator("k_lambda(0.25)").name == "k_lambda(0.25)"
    assert "k_lambda(0.25)" not in ESTIMATORS  # looking a member up registers nothing


@pytest.mark.parametrize(("name", "wanted"), DATA["unknown_names_list_the_nearest"])
def test_unknown_names_list_the_nearest(name, wanted):
    with pytest.raises(ValueError, match=re.escape(wanted)) as caught:
        get_estimator(name)
    listed, others = str(caught.value).partition("Known: ")[2].rsplit(" and ", 1)
    known = {*ESTIMATORS, *(f"{family}(...)" for family in registry.ESTIMATOR_FAMILIES)}
    assert set(listed.split(", ")) <= known
    assert others == f"{len(known) - 6} others"


def test_what_importing_the_package_registers():
    assert {"k1", "k2", "k3", "k3_plus_plus", "k4", "k5", "k_lambda(0.5)"} <= set(ESTIMATORS)
    assert {f"kf_plus_plus({d})" for d in DIVERGENCES} <= set(ESTIMATORS)
    vocab = {n: e.target for n, e in ESTIMATORS.items() if e.inputs == "vocab"}
    assert vocab["exact_kl"] == "reverse_kl"
    assert vocab["exact_forward_kl"] == "forward_kl"
    assert ESTIMATORS["k5"].target == "forward_kl"
    assert all(ESTIMATORS[n].target == "reverse_kl" for n in ("k1", "k2", "k3", "k3_plus_plus", "k4"))
    assert all(ESTIMATORS[f"kf_plus_plus({d})"].target == d for d in DIVERGENCES)
    heads = {n: (e.target, e.fn.k, e.fn.form) for n, e in ESTIMATORS.items() if e.inputs == "top_k"}
    assert heads == {
        "top_k_reverse_kl(32)": ("reverse_kl", 32, "bregman"),
        "top_k_forward_kl(32)": ("forward_kl", 32, "bregman"),
    }


def scaled(factor):
    def estimate(logp, ref_logp):
        return factor * (logp - ref_logp)

    return estimate


def recursive(factor):
    def estimate(logp, ref_logp, again=True):
        return estimate(logp, ref_logp, False) if again else factor * (logp - ref_logp)

    return estimate


def times(factor):
    def decorate(fn):
        @wraps(fn)
        def decorated(logp, ref_logp):
            return factor * fn(logp, ref_logp)

        return decorated

    return decorate


def difference(logp, ref_logp):
    return logp - ref_logp


def power(exponent, logp, ref_logp):
    return (logp - ref_logp) ** exponent


PAIRS = {
    "two lambdas": (lambda p, q: p - q, lambda p, q: q - p),
    "two closures": (scaled(1.0), scaled(2.0)),
    "closures over functions": (of_samples(scaled(1.0)), of_samples(scaled(2.0))),
    "two partials": (partial(power, 1), partial(power, 2)),
    "partials by keyword": (partial(power, exponent=1), partial(power, exponent=2)),
    "partials of closures": (partial(scaled(1.0)), partial(scaled(2.0))),
    "another default": (lambda p, q, c=1: c * (p - q), lambda p, q, c=2: c * (p - q)),
    "two members": (k_lambda(0.1), k_lambda(0.9)),
    "closures over tensors": (scaled(torch.ones(2)), scaled(torch.zeros(2))),
    "a function and a partial": (power, partial(power, 2)),
    "two named functions": (power, scaled),
    "two decorators": (times(1.0)(difference), times(2.0)(difference)),
    "two recursive closures": (recursive(1.0), recursive(2.0)),
}
AGAIN = {
    "closures": lambda: scaled(2.0),
    "lambdas": lambda: lambda p, q: p - q,
    "partials": lambda: partial(power, 2),
    "partials by keyword": lambda: partial(power, exponent=2),
    "closures over functions": lambda: of_samples(scaled(2.0)),
    "members": lambda: k_lambda(0.1),
    "decorated functions": lambda: times(2.0)(difference),
    "recursive closures": lambda: recursive(2.0),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_a_name_is_not_taken_by_another_function(pair):
    first, second = PAIRS[pair]
    register_mine()(first)
    with pytest.raises(ValueError, match=r"^estimator 'mine' is registered already, by [\w.]+: "):
        register_mine()(second)
    assert ESTIMATORS["mine"].fn is first
    register_mine(overwrite=True)(second)
    assert ESTIMATORS["mine"].fn is second


@pytest.mark.parametrize("kind", AGAIN)
def test_a_function_that_is_made_again_replaces_itself(kind):
    register_mine()(AGAIN[kind]())
    last = AGAIN[kind]()
    assert register_mine()(last) is last
    assert ESTIMATORS["mine"].fn is last


def test_a_cell_of_a_notebook_may_be_changed_and_run_again():
    for body in ("logp - ref_logp", "(logp - ref_logp) ** 2 / 2"):
        cell = {"__name__": "__main__"}
        exec(f"def mine(logp, ref_logp):\n    return {body}", cell)
        register_mine()(cell["mine"])
        assert ESTIMATORS["mine"].fn is cell["mine"]


def test_a_registered_closure_pickles_by_its_name():
    register_mine()(scaled(3.0))
    entry = ESTIMATORS["mine"]
    assert pickle.loads(pickle.dumps(entry)) is entry
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(entry._replace(name="another"))


def test_the_head_of_forward_kl_is_the_references():
    rows = [torch.tensor([[0.7, 0.2, 0.1]]).log(), torch.tensor([[0.1, 0.2, 0.7]]).log()]
    token = torch.tensor([0])
    for call in (
        partial(top_k_forward_kl, *rows, token, k=1),
        partial(top_k_f_divergence, "forward_kl", *rows, token, k=1),
        partial(TopK(get_divergence("forward_kl"), 1), *rows, token),
        partial(get_estimator("top_k_f_divergence(forward_kl, 1)").fn, *rows, token),
    ):
        # Q f(P/Q) of token 2, and w f(1/w) of the sampled token 0: w = 1/7
        head, tail = 0.7 * math.log(7) + 0.1 - 0.7, (1 / 7) * math.log(1 / 7) - 1 / 7 + 1
        assert call().item() == pytest.approx(head + tail, rel=1e-5)
    assert TopK(get_divergence("forward_kl"), 1, head_from="policy").head_from == "policy"
    for name in set(DIVERGENCES) - {"forward_kl"}:
        assert TopK(get_divergence(name), 1).head_from == "policy"
