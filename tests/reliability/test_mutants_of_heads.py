"""A mutated symbol in what splits a divergence over the vocabulary is noticed; see test_mutants."""

import ast
import inspect
import textwrap
import warnings
from collections import Counter

import pytest
import sympy
import torch

from kl_companion import prefix_tree
from kl_companion.auditing import objectives as objectives_module
from kl_companion.auditing.objectives import Objective, field, value
from kl_companion.divergences import T, compiled, make_divergence
from kl_companion.estimators import sampled, top_k
from kl_companion.estimators.sampled import FORMS
from kl_companion.theory import top_k_split
from tests.estimators import test_sampled_forms as forms
from tests.estimators import test_top_k as heads
from tests.estimators.test_sampled_forms import check_form, check_form_in_symbols
from tests.estimators.test_top_k_edges import REFUSED, check_holes, check_refused
from tests.reliability.test_mutants import UNCHANGED, define, noticed
from tests.support.mutation import mutants
from tests.support.objectives import oracle
from tests.support.typecheck import WrongType
from tests.theory import test_top_k_split as splits

pytestmark = pytest.mark.reliability

LOGS = sympy.symbols("a b", real=True)


def survivors(original, module, install, check):
    """Counter of the mutants that a check lets pass; ``install`` puts one in place of the original."""
    left, function = Counter(), inspect.unwrap(original)
    for description, mutated in mutants(textwrap.dedent(inspect.getsource(function)), branches=True):

        def judge(mutated=mutated):
            with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
                # the formula itself has to be wrong: the checker of types would answer first
                warnings.simplefilter("ignore", WrongType)
                install(patch, define(mutated, module, function.__name__))
                try:
                    check()
                except pytest.fail.Exception:  # what should have been refused was not
                    return False
                return True

        if not noticed(judge):
            left[description] += 1
    return left


def in_module(module, original):
    return lambda patch, fn: patch.setattr(module, original.__name__, fn)


def test_mutants_of_the_forms():
    def check():
        for name in ("reverse_kl", "forward_kl", "pearson", "amari_alpha(0.5)"):
            for form in FORMS:
                check_form(name, form, sampled.kf_plus_plus)
                check_form_in_symbols(name, form, sampled.kf_plus_plus)
        check_form("reverse_kl", "bregman", lambda name, _: sampled.kf_plus_plus(name))
        with pytest.raises(ValueError, match="unknown form"):
            sampled.kf_plus_plus("pearson", "other")

    judged = ((sampled.kf_plus_plus, NONE), (sampled._kf_plus_plus_of, AGAIN), (sampled.with_weight, ZERO))
    for original, same in judged:
        left = survivors(original, sampled, in_module(sampled, original), check)
        assert left == UNCHANGED + same


NONE = Counter()
AGAIN = Counter([".detach() dropped"])  # value and weight are detached once more
ZERO = Counter(["stop_gradient dropped"])  # of the weight: its own gradient is multiplied by log r = 0


def test_mutants_of_the_slopes():
    for name in ("stable_slope", "_slopes_of_log"):
        original = getattr(compiled, name)

        def install(patch, fn, name=name):
            patch.setattr(compiled, name, fn)
            patch.setattr(forms, "stable_slope", compiled.stable_slope)

        left = survivors(original, compiled, install, forms.check_slopes)
        assert left == UNCHANGED + SAME_SLOPE[name]


# below t = 1 nothing is cut off, and above it the other piece is taken
SAME_SLOPE = {"stable_slope": Counter(["0.0 to 1.0"]), "_slopes_of_log": Counter()}


def top_k_is_right():
    for changes, wanted in REFUSED:
        check_refused(changes, wanted)
    heads.check_weight()
    for head_from in heads.HEADS:
        heads.check_expectation("reverse_kl", "published", head_from, worlds=[(0, 3)])
    for form in FORMS:
        heads.check_truncated("forward_kl", form)
    heads.check_axes()
    heads.check_every_sample("amari_alpha(0.5)", "published")
    check_holes("pearson", "bregman")


