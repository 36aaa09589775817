"""A mutated symbol in any registered formula is noticed by what the registry tests compare.

Each test lists what goes unnoticed: the formula as it is, and mutants that write the same function in
another way, which are named with the reason.
"""

import ast
import inspect
from collections import Counter

import pytest
import sympy
import torch

from kl_companion import prefix_tree
from kl_companion.auditing import objectives as objectives_module
from kl_companion.auditing.objectives import OBJECTIVES, Objective, field, value
from kl_companion.divergences import DIVERGENCES, T, W, make_divergence, registry, torch_function
from kl_companion.estimators import sampled, vocabulary
from kl_companion.theory import calculus
from tests.estimators.test_registry_placements import POINTS, same
from tests.oracles.worlds import GENERATORS
from tests.support.expected_verdicts import EXPECTED, F_AT_TWO
from tests.support.mutation import mutants
from tests.support.objectives import oracle

pytestmark = pytest.mark.reliability

LOGP = torch.tensor([-0.1, -1.0, -3.0, -0.7, -5.0], dtype=torch.float64)
REF = torch.tensor([-2.0, -1.5, -0.2, -0.7, -5.1], dtype=torch.float64)


def define(source, module, name):
    names = dict(vars(module))
    exec(compile(source, "<mutant>", "exec"), names)
    return names[name]


def noticed(check):
    """Whether a check fails, by its verdict or by an error of the formula itself."""
    try:
        return not check()
    except Exception:  # a mutant may divide by zero, lose an operand or recurse: noticed as well
        return True


def estimator_is_right(fn, name):
    v, h, in_loss, _ = EXPECTED[name]
    weight = calculus.gradient_weight(fn)
    if not same(calculus.value(fn), v) or (h is not None and not same(weight, h)):
        return False
    if calculus.match_divergence(calculus.implied_f(weight)) != in_loss:
        return False
    logp = LOGP.clone().requires_grad_()
    out = fn(logp, REF)
    (slope,) = torch.autograd.grad(out.sum(), logp)
    w = (REF - LOGP).exp()
    close = torch.allclose(out.detach(), torch_function(v, W)(w), rtol=1e-9, atol=1e-12)
    return close and (h is None or torch.allclose(slope, torch_function(sympy.sympify(h), W)(w), rtol=1e-9))


SAMPLED = {
    "k1": ["k1"],
    "k2": ["k2"],
    "k3": ["k3"],
    "k3_plus_plus": ["k3_plus_plus"],
    "k4": ["k4"],
    "k5": ["k5"],
    "k_lambda": ["k_lambda(0.5)"],
}
ARGUMENTS = {"k_lambda(0.5)": 0.5}


def surviving_estimators(function):
    for description, source in mutants(inspect.getsource(getattr(sampled, function))):

        def check(source=source):
            made = define(source, sampled, function)
            return all(
                estimator_is_right(made(ARGUMENTS[n]) if n in ARGUMENTS else made, n)
                for n in SAMPLED[function]
            )

        if not noticed(check):
            yield description


UNCHANGED = Counter(["unchanged"])
# (logp - ref_logp)^2 is even
SAME_FUNCTION = {"k2": Counter(["operands of Sub exchanged"])}


@pytest.mark.parametrize("function", list(SAMPLED))
def test_mutants_of_sampled_estimators(function):
    assert Counter(surviving_estimators(function)) == UNCHANGED + SAME_FUNCTION.get(function, Counter())


def registrations():
    """(name, expression source) of every register_divergence call in the module."""
    tree = ast.parse(inspect.getsource(registry))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "register_divergence":
            slope = next((ast.unparse(k.value) for k in node.keywords if k.arg == "derivative"), None)
            yield node.args[0].value, ast.unparse(node.args[1]), slope


def generator_is_right(d, name):
    if abs(sympy.N(d.f.subs(T, 2) - F_AT_TWO[name])) > 1e-12:
        return False
    f = torch_function(d.f, T)
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    truth = sum(b * GENERATORS[name](a / b) for a, b in zip(p, q, strict=True))
    right_slope = all(
        abs(sympy.N(sympy.diff(d.f, T).subs(T, x) - d.derivative.subs(T, x))) < 1e-9 for x in POINTS
    )
    return abs(float((q * f(p / q)).sum() - truth)) < 1e-12 and right_slope


