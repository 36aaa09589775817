"""The ground under every check of a claim, mutated: a verdict that does not notice checks nothing.

With samples from another policy, with wrong exact gradients, with broken formulas. A row whose verdict
survives all of it is named here, with what it rests on instead.
"""

import sys
import warnings

import pytest
import torch

from kl_book.ledger.claims import CLAIMS, register, run
from kl_book.ledger.claims.standard import TOLERANCE
from kl_companion.estimators import ESTIMATORS
from tests.support.claims_table import ALTERED, RESTING


def modules():
    """Every module of claims that is loaded."""
    return [m for name, m in sorted(sys.modules.items()) if name.startswith("kl_book.ledger.claims")]


def everywhere(monkeypatch, name, make):
    """Replace a helper wherever a module of claims has imported it."""
    for module in modules():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, make(getattr(module, name)))


def forget(keep=()):
    """Empty the caches of runs, which would hide a sabotage; those of the modules named in ``keep`` stay."""
    for module in modules():
        if module.__name__ in keep:
            continue
        for value in vars(module).values():
            if hasattr(value, "cache_clear") and getattr(value, "__module__", "") == module.__name__:
                value.cache_clear()


def changed(monkeypatch, change):
    """Replace the enumerated terms of every world."""
    everywhere(monkeypatch, "terms", lambda terms: lambda problem: change(terms(problem)))


def wrong_sampler(monkeypatch):
    """Samples come from the reference, and nobody says so."""
    changed(monkeypatch, lambda t: t._replace(p=t.ref_logp.sum(-1).exp()))


def wrong_reference(monkeypatch):
    """Log-probs of the reference are a tenth too large."""
    changed(monkeypatch, lambda t: t._replace(ref_logp=1.1 * t.ref_logp))


def wrong_truth(monkeypatch):
    """Exact values and gradients are a tenth too large."""
    everywhere(monkeypatch, "exact", lambda f: lambda *a: tuple(1.1 * x for x in f(*a)))


def wrong_formulas(monkeypatch):
    """k1, k2 and k3 with one symbol changed."""
    changed = {
        "k1": lambda a, b: a + b,
        "k2": lambda a, b: -((a - b) ** 2) / 2,
        "k3": lambda a, b: torch.exp(b - a) - 1 + (b - a),
    }
    for name, fn in changed.items():
        monkeypatch.setitem(ESTIMATORS, name, ESTIMATORS[name]._replace(fn=fn))


def wrong_placement(monkeypatch):
    """What belongs into the loss goes into the reward, and the other way round; baselines are lost."""

    def make(function):
        def sabotaged(estimator, problem, **k):
            k["placement"] = "loss" if k.get("placement") == "reward" else "reward"
            k.pop("baseline", None)
            return function(estimator, problem, **k)

        return sabotaged

    def learning(function):
        sabotaged = make(lambda e, p, **k: function(p, e, **k))
        return lambda problem, estimator="k2", **k: sabotaged(k.pop("estimator", estimator), problem, **k)

    everywhere(monkeypatch, "draw_statistics", make)
    everywhere(monkeypatch, "learn", learning)


def wrong_optimum(monkeypatch):
    """Divergences and optima are exchanged: the reverse for the forward KL."""
    everywhere(monkeypatch, "reverse_kl", lambda f: lambda a, b: f(b, a))
    swap = {"reverse_kl": "forward_kl", "forward_kl": "reverse_kl"}
    everywhere(
        monkeypatch,
        "optimal_policy",
        lambda f: (
            lambda r, q, divergence="reverse_kl", beta=1.0: f(r, q, swap.get(divergence, divergence), beta)
        ),
    )


def wrong_arithmetic(monkeypatch):
    """Gradients of estimates, variances and the forward KL are a tenth too large."""
    for name in ("differentiated", "variance", "forward_kl"):
        everywhere(monkeypatch, name, lambda f: lambda *a, **k: 1.1 * f(*a, **k))


def wrong_anchor(monkeypatch):
    """The anchor averages the new policy where the source has the old one, and the other way round."""

    def step(f):
        def sabotaged(theta, anchor, gradient, pull, by):
            moved, _ = f(theta, anchor, gradient, pull, by)
            return moved, by.eta * anchor + (1 - by.eta) * moved

        return sabotaged

    def cycle(f):
        def sabotaged(theta, anchor, gradient, pull, by, steps):
            moved, _ = f(theta, anchor, gradient, pull, by, steps)
            return moved, by.eta * anchor + (1 - by.eta) * theta

        return sabotaged

    everywhere(monkeypatch, "ema_step", step)
    everywhere(monkeypatch, "ema_cycle", cycle)


def wrong_group(monkeypatch):
    """Coefficients of a group move with its common drift, and the surrogate has a slope where it is flat."""
    everywhere(
        monkeypatch,
        "calibrated",
        lambda f: lambda rewards, drift, beta: 1.1 * f(rewards, drift, beta) + 0.1 * (1 + drift),
    )
    everywhere(monkeypatch, "surrogate_slopes", lambda f: lambda *a: f(*a) + 0.1)


SABOTAGES = (
    wrong_sampler,
    wrong_reference,
    wrong_truth,
    wrong_formulas,
    wrong_placement,
    wrong_optimum,
    wrong_arithmetic,
    wrong_anchor,
    wrong_group,
)
SLOW = (wrong_formulas, wrong_placement, wrong_anchor)  # those that runs of learning are put through
# rows that none of them can reach, and what they rest on instead
UNTOUCHED = RESTING | dict.fromkeys(ALTERED, "printed numbers, altered in test_ledger_altered.py")


def passes(evidence):
    """What a sabotage must change: the verdict, or whether a form passes."""
    errors = (evidence.printed, evidence.inside, evidence.corrected)
    return evidence.verdict, *(e is not None and e <= TOLERANCE for e in errors)


def claimed(id):
    """The check of a row, which may be that of another one."""
    return CLAIMS[register()[id].check or id]


def noticed(id, right):
    """Whether a check on sabotaged ground ends otherwise than it does on the right one."""
    try:
        return passes(claimed(id).check()) != right
    except Exception:  # a sabotage may make a shape or a number impossible: noticed as well
        return True


def what_is_noticed(ids):
    """{row: name of the first sabotage that its check notices, or None}."""
    right = {id: passes(run(id)) for id in ids}
    found = dict.fromkeys(ids)
    for sabotage in SABOTAGES:
        with pytest.MonkeyPatch.context() as monkeypatch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as an empty mean, where nothing is left to average
            forget()
            sabotage(monkeypatch)
            for id, wanted in right.items():
                if found[id] or register()[id].how == "reading":
                    continue
                if register()[id].how == "simulation" and sabotage not in SLOW:
                    continue
                if noticed(id, wanted):
                    found[id] = sabotage.__name__
    forget()
    return found


def assert_noticed(id, noticed):
    """Every computed row notices something, and what is named as untouched notices nothing."""
    if register()[id].how == "reading":
        pytest.skip("read, not computed")
    assert (noticed[id] is None) == (id in UNTOUCHED), UNTOUCHED.get(id)
