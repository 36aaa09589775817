"""Tunix's installed text with PyTorch in the place of JAX: stand-ins beside numpy, wiring, and defaults."""

import ast
import math

import numpy as np
import pytest
import torch

from kl_companion import prefix_tree
from kl_companion.auditing.reading.precision import exactly
from kl_companion.frameworks import jax_numpy, setting, tunix, tunix_functions
from kl_companion.frameworks.installed import find, known
from kl_companion.frameworks.jax_numpy import Array, array, jax, jnp
from tests.support.data import data
from tests.support.frameworks.by_hand import rollout

DATA = data(__file__)

A = np.array([[-3.0, 0.5, 2.0], [1.0, 4.0, -0.25]])
B = np.array([[1.0, 0.5, -2.0], [0.0, 5.0, 0.25]])
P = np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7]])  # distributions, one without its last token
LOG_SOFTMAX = A - np.log(np.exp(A).sum(-1, keepdims=True))
INDEX = np.array([[2, 0], [1, 1]])


def t(x):
    return torch.from_numpy(np.array(x))


OPERATIONS = DATA["operations"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_beside_numpy(name):
    found, wanted = (eval(x, {**vars(jax_numpy), **globals()}) for x in OPERATIONS[name])
    wanted = np.asarray(wanted)
    assert found.numpy().dtype == wanted.dtype
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12 if wanted.dtype == np.float64 else 1e-7)


# functions of one array, and of two, under numpy's own names
ONE = """abs ceil cos cumsum exp expm1 floor isfinite isinf isnan log10 log1p log2 nan_to_num ones_like prod
    round sign sin sqrt square tanh tril triu zeros_like sum mean max min std var negative reciprocal absolute
    transpose argmax squeeze flip"""
TWO = """maximum minimum logaddexp add subtract multiply divide equal greater greater_equal less less_equal
    not_equal power"""
KEPT = {"axis": -1, "keepdims": True}


@pytest.mark.parametrize("name", [*ONE.split(), *TWO.split()])
def test_a_function_of_numpys_own_name(name):
    given = [t(np.abs(A) + 0.5)] if name in ONE.split() else [t(np.abs(A)), t(np.abs(B))]
    arguments = [0] if name == "cumsum" else []
    with np.errstate(all="ignore"):
        wanted = getattr(np, name)(*(x.numpy() for x in given), *arguments)
    found = getattr(jnp, name)(*given, *arguments)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "std", "var"])
def test_reductions_and_methods_along_an_axis(name):
    wanted = getattr(A, name)(**KEPT)
    for found in (getattr(jnp, name)(t(A), **KEPT), getattr(array(t(A)), name)(**KEPT)):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)
    np.testing.assert_allclose(jnp.sum(t(A), axis=1, where=t(A > 0)), np.sum(A, 1, where=A > 0), rtol=1e-12)
    assert jnp.mean(t(A), where=t(A > 0)).item() == pytest.approx(A[A > 0].mean(), rel=1e-12)


def test_entries_are_changed_in_a_copy():
    x = array(t(A))
    assert x.at[0].set(0.0)[0].tolist() == [0.0] * 3
    assert x.at[:, 1].add(1.0)[:, 1].tolist() == (A[:, 1] + 1).tolist()
    assert x.at[1, 2].multiply(4.0)[1, 2].item() == A[1, 2] * 4
    assert x.tolist() == A.tolist()


def test_what_has_no_stand_in_says_what_to_write():
    with pytest.raises(ValueError, match=r"jax.numpy.fft is not among the functions that stand in") as no:
        jnp.fft  # noqa: B018
    assert "x.detach() for stop_gradient(x)" in str(no.value)


def test_gradients_pass_through_what_stands_in():
    x = t(A).requires_grad_()
    y = array(x).astype(jnp.float32)
    assert isinstance(jnp.exp(y) * 2, Array)
    (slope,) = torch.autograd.grad(jnp.clip(y, -1.0, 1.5).sum(), x)
    assert torch.equal(slope, t((A > -1) & (A < 1.5)).double())
    assert not jax.lax.stop_gradient(array(x)).requires_grad


# -- the functions, wired -----------------------------------------------------------------------------------


def _batch():
    problem = prefix_tree(3, 3, seed=0, eos=True, off_policy=True)
    return problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 5, 9]))


def _value_and_slope(loss):
    r = _batch()
    value = exactly(loss)(r)
    return value.item(), torch.autograd.grad(value, r.logits)[0]


def _same(one, other):
    (a, x), (b, y) = _value_and_slope(one), _value_and_slope(other)
    assert a == pytest.approx(b, rel=1e-12)
    assert (x - y).abs().max() < 1e-12


def test_two_names_of_one_aggregation():
    """No caller hands in the norm of sequence-mean-token-sum-norm, which is then the number of sequences."""
    _same(
        lambda r: tunix.grpo(r, kind="low_var_kl", mode="sequence-mean-token-sum-norm"),
        setting("tunix.grpo_low_var_kl_seq_mean_token_sum").loss,
    )