SAME_METHOD = {
    "__post_init__": Counter(),
    "sampled": Counter(),
    "head": Counter(),
    "head_of": Counter(),
    "estimate": Counter({"0.0 to 1.0": 2}),  # fillers of what is masked out
    # ids have no gradient; policy and reference have the same shape
    "head_indices": Counter({".detach() dropped": 1, "logp_all to ref_logp_all": 2}),
    "__call__": Counter({"logp_all to ref_logp_all": 2}),  # again
}


@pytest.mark.parametrize("method", list(SAME_METHOD))
def test_mutants_of_top_k(method):
    original = vars(top_k.TopK)[method]
    is_property = isinstance(original, property)

    def install(patch, fn):
        patch.setattr(top_k.TopK, method, property(fn) if is_property else fn)

    left = survivors(original.fget if is_property else original, top_k, install, top_k_is_right)
    assert left == UNCHANGED + SAME_METHOD[method]


@pytest.mark.parametrize("function", ["checked_head", "_check_tokens"])
def test_mutants_of_the_checks_of_ids(function):
    original = getattr(top_k, function)
    assert survivors(original, top_k, in_module(top_k, original), top_k_is_right) == UNCHANGED


def split_is_right():
    entry = top_k_split.head_entry
    assert entry("reverse_kl")(*LOGS) == entry("reverse_kl", "bregman")(*LOGS)
    assert entry("reverse_kl")(*LOGS) != entry("reverse_kl", "generic")(*LOGS)
    for name in ("amari_alpha(0.5)", "pearson", "reverse_kl"):
        splits.check_split(name)
    half = make_divergence("half", (1 - T) / (1 + T), source="test")  # f'(1) = -1/2, no whole number
    assert tuple(top_k_split.split_of(half, "published")) == (0, -sympy.Rational(1, 2))
    for divergence, tails in (("reverse_kl", splits.REVERSE_TAILS), ("forward_kl", splits.FORWARD_TAILS)):
        for tail in tails:
            splits.check_mixed(divergence, "generic", tail)


# at w = 2 a unit is 1 or -1, its own inverse, and another point or a digit more would do; zero has no sign
SAME_SPLIT = {"_constant": Counter(["2 to 3", "50 to 51", "Div to Mult", "operands of Sub exchanged"])}


@pytest.mark.parametrize(
    "function",
    ["head_entry", "head_value", "head_weight", "_constant", "split", "_difference", "split_of"],
)
def test_mutants_of_splits(function):
    original = getattr(top_k_split, function)

    def install(patch, fn):
        patch.setattr(top_k_split, function, fn)
        if hasattr(splits, function):
            patch.setattr(splits, function, fn)

    left = survivors(original, top_k_split, install, split_is_right)
    assert left == UNCHANGED + SAME_SPLIT.get(function, Counter())


def mass_is_right(name, fn):
    """On a tree where policy and reference disagree about their likeliest tokens."""
    problem = prefix_tree(3, 2, seed=2, eos=True, off_policy=True)
    theta, mine = problem.logits.clone().requires_grad_(), Objective(name, fn, "", "")
    truth = oracle(name, problem, theta)
    (gradient,) = torch.autograd.grad(truth, theta)
    same = abs(value(mine, problem) - truth.item()) < 1e-12
    return same and torch.allclose(field(mine, problem), gradient, atol=1e-12)


@pytest.mark.parametrize("whose", ["policy", "reference"])
@pytest.mark.parametrize("k", [1, 2])
def test_mutants_of_the_mass_of_a_head(k, whose):
    tree = ast.parse(inspect.getsource(inspect.unwrap(objectives_module._add_head_mass)))
    inner = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "mass")
    prefix = "" if whose == "policy" else "reference_"
    left = Counter()
    for description, mutated in mutants(ast.unparse(inner), branches=True):

        def check(mutated=mutated):
            names = {**vars(objectives_module), "k": k, "whose": whose}
            exec(mutated, names)
            return mass_is_right(f"token_{prefix}top_{k}_mass", names["mass"])

        if not noticed(check):
            left[description] += 1
    # which entries are largest has no gradient, and one of the two ways is not taken
    other = ".ref_logp_all to .logp_all" if whose == "policy" else ".logp_all to .ref_logp_all"
    assert left == UNCHANGED + Counter([".detach() dropped", other])