# |t - 1| = |1 - t|, (sqrt t - 1)^2 = (1 - sqrt t)^2, and the like
EVEN = ("total_variation", "squared_hellinger", "pearson", "neyman")


def test_mutants_of_generators():
    left, count = Counter(), 0
    for name, f, slope in registrations():
        for part, text in (("f", f), ("slope", slope)):
            for description, mutated in mutants(text) if text else ():
                count += 1

                def check(mutated=mutated, part=part, f=f, slope=slope, name=name):
                    env = vars(registry)
                    made = make_divergence(
                        name,
                        eval(mutated if part == "f" else f, env),
                        source="-",
                        derivative=eval(mutated if part == "slope" else slope, env) if slope else None,
                    )
                    return generator_is_right(made, name)

                if not noticed(check):
                    left[name, part, description] += 1
    assert count > 50
    unchanged = [(n, "f", "unchanged") for n, _, _ in registrations()] + [
        ("total_variation", "slope", "unchanged")
    ]
    assert left == Counter(unchanged + [(n, "f", "operands of Sub exchanged") for n in EVEN])


@pytest.mark.parametrize(("family", "argument"), [("amari_alpha", 0.5), ("power_divergence", 1.5)])
def test_mutants_of_families(family, argument):
    name = f"{family}({argument})"
    left = Counter()
    source = inspect.getsource(inspect.unwrap(getattr(registry, family)))
    for description, mutated in mutants(source):

        def check(mutated=mutated):
            made = define(mutated, registry, family)
            limits = [made(1).name, made(-1 if family == "amari_alpha" else 0).name]
            return limits == ["reverse_kl", "forward_kl"] and generator_is_right(made(argument), name)

        if not noticed(check):
            left[description] += 1
    # any multiple of t - 1 is removed by the normalization, so the sign of a (t - 1) is free
    linear = (
        Counter(["Sub to Add", "operands of Sub exchanged"]) if family == "power_divergence" else Counter()
    )
    assert left == UNCHANGED + linear


def vocabulary_is_right(f_divergence):
    logits = torch.tensor([[0.3, -1.0, 2.0, 0.0], [1.0, 1.0, -2.0, 0.5]], dtype=torch.float64)
    other = torch.tensor([[1.3, 0.2, -1.0, 0.4], [0.0, 0.9, -2.5, 0.0]], dtype=torch.float64)
    dead_p, dead_q = torch.zeros(2, 4), torch.zeros(2, 4)
    dead_p[0, 1], dead_q[1, 2] = 1, 1
    for name in ("jensen_shannon", "amari_alpha(0.5)", "total_variation", "reverse_kl", "pearson"):
        for holes in (False, True):
            if holes and name in ("reverse_kl", "pearson"):
                continue
            a = logits.masked_fill(dead_p.bool(), -torch.inf) if holes else logits
            b = other.masked_fill(dead_q.bool(), -torch.inf) if holes else other
            a = a.clone().requires_grad_()
            out = f_divergence(name, a.log_softmax(-1)[None], b.log_softmax(-1)[None])[0]
            x = logits.clone().requires_grad_()
            p, q = x.exp() * (1 - dead_p * holes), other.exp() * (1 - dead_q * holes)
            p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
            truth = torch.stack([by_limits(name, list(r), list(s)) for r, s in zip(p, q, strict=True)])
            (mine,), (theirs,) = torch.autograd.grad(out.sum(), a), torch.autograd.grad(truth.sum(), x)
            if not torch.allclose(out, truth, rtol=1e-10) or not torch.allclose(mine, theirs, atol=1e-10):
                return False
    return refusals_are_right(f_divergence)


def refused(f_divergence, name, p, q, words):
    try:
        f_divergence(name, p, q)
    except ValueError as error:
        return words in str(error)
    return False


