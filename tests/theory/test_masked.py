"""What a split leaves behind: by hand for every head and tail, and where it takes a policy, by search."""

import itertools
import math

import pytest
import sympy
import torch

from kl_companion.divergences import DIVERGENCES, W, make_divergence
from kl_companion.divergences import T as RATIO
from kl_companion.estimators.sampled import FORMS, k1, k2, k3, k3_plus_plus, k4, k5, kf_plus_plus
from kl_companion.ops import stop_gradient
from kl_companion.theory.calculus import gradient_weight, same_weight
from kl_companion.theory.masked import (
    head_entry,
    mass_penalty_optimum,
    split,
    split_of,
    top_k_mass_optimum,
)
from tests.oracles import top_k as oracle
from tests.oracles.numeric import gradient

NAMES = list(DIVERGENCES)
INF = float("inf")


def numbers(found):
    return tuple(None if x is None else float(x) for x in found)


def check_split(name):
    """Bregman and generic leave nothing; published leaves f'(1) grad P(S)."""
    c = oracle.SLOPE.get(name, 0.0)
    assert numbers(split_of(name, "bregman")) == (0.0, 0.0)
    assert numbers(split_of(name, "generic")) == (0.0, 0.0)
    assert numbers(split_of(name, "published")) == (0.0, c)
    assert [split_of(name, f).unbiased for f in FORMS] == [True, True, c == 0]


@pytest.mark.parametrize("name", NAMES)
def test_forms_of_every_divergence(name):
    check_split(name)


# Reverse KL. An entry of the generic head is P l = Q f~ + (P - Q), with slope P (l + 1); of the Bregman
# head Q f~ = P l - P + Q, with slope P l. A tail's value over f~ and weight over l, as (v, a):
# k1 l and 1: its weight is no l + constant; k2 no value, weight l; k3 (0, -); k3++ (0, 0); k4 (1, 0);
# r (-log w) (1, 1). What is left is head minus tail; the generic head is (1, 1), the Bregman head (0, 0).
REVERSE_TAILS = {
    "k1": (k1, 1, None),
    "k2": (k2, None, 0),
    "k3": (k3, 0, None),
    "k3_plus_plus": (k3_plus_plus, 0, 0),
    "k4": (k4, 1, 0),
    "generic": (kf_plus_plus("reverse_kl", "generic"), 1, 1),
}
# Forward KL. Generic head -Q log t = Q f~ - (P - Q), slope -Q = P (f~' - 1): (-1, -1). k5 (-1, 0): its
# value is w log w and its weight 1 - w; sg(w) log w has (-1, -1); the Bregman tail (0, 0); k3's weight
# is 1 - w as well.
FORWARD_TAILS = {
    "k5": (k5, -1, 0),
    "generic": (kf_plus_plus("forward_kl", "generic"), -1, -1),
    "bregman": (kf_plus_plus("forward_kl"), 0, 0),
    "k3": (k3, None, 0),
    "k4": (k4, None, None),
}


def check_mixed(divergence, form, tail):
    sign = 1 if divergence == "reverse_kl" else -1
    fn, v, a = (REVERSE_TAILS if sign == 1 else FORWARD_TAILS)[tail]
    head = 0 if form == "bregman" else sign
    found = split(head_entry(divergence, form), fn, divergence)
    assert found == (None if v is None else head - v, None if a is None else head - a)
    assert found.unbiased == (v == head and a == head)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("divergence", "tail"),
    [("reverse_kl", t) for t in REVERSE_TAILS] + [("forward_kl", t) for t in FORWARD_TAILS],
)
def test_every_head_with_every_tail(divergence, form, tail):
    check_mixed(divergence, form, tail)


def test_k3_plus_plus_under_the_plain_head_is_biased_in_value_and_gradient():
    assert split(head_entry("reverse_kl", "generic"), k3_plus_plus, "reverse_kl") == (1, 1)


def test_a_detached_coefficient_in_the_head_repairs_k4():
    """sum over S of pi sg(l), with K4 outside: nothing is left of the gradient, nor of the value."""

    def head(logp, ref_logp):
        return sympy.exp(logp) * stop_gradient(logp - ref_logp)

    assert split(head, k4, "reverse_kl").unbiased


