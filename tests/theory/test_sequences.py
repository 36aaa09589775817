"""The gradient of the KL of sequences in symbols, against trees written out by hand in float64."""

import itertools
import math

import pytest
import sympy

from kl_companion.theory import sequences
from kl_companion.theory.sequences import (
    add,
    credit_term,
    curl,
    gradient,
    in_logs,
    partial_gradients,
    sequence_kl,
    symbolic_tree,
)

TREES = [(2, 2, False), (2, 2, True), (2, 3, True)]


def numbers(tree):
    """Every symbol as a number: irregular, the same in each run."""
    every = [x for odds in (tree.odds, tree.ref_odds) for row in odds.values() for x in row]
    return {x: 0.3 + ((7 * i * i + 3 * i) % 11) / 5 for i, x in enumerate(every)}


def kl_by_hand(tree, at):
    """sum_y pi(y) log(pi(y) / ref(y)), in floats, from the odds alone."""
    total = 0.0
    for y in tree.sequences:
        p = q = 1.0
        for t, a in enumerate(y):
            row, ref = ([at[x] for x in odds[y[:t]]] for odds in (tree.odds, tree.ref_odds))
            p, q = p * row[a] / sum(row), q * ref[a] / sum(ref)
        total += p * math.log(p / q)
    return total


def slope_by_hand(tree, at, x, step=1e-5):
    return sum(sign * kl_by_hand(tree, {**at, x: at[x] * math.exp(sign * step)}) for sign in (1, -1)) / (
        2 * step
    )


def is_zero(field):
    return all(e == 0 for e in field.values())


def minus(field):
    return {x: -e for x, e in field.items()}


@pytest.mark.parametrize(("vocab", "length", "eos"), TREES)
def test_the_kl_of_sequences_is_the_sum_of_the_kl_of_tokens(vocab, length, eos):
    tree = symbolic_tree(vocab, length, eos=eos)
    at = numbers(tree)
    assert float(sequence_kl(tree).subs(at)) == pytest.approx(kl_by_hand(tree, at), abs=1e-13)


@pytest.mark.parametrize(("vocab", "length", "eos"), TREES)
def test_the_gradient_agrees_with_differences_by_hand(vocab, length, eos):
    tree = symbolic_tree(vocab, length, eos=eos)
    at = numbers(tree)
    for x, slope in gradient(tree, sequence_kl(tree)).items():
        assert float(slope.subs(at)) == pytest.approx(slope_by_hand(tree, at, x), abs=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("vocab", "length", "eos"), TREES)
def test_past_terms_vanish_and_the_two_parts_make_the_gradient(vocab, length, eos):
    tree = symbolic_tree(vocab, length, eos=eos)
    for s, t in itertools.combinations(range(length), 2):
        assert is_zero(credit_term(tree, s, t))
        assert not is_zero(credit_term(tree, t, s))
    own, later = partial_gradients(tree)
    assert is_zero(add(own, later, minus(gradient(tree, sequence_kl(tree)))))
    assert not is_zero(later)


def test_a_token_that_pays_for_itself_descends_the_kl_of_its_own_row():
    """Part i, by hand: P(prefix) times the gradient of the KL of the next token."""
    tree = symbolic_tree(2, 2)
    at = numbers(tree)
    own, _ = partial_gradients(tree)
    for prefix, row in tree.odds.items():
        p = [at[x] / sum(at[z] for z in row) for x in row]
        q = [at[x] / sum(at[z] for z in tree.ref_odds[prefix]) for x in tree.ref_odds[prefix]]
        kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        reach = 1.0
        for t, token in enumerate(prefix):
            before = [at[x] for x in tree.odds[prefix[:t]]]
            reach *= before[token] / sum(before)
        for x, a, b in zip(row, p, q, strict=True):
            assert float(own[x].subs(at)) == pytest.approx(reach * a * (math.log(a / b) - kl), abs=1e-13)


@pytest.mark.slow
def test_the_partial_gradient_has_curl_and_the_whole_one_has_none():
    tree = symbolic_tree(2, 2)
    own, later = partial_gradients(tree)
    assert curl(gradient(tree, sequence_kl(tree))) == {}
    found = curl(own)
    first, second = set(tree.odds[()]), set(tree.odds[(0,)]) | set(tree.odds[(1,)])
    # how often a row is visited depends on the row before, and only that way round
    assert found
    assert all({a, b} & first and {a, b} & second for a, b in found)
    assert curl(later)


def test_one_token_has_nothing_to_miss():
    tree = symbolic_tree(3, 1)
    own, later = partial_gradients(tree)
    assert is_zero(later)
    assert is_zero(add(own, minus(gradient(tree, sequence_kl(tree)))))
    assert curl(own) == {}


def test_sequences_end_at_token_zero():
    tree = symbolic_tree(2, 3, eos=True)
    assert tree.sequences == ((0,), (1, 0), (1, 1, 0), (1, 1, 1))
    assert list(tree.odds) == [(), (1,), (1, 1)]
    assert sequences.log_ratio(tree, (0,), 1) == 0
    assert tree.length == 3


def test_a_sum_of_logarithms_is_zero_only_if_it_comes_out_as_zero():
    x, y = sympy.symbols("x y", positive=True)
    assert in_logs(sympy.log(x / (x + y)) - sympy.log(x) + sympy.log(x + y)) == 0
    assert in_logs((x**2 - y**2) / (x - y) * sympy.log(x) - (x + y) * sympy.log(x)) == 0
    assert in_logs(sympy.log(x) * x / (x + y) - sympy.log(x)) != 0
    assert in_logs(x + sympy.log(y)) == x + sympy.log(y)