def refusals_are_right(f_divergence):
    """An infinite divergence, another shape and rows that are not normalized, each by its name."""
    bad = torch.tensor([0.0, -torch.inf], dtype=torch.float64)
    good = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    return (
        refused(f_divergence, "forward_kl", bad, good, "where the policy has none")
        and refused(f_divergence, "reverse_kl", good, bad, "where the reference has none")
        and not refused(f_divergence, "forward_kl", good, bad, "")
        and not refused(f_divergence, "reverse_kl", bad, good, "")
        and refused(f_divergence, "pearson", good, good.repeat(2, 1), "ref_logp_all has shape [2, 2]")
        and refused(f_divergence, "pearson", good - 1, good, "logp_all has a row")
        and not refused(f_divergence, "pearson", good - 1, good, "ref_logp_all has a row")
        and refused(f_divergence, "pearson", good, good - 1, "ref_logp_all has a row")
    )


LIMITS = {  # f(0) and lim f(t)/t, of generators normalized to f'(1) = 0
    "jensen_shannon": (0.34657359027997264, 0.34657359027997264),
    "total_variation": (0.5, 0.5),
    "amari_alpha(0.5)": (4 / 3, 4.0),
}
SLOPE_AT_ONE = {"amari_alpha(0.5)": -4.0}  # of the oracle's generator, which is not normalized


def by_limits(name, p, q):
    """A divergence whose probabilities may be zero, with the limits of its generator by hand."""
    total = 0.0
    for a, b in zip(p, q, strict=True):
        if a > 0 and b > 0:
            slope = SLOPE_AT_ONE.get(name, 0.0)
            total = total + b * GENERATORS[name](a / b) - slope * (a - b)
        elif a > 0 or b > 0:
            at_zero, at_infinity = LIMITS[name]
            total = total + b * at_zero + a * at_infinity
    return total


# fillers of entries that are masked out again
SAME_DIVERGENCE = {"f_divergence": Counter(), "sum_of_entries": Counter({"0.0 to 1.0": 2})}


@pytest.mark.parametrize("function", list(SAME_DIVERGENCE))
def test_mutants_of_exact_divergences(function, monkeypatch):
    left = Counter()
    for description, mutated in mutants(inspect.getsource(inspect.unwrap(getattr(vocabulary, function)))):

        def check(mutated=mutated):
            with monkeypatch.context() as patch:
                patch.setattr(vocabulary, function, define(mutated, vocabulary, function))
                return vocabulary_is_right(vocabulary.f_divergence)

        if not noticed(check):
            left[description] += 1
    assert left == UNCHANGED + SAME_DIVERGENCE[function]


def entries_are_right(inside):
    """Q f(P/Q) where ratios are moderate, and where the power of a ratio would overflow."""
    near = torch.tensor([[-0.5, -2.0], [-1.1, -1.0]], dtype=torch.float64)
    far = torch.tensor([[-400.0, -1.0, -1.0, -1.5], [-1.0, -400.0, -1.5, -1.0]], dtype=torch.float64)
    for name, at in (("reverse_kl", near), ("pearson", near), ("reverse_kl", far), ("forward_kl", far)):
        log_p, log_q = at[0].clone().requires_grad_(), at[1].clone()
        t = (log_p - log_q).exp()
        truth = {
            "reverse_kl": log_p.exp() * (log_p - log_q) - log_p.exp() + log_q.exp(),
            "forward_kl": log_q.exp() * (log_q - log_p) - log_q.exp() + log_p.exp(),
            "pearson": log_q.exp() * (t - 1) ** 2,
        }[name]
        got = inside(DIVERGENCES[name], log_p, log_q)
        (theirs,) = torch.autograd.grad(truth.sum(), log_p, retain_graph=True)
        (mine,) = torch.autograd.grad(got.sum(), log_p)
        if not torch.allclose(got, truth, rtol=1e-10) or not torch.allclose(mine, theirs, rtol=1e-10):
            return False
    single = torch.tensor([-60.0], dtype=torch.float32), torch.tensor([-1.0], dtype=torch.float32)
    return bool(inside(DIVERGENCES["neyman"], single[1], single[0]).isfinite().all())


# a comparison has no gradient, and the branch that is not taken may hold anything finite
SAME_ENTRIES = Counter({".detach() dropped": 1, "0.0 to 1.0": 1})