def test_a_head_that_is_no_divergence_has_no_constant():
    def half(logp, ref_logp):
        return sympy.exp(logp) * (logp - ref_logp) / 2

    assert split(half, k4, "reverse_kl") == (None, None)
    doubled = split(lambda a, b: head_entry("pearson")(a, b) * 2, kf_plus_plus("pearson"), "pearson")
    assert doubled == (None, None)


def test_constants_that_are_no_integers_are_found():
    def head(logp, ref_logp):  # Q f~ + 2/7 (P - Q)
        return head_entry("pearson")(logp, ref_logp) + (sympy.exp(logp) - sympy.exp(ref_logp)) * 2 / 7

    assert split(head, kf_plus_plus("pearson"), "pearson") == (sympy.Rational(2, 7), sympy.Rational(2, 7))
    odd = make_divergence("odd", 3 * RATIO * sympy.log(RATIO) / 5, source="test")
    assert split_of(odd, "published") == (0, sympy.Rational(3, 5))


@pytest.mark.parametrize("form", ["bregman", "generic"])
@pytest.mark.parametrize("tail", list(REVERSE_TAILS))
def test_what_a_split_says_is_what_enumeration_finds(form, tail):
    """Five tokens, head {0, 2}: what is left in expectation is the multiple that it names, or none."""
    theta, q = reference(11, 5), [x.exp() for x in reference(12, 5)]
    fn, f, head = REVERSE_TAILS[tail][0], oracle.written("reverse_kl", form)[0], [0, 2]
    found = split(head_entry("reverse_kl", form), fn, "reverse_kl")

    def left(x):
        p, log_p = oracle.probabilities(x), x.log_softmax(-1)
        exact = oracle.divergence("reverse_kl", p, q)
        total = sum(q[j] * f(p[j] / q[j]) for j in head) - exact
        return total + sum(p[j].detach() * fn(log_p[j], q[j].log()) for j in range(5) if j not in head)

    def mass(x):
        return oracle.mass(oracle.probabilities(x), head)

    extra, unit = left(theta), mass(theta) - oracle.mass(q, head)
    if found.value is not None:
        torch.testing.assert_close(extra, float(found.value) * unit, rtol=1e-12, atol=1e-14)
    rest, unit = gradient(left, theta), gradient(mass, theta)
    if found.gradient is not None:
        torch.testing.assert_close(rest, float(found.gradient) * unit, rtol=1e-12, atol=1e-14)
    else:
        assert (rest - (rest @ unit) / (unit @ unit) * unit).norm() > 0.01


def test_what_is_refused_by_split():
    with pytest.raises(ValueError, match="depends on log pi itself"):
        split(lambda a, b: sympy.exp(a) * a, k4, "reverse_kl")
    with pytest.raises(ValueError, match="depends on log pi itself"):
        split(head_entry("reverse_kl"), lambda a, b: a**2, "reverse_kl")
    with pytest.raises(ValueError, match="unknown divergence 'reverse'"):
        split(head_entry("reverse_kl"), k4, "reverse")


def test_unknown_forms_are_refused(as_installed):
    with pytest.raises(ValueError, match=r"unknown form 'breg'\. Did you mean 'bregman'"):
        head_entry("reverse_kl", "breg")
    with pytest.raises(ValueError, match=r"unknown divergence 'pearson'\. Known: forward_kl, reverse_kl"):
        mass_penalty_optimum(logs(0.5, 0.5), torch.tensor([0]), 1.0, "pearson")


def test_weights_that_differ_by_a_constant_agree_over_the_whole_vocabulary_only():
    a, b = (gradient_weight(kf_plus_plus("reverse_kl", f)) for f in ("bregman", "generic"))
    assert same_weight(a, b)
    assert abs(sympy.N((b - a).subs(W, 3)) - 1) < 1e-14


# Where the published forms take a policy.


def logs(*probabilities):
    return torch.tensor(probabilities, dtype=torch.float64).log()


def reference(seed, vocab):
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(vocab, generator=generator, dtype=torch.float64)).log_softmax(-1)


def kl(name, p, q):
    return (p.exp() * (p - q)).sum() if name == "reverse_kl" else (q.exp() * (q - p)).sum()