def test_the_kl_is_added_to_the_policy_loss_with_its_coefficient():
    a = torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64).expand(3, 3)
    options = {"beta": 0.25, "kl_loss_mode": "low_var_kl"}
    whole = _value_and_slope(lambda r: tunix_functions.policy_loss("grpo_loss_fn", r, a, **options))
    parts = [_value_and_slope(x) for x in (lambda r: tunix_functions.grpo_policy(r, a), setting(LOW).loss)]
    assert whole[0] == pytest.approx(parts[0][0] + 0.25 * parts[1][0], rel=1e-12)
    assert (whole[1] - parts[0][1] - 0.25 * parts[1][1]).abs().max() < 1e-12


LOW = "tunix.grpo_low_var_kl"


def test_ppo_has_no_kl_in_its_loss():
    """`ppo_policy_loss_fn` reads ``kl_coef``, which ``PPOConfig`` has not, and no KL is added without it."""
    names = {n.target.id for n in _fields("tunix/rl/ppo/ppo_learner.py", "PPOConfig")}
    assert "beta" in names
    assert "kl_coef" not in names
    nothing = torch.zeros(3, 3, dtype=torch.float64)
    assert _value_and_slope(lambda r: tunix_functions.ppo_policy(r, nothing))[0] == 0


def test_the_clamp_is_of_values_and_leaves_no_gradient():
    """k3 of 0.5 and 0.02 is 0.04 - 1 + log 25 = 2.258876; the second token has 4 - 1 - log 4."""
    r = rollout(reference=(0.02, 0.8))
    value = exactly(setting("tunix.grpo_low_var_kl_clamped").loss)(r)
    assert value.item() == pytest.approx((2 + 3 - math.log(4)) / 2, abs=1e-12)
    (slope,) = torch.autograd.grad(value, r.logits)
    assert slope[0, 0].abs().max() == 0
    assert slope[0, 1].abs().max() > 0.1


def test_advantages_of_tunix():
    """Of groups by (x - mean) / (s + 1e-6), of a batch by (x - mean) / sqrt(s^2 + 1e-8)."""
    x = np.array([[1.0, 0.0, 0.0, 4.0], [2.0, 2.5, -1.0, 0.0]])
    apart, s = x - x.mean(1, keepdims=True), x.std(1, ddof=1, keepdims=True)
    np.testing.assert_allclose(tunix_functions.by_group(t(x)).numpy(), apart / (s + 1e-6), rtol=1e-12)
    np.testing.assert_allclose(
        tunix_functions.by_batch(t(x)).numpy(), apart / np.sqrt(s**2 + 1e-8), rtol=1e-8
    )


@pytest.mark.parametrize("name", ["grpo_policy", "dr_grpo_policy", "ppo_policy"])
def test_policy_losses_of_tunix(name):
    """The pessimistic clipped ratio, 1 +- 0.2, of pi/mu = 5/4 and 4/5, whose edges are 6/5 and 4/5."""
    r = rollout()
    a = torch.tensor([[1.0, 3.0]], dtype=torch.float64)
    total = -(6 / 5 * 1 + 4 / 5 * 3)
    tokens = 1 if name == "dr_grpo_policy" else 2
    found = getattr(tunix_functions, name)(r, a)
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(total / tokens, abs=1e-12)
    assert type(found) is torch.Tensor


def test_padding_counts_in_the_distillation_of_logits():
    """The mean is over all positions: a position behind an answer's end weighs as much as one before it."""
    student = torch.zeros(1, 2, 3, dtype=torch.float64)
    teacher = student.clone()
    teacher[0, 1, 0] = 2.0  # a difference at the second position only
    strategy = tunix.SimpleNamespace(temperature=1.0, distill_top_k=0, alpha=1.0)
    loss = tunix_functions.functions().logit_loss
    value, _ = loss(strategy, array(student), array(teacher), torch.zeros_like(teacher))
    q = np.exp([2.0, 0.0, 0.0]) / np.exp([2.0, 0.0, 0.0]).sum()
    assert value.item() == pytest.approx((q * np.log(3 * q)).sum() / 2, abs=1e-6)


@pytest.mark.parametrize("reference", [-3.0, 0.0, 3.0])
def test_the_default_lengthens_answers_whatever_the_reference(reference):
    """In the mean over answers of 1, 2, ... tokens, each token followed by another with probability 1/2.

    Its gradient is that of sum 2^-T / T = log 2 per answer. With p to go on it is log(1/(1-p)) (1-p) / p,
    whose derivative at 1/2 is 2 - 4 log 2, and that of p by its logit is 1/4.
    """
    total = 0.0
    theta = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
    compute, gather = (
        tunix_functions.functions().__dict__[n] for n in ("compute_kl_divergence", "aggregate_loss")
    )
    for length in range(1, 24):
        signs = torch.ones(1, length, dtype=torch.float64)
        signs[0, -1] = -1
        logp, ref = (array(torch.nn.functional.logsigmoid(x * signs)) for x in (theta, reference))
        kl = compute(logp, ref, "kl")
        total = total + 0.5**length * gather(kl, array(torch.ones_like(signs)), "sequence-mean-token-mean")
    (slope,) = torch.autograd.grad(total, theta)
    assert slope.item() == pytest.approx((2 - 4 * math.log(2)) / 4, abs=1e-6)
    assert slope.item() < -0.19


def _fields(file, name):
    """The annotated assignments of a class of an installed file."""
    tree = ast.parse((find(*known("tunix")).root / file).read_text())
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return [n for n in found.body if isinstance(n, ast.AnnAssign)]