def test_mutants_of_the_entries():
    left = Counter(
        description
        for description, mutated in mutants(inspect.getsource(inspect.unwrap(vocabulary._inside)))
        if not noticed(lambda mutated=mutated: entries_are_right(define(mutated, vocabulary, "_inside")))
    )
    assert left == UNCHANGED + SAME_ENTRIES


@pytest.mark.parametrize("name", ["exact_kl", "exact_forward_kl"])
def test_mutants_of_exact_kl(name):
    p, q = LOGP.log_softmax(-1), REF.log_softmax(-1)
    truth = (p.exp() * (p - q)).sum() if name == "exact_kl" else (q.exp() * (q - p)).sum()
    left = Counter(
        description
        for description, mutated in mutants(inspect.getsource(getattr(vocabulary, name)))
        if not noticed(lambda mutated=mutated: torch.allclose(define(mutated, vocabulary, name)(p, q), truth))
    )
    assert left == UNCHANGED


def objective_is_right(name, fn):
    for off_policy in (False, True):
        problem = prefix_tree(3, 2, seed=5, eos=True, off_policy=off_policy)
        theta = problem.logits.clone().requires_grad_()
        truth = oracle(name, problem, theta)
        (gradient,) = torch.autograd.grad(truth, theta)
        mine = Objective(name, fn, "", "")
        if abs(value(mine, problem) - truth.item()) > 1e-9:
            return False
        if not torch.allclose(field(mine, problem), gradient, atol=1e-9):
            return False
    return True


LAST_AXIS = Counter(["USub dropped"])  # the last axis of two is axis 1
PLAIN = [
    n
    for n, o in OBJECTIVES.items()
    if not o.heads_only and n.removeprefix("policy_").partition("_")[2] not in DIVERGENCES
]


@pytest.mark.parametrize("name", PLAIN)
def test_mutants_of_objectives(name):
    fn = OBJECTIVES[name].scalar
    left = Counter(
        description
        for description, mutated in mutants(inspect.getsource(inspect.unwrap(fn)))
        if not noticed(
            lambda mutated=mutated: objective_is_right(name, define(mutated, objectives_module, fn.__name__))
        )
    )
    even = Counter(["operands of Sub exchanged"]) if "squared" in name else Counter()
    same = LAST_AXIS if name == "expected_inverse_length" else Counter()
    assert left == UNCHANGED + even + same


@pytest.mark.parametrize("level", ["sequence", "token", "policy_token"])
def test_mutants_of_divergence_objectives(level):
    tree = ast.parse(inspect.getsource(objectives_module.add_divergence))
    inner = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == level)
    left = Counter()
    for description, mutated in mutants(ast.unparse(inner)):

        def check(mutated=mutated):
            names = {**vars(objectives_module), "d": DIVERGENCES["pearson"]}
            exec(mutated, names)
            return objective_is_right(f"{level}_pearson", names[level])

        if not noticed(check):
            left[description] += 1
    assert left == UNCHANGED


# the log-probs that were sampled from are detached where they are made
SAME_HELPER = {"_visits": Counter([".detach() dropped"]), **dict.fromkeys(("_total", "_mean"), LAST_AXIS)}
USED_BY = {
    "_visits": "token_entropy",
    "_total": "token_entropy",
    "_policy_visits": "policy_token_squared_log_ratio",
    "_mean": "sequence_mean_reverse_kl",
}


@pytest.mark.parametrize("helper", list(USED_BY))
def test_mutants_of_the_objectives_helpers(helper, monkeypatch):
    left = Counter()
    for description, mutated in mutants(
        inspect.getsource(inspect.unwrap(getattr(objectives_module, helper)))
    ):

        def check(mutated=mutated):
            with monkeypatch.context() as patch:
                patch.setattr(objectives_module, helper, define(mutated, objectives_module, helper))
                return objective_is_right(USED_BY[helper], OBJECTIVES[USED_BY[helper]].scalar)

        if not noticed(check):
            left[description] += 1
    assert left == UNCHANGED + SAME_HELPER.get(helper, Counter())