def search(objective, start):
    """The least value that quasi-Newton steps on logits find, and where."""
    theta = start.clone().requires_grad_()
    steps = torch.optim.LBFGS(
        [theta], max_iter=3000, tolerance_grad=1e-13, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure():
        steps.zero_grad()
        loss = objective(theta.log_softmax(-1))
        loss.backward()
        return loss

    steps.step(closure)
    return theta.detach().log_softmax(-1), closure().item()


SETS = [(0, 6, [1]), (1, 6, [0, 2, 5]), (2, 5, [3, 4]), (3, 7, [0, 1, 2, 3, 4, 5])]


@pytest.mark.parametrize("coefficient", [1.0, -1.0, 0.3, -2.5, 4.0, 0.0])
@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl"])
def test_a_mass_penalty_has_its_optimum_where_search_finds_it(name, coefficient):
    for seed, vocab, head in SETS:
        q = reference(seed, vocab)
        found = mass_penalty_optimum(q, torch.tensor(head), coefficient, name)
        assert found.exp().sum().item() == pytest.approx(1.0, abs=1e-13)

        def objective(p, q=q, head=head):
            return kl(name, p, q) + coefficient * p.exp()[head].sum()

        where, least = search(objective, q)
        assert objective(found).item() <= least + 1e-13
        torch.testing.assert_close(found.exp(), where.exp(), rtol=0, atol=2e-7)
        slope = gradient(lambda x, o=objective: o(x.log_softmax(-1)), found)
        assert slope.abs().max() < 1e-13  # stationary in the logits
        inside = torch.zeros(vocab, dtype=torch.bool).index_fill(0, torch.tensor(head), True)
        for part in (inside, ~inside):  # ratios inside the set, and outside it, stay those of the reference
            shift = (found - q)[part]
            assert (shift - shift[0]).abs().max() < 1e-13


def test_closed_forms_of_the_mass():
    for seed, vocab, head in SETS:
        q, indices = reference(seed, vocab), torch.tensor(head)
        m = q.exp()[head].sum().item()
        reverse = mass_penalty_optimum(q, indices, 1.0).exp()[head].sum().item()
        forward = mass_penalty_optimum(q, indices, -1.0, "forward_kl").exp()[head].sum().item()
        assert reverse == pytest.approx(m / (m + math.e * (1 - m)), rel=1e-13)
        assert forward == pytest.approx(math.sqrt(m), rel=1e-13)


def test_the_expected_gradient_of_the_published_form_vanishes_there():
    """Loops over tokens: what Algorithms 1 and 2 descend stops at the closed forms, with the set held."""
    for (name, coefficient), (seed, vocab, head) in itertools.product(
        (("reverse_kl", 1.0), ("forward_kl", -1.0)), SETS
    ):
        q = reference(seed, vocab)
        theta = mass_penalty_optimum(q, torch.tensor(head), coefficient, name)

        def expected(x, name=name, q=q, head=head):
            p, ref = oracle.probabilities(x), [y.exp() for y in q]
            chances = [y.detach() for y in p]
            return sum(c * oracle.estimate(name, "published", p, ref, y, head) for y, c in enumerate(chances))

        assert gradient(expected, theta).abs().max() < 1e-13
        assert gradient(expected, q).abs().max() > 1e-3  # and the reference is no fixed point


@pytest.mark.parametrize("coefficient", [1.0, -1.0, -3.0])
@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl"])
def test_sets_of_no_mass_and_of_all_of_it_change_nothing(name, coefficient):
    q = reference(4, 5)
    for head in ([], [0, 1, 2, 3, 4]):
        found = mass_penalty_optimum(q, torch.tensor(head, dtype=torch.int64), coefficient, name)
        torch.testing.assert_close(found, q, rtol=1e-13, atol=1e-14)
    dead = logs(0.0, 0.25, 0.75)
    for head in ([0], [1, 2]):
        found = mass_penalty_optimum(dead, torch.tensor(head), coefficient, name)
        torch.testing.assert_close(found, dead, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("k", range(8))
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_of_the_largest_k_satisfies_the_conditions_of_optimality(seed, k):
    """log(P/Q) + a is constant for some a in [0, 1], 1 above the k-th largest, 0 below it, with sum k."""
    q = reference(seed, 7)
    p = top_k_mass_optimum(q, k)
    assert p.exp().sum().item() == pytest.approx(1.0, abs=1e-13)
    if k in (0, 7):
        torch.testing.assert_close(p, q, rtol=1e-13, atol=1e-14)
        return
    level = p.sort(descending=True).values[k - 1]
    above, tied = p > level + 1e-9, (p - level).abs() <= 1e-9
    lowered = q - p  # a + constant
    shares = (k - int(above.sum())) / int(tied.sum())
    assert 0 < shares <= 1
    constant = ((lowered.sum() - k) / 7).item()
    a = lowered - constant
    assert (a[above] - 1).abs().max() < 1e-9 if above.any() else True
    below = ~above & ~tied
    assert a[below].abs().max() < 1e-9 if below.any() else True
    assert a.min() > -1e-9
    assert a.max() < 1 + 1e-9
    assert a.sum().item() == pytest.approx(k, abs=1e-9)


def objective_of_the_largest(q, k):
    return lambda p: kl("reverse_kl", p, q) + p.exp().topk(k).values.sum()


@pytest.mark.parametrize("k", [1, 2, 4, 6])
@pytest.mark.parametrize("seed", range(3))
def test_no_search_finds_less_than_the_optimum_of_the_largest_k(seed, k):
    q = reference(seed, 7)
    objective, best = objective_of_the_largest(q, k), top_k_mass_optimum(q, k)
    least = objective(best).item()
    for start in (q, torch.zeros(7, dtype=torch.float64), 3 * reference(seed + 50, 7), best):
        x = start.log_softmax(-1)
        for step in range(1500):  # mirror descent: the subgradient moves log-probs, in ever smaller steps
            p = x.exp()
            head = torch.zeros(7, dtype=torch.float64).index_fill(0, p.topk(k).indices, 1.0)
            x = (x - (x - q + head) * 2 / (2 + step)).log_softmax(-1)
            assert objective(x).item() >= least - 1e-12
        torch.testing.assert_close(x.exp(), best.exp(), rtol=0, atol=2e-3)
    generator = torch.Generator().manual_seed(seed)
    for scale in (1e-6, 1e-3, 0.3):
        near = best + scale * torch.randn(200, 7, generator=generator, dtype=torch.float64)
        assert all(objective(x.log_softmax(-1)).item() >= least - 1e-13 for x in near)


def test_two_tokens_by_hand():
    """Q = (4/5, 1/5), k = 1: e^(-1) 4/5 > 1/5, so the head stays the head and is lowered by e."""
    found = top_k_mass_optimum(logs(0.8, 0.2), 1).exp().tolist()
    assert found == pytest.approx(
        [0.8 / (0.8 + 0.2 * math.e), 0.2 * math.e / (0.8 + 0.2 * math.e)], rel=1e-12
    )
    # Q = (3/5, 2/5): log 3/2 < 1, so the two end level
    assert top_k_mass_optimum(logs(0.6, 0.4), 1).exp().tolist() == pytest.approx([0.5, 0.5], rel=1e-12)
    # three equal tokens stay so
    assert top_k_mass_optimum(logs(1 / 3, 1 / 3, 1 / 3), 2).exp().tolist() == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_a_forbidden_token_changes_nothing_for_the_others(k):
    q = reference(1, 4)
    wide = torch.cat([q[:2], logs(0.0), q[2:]])
    found = top_k_mass_optimum(wide, k)
    assert found[2].item() == -INF
    torch.testing.assert_close(found[[0, 1, 3, 4]], top_k_mass_optimum(q, k), rtol=1e-12, atol=1e-13)


def test_a_head_that_holds_all_that_the_reference_allows_costs_a_constant():
    wide = torch.cat([logs(0.0), reference(2, 3), logs(0.0)])
    for k in (3, 4, 5):
        torch.testing.assert_close(top_k_mass_optimum(wide, k), wide, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: top_k_mass_optimum(logs(0.5, 0.5), 3), "k is 3, expected 0 to 2"),
        (lambda: top_k_mass_optimum(logs(0.5, 0.5), -1), "k is -1, expected 0 to 2"),
        (lambda: top_k_mass_optimum(logs(0.5, 0.4), 1), "ref_logp has a row .* probabilities sum to 0.9"),
        (
            lambda: top_k_mass_optimum(logs(0.5, 0.5)[None], 1),
            r"ref_logp has shape \[1, 2\], expected one row",
        ),
        (
            lambda: mass_penalty_optimum(logs(0.5, 0.5)[None], torch.tensor([0]), 1.0),
            r"ref_logp has shape \[1, 2\], expected one row",
        ),
        (
            lambda: mass_penalty_optimum(logs(0.5, 0.4), torch.tensor([0]), 1.0),
            "ref_logp has a row .* probabilities sum to 0.9",
        ),
    ],
)
def test_what_is_refused(call, wanted):
    with pytest.raises(ValueError, match=wanted):
        call()
