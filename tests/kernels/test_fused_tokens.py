"""Log-probs, entropies and top-k divergences from raw logits, against float64 sums."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.estimators.sampled import FORMS
from kl_companion.estimators.top_k import top_k_f_divergence
from kl_companion.kernels import walks
from kl_companion.kernels.fused import fused_logp, fused_logp_and_entropy, fused_top_k_f_divergence
from tests.oracles import fused as oracle
from tests.support.fused_cases import (
    INF,
    MODES,
    cases,
    gradient_error,
    logits_pair,
    noise,
    run,
    value_error,
)

SEARCH = settings(max_examples=40)


def possible(logits, seed, *count):
    """Tokens [..., *count] that the policy can draw."""
    chance = logits.double().softmax(-1) + 1e-6 * ~logits.isneginf()
    rows = chance.reshape(-1, logits.shape[-1])
    draws = max(1, *count, 1)
    if not len(rows):
        return torch.zeros(*logits.shape[:-1], *count, dtype=torch.int64)
    picked = rows.multinomial(draws, True, generator=torch.Generator().manual_seed(seed))
    return picked.reshape((*logits.shape[:-1], *count))


@SEARCH
@given(cases(), st.sampled_from([(), (1,), (5,)]), st.sampled_from(MODES))
def test_log_probs_of_given_tokens(case, count, mode):
    tokens = possible(case.logits, case.seed, *count)
    weights = noise(case.seed + 1, *tokens.shape, 1).squeeze(-1).float()
    options = {"temperature": case.temperature}
    value, gradient = run(fused_logp, case.logits, tokens, mode=mode, weights=weights, scale=2.0, **options)
    leaf = oracle.leaf(case.logits)
    want = oracle.logp(leaf, tokens, **options)
    assert value_error(value, want, case.logits.dtype) <= 1
    (slope,) = oracle.gradients(want, leaf, weights)
    terms = weights.abs().sum(-1) if count else 0.0
    assert gradient_error(gradient, 2 * slope, case.logits.dtype, terms=terms) <= 1


@SEARCH
@given(cases(), st.booleans(), st.sampled_from(["both", "logp", "entropy"]))
def test_log_prob_and_entropy(case, inplace, used):
    logits, tokens = case.logits, possible(case.logits, case.seed)
    options = {"temperature": case.temperature}
    leaf = logits.clone().requires_grad_()
    made = leaf * 1.0 if inplace else leaf
    parts = fused_logp_and_entropy(made, tokens, inplace=inplace, **options)
    exact = oracle.leaf(logits)
    wanted = oracle.logp(exact, tokens, **options), oracle.entropy(exact, **options)
    for got, want in zip(parts, wanted, strict=True):
        assert value_error(got.detach(), want, logits.dtype) <= 1
    weights = [case.weights * (used in ("both", name)) for name in ("logp", "entropy")]
    kept = [i for i, name in enumerate(("logp", "entropy")) if used in ("both", name)]
    total = sum((weights[i] * parts[i]).sum() for i in kept)
    (gradient,) = torch.autograd.grad(total, leaf)
    reference = sum((weights[i].double() * wanted[i]).sum() for i in kept)
    (want,) = torch.autograd.grad(reference, exact)
    assert gradient_error(gradient, want, logits.dtype) <= 1


@pytest.mark.parametrize("height", [2.0, 12.0, 17.0, 40.0, 1e4])
@pytest.mark.parametrize("token", [3, 5])
def test_a_row_in_which_one_token_has_nearly_everything(height, token):
    x = noise(1, 2, 30)
    x[:, 3] = x.max() + height
    x, tokens = x.float(), torch.tensor([token, token])
    exact = oracle.leaf(x)
    for mode in MODES:
        weights = torch.tensor([1.0, -0.5])
        value, gradient = run(fused_logp, x, tokens, mode=mode, weights=weights)
        want = oracle.logp(exact, tokens)
        assert value_error(value, want, x.dtype) <= 1
        assert gradient_error(gradient, oracle.gradients(want, exact, weights)[0], x.dtype) <= 1
    leaf = x.clone().requires_grad_()
    _, entropy = fused_logp_and_entropy(leaf, tokens)
    want = oracle.entropy(exact)
    assert value_error(entropy.detach(), want, x.dtype) <= 1
    entropy.sum().backward()
    assert gradient_error(leaf.grad, oracle.gradients(want, exact)[0], x.dtype) <= 1


def test_rows_of_one_token_have_no_entropy():
    value, entropy = fused_logp_and_entropy(torch.tensor([[3.0], [-1e4]]), torch.tensor([0, 0]))
    assert torch.equal(value, torch.zeros(2))
    assert torch.equal(entropy, torch.zeros(2))


def teacher(ref_logits, indices, tokens, dtype):
    """What a teacher ships: its log-probs of the head [..., k] and of the sampled token [...]."""
    logp = ref_logits.double().log_softmax(-1)
    return logp.gather(-1, indices).to(dtype), logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).to(dtype)


def head_of(logits, seed, k):
    """k different ids a row, [..., k], in no order."""
    return noise(seed, *logits.shape).argsort(-1)[..., :k].contiguous()


# The teacher's log-probs are numbers of about 10 rounded to float32: log P - log Q is known to 1e-6.
CLOSE = {torch.float64: (1e-9, 1e-12), torch.float32: (1e-5, 4e-6)}
HALF = {torch.bfloat16: (2**-8, 4e-6), torch.float16: (2**-10, 4e-6)}


def close(got, want, rtol, atol):
    """Within rtol of the largest entry of the row, and atol."""
    norm = want.abs().amax(-1, keepdim=True) if want.ndim and want.numel() else want.abs()
    return bool(((got.double() - want).abs() <= rtol * norm + atol).all())


@SEARCH
@given(
    cases(masks=("none",), longest=60),
    st.sampled_from(["reverse_kl", "forward_kl", "jensen_shannon", "amari_alpha(0.5)"]),
    st.sampled_from(FORMS),
    st.sampled_from([0, 1, 4, 400]),
    st.booleans(),
    st.booleans(),
)
def test_top_k_with_a_given_head(case, name, form, k, weighted, inplace):
    logits = case.logits
    tokens = possible(logits, case.seed)
    indices = head_of(logits, case.seed, min(k, logits.shape[-1]))
    exact_dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    shipped = teacher(case.ref_logits, indices, tokens, exact_dtype)
    options = {"form": form, "temperature": case.temperature}
    options["tail_weight"] = case.weights.abs() if weighted else None
    leaf = logits.clone().requires_grad_()
    made = leaf * 1.0 if inplace else leaf
    value = fused_top_k_f_divergence(name, made, tokens, indices, *shipped, inplace=inplace, **options)
    (gradient,) = torch.autograd.grad((case.weights * value).sum(), leaf)
    exact = oracle.leaf(logits)
    want = oracle.top_k(name, exact, tokens, indices, *shipped, **options)
    (slope,) = oracle.gradients(want, exact, case.weights)
    assert value.dtype == exact_dtype
    assert close(value.detach().unsqueeze(-1), want.detach().unsqueeze(-1), *CLOSE[exact_dtype])
    assert gradient.dtype == logits.dtype
    assert close(gradient, slope, *(HALF | CLOSE)[logits.dtype])
    assert inplace or torch.equal(leaf.detach(), logits)


def test_top_k_agrees_with_the_estimator_on_log_probs():
    """The same options mean the same thing; a head [k] that all rows share, and one a row."""
    x, y = logits_pair(2, 3, 4, 50, gap=1.0)
    tokens, weight = possible(x, 3), noise(4, 3, 4).abs().float()
    for indices in (head_of(x, 5, 6), torch.tensor([4, 40, 7])):
        shipped = teacher(y, indices.expand(3, 4, -1), tokens, torch.float32)
        for name, form in (("reverse_kl", "published"), ("forward_kl", "generic"), ("neyman", "bregman")):
            ours = fused_top_k_f_divergence(name, x, tokens, indices, *shipped, form=form, tail_weight=weight)
            theirs = top_k_f_divergence(
                name,
                x.log_softmax(-1),
                y.log_softmax(-1),
                tokens,
                indices=indices,
                form=form,
                tail_weight=weight,
            )
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_top_k_with_masked_tokens_in_the_head(form):
    """-inf in both costs nothing, -inf in one of them what the divergence says, or an error."""
    x, y = logits_pair(6, 2, 12)
    indices, tokens = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([7, 3])
    x[:, 1], y[:, 1], x[:, 2], y[:, 4] = -INF, -INF, -INF, -INF
    for name in ("jensen_shannon", "squared_hellinger", "total_variation"):
        shipped = teacher(y, indices, tokens, torch.float32)
        exact = oracle.leaf(x)
        want = oracle.top_k(name, exact, tokens, indices, *shipped, form=form)
        leaf = x.clone().requires_grad_()
        value = fused_top_k_f_divergence(name, leaf, tokens, indices, *shipped, form=form)
        value.sum().backward()
        torch.testing.assert_close(value.detach().double(), want.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(leaf.grad.double(), oracle.gradients(want, exact)[0], rtol=1e-5, atol=1e-6)
    for name, row in (("reverse_kl", 1), ("forward_kl", 0)):
        value = fused_top_k_f_divergence(name, x, tokens, indices, *shipped, form=form)
        assert value[row].item() == INF
        with pytest.raises(ValueError, match=rf"{name} is infinite at \[{row}"):
            fused_top_k_f_divergence(name, x, tokens, indices, *shipped, form=form, validate=True)


def test_slopes_by_differences():
    x, y = logits_pair(7, 2, 5, dtype=torch.float64)
    tokens, indices = torch.tensor([1, 4]), torch.tensor([[0, 2], [4, 3]])
    shipped = teacher(y, indices, tokens, torch.float64)
    leaf = x.requires_grad_()
    for fn in (
        lambda a: fused_logp(a, indices, temperature=0.7),
        lambda a: fused_logp_and_entropy(a, tokens, temperature=0.7),
        lambda a: fused_top_k_f_divergence("forward_kl", a, torch.tensor([0, 4]), indices, *shipped),
    ):
        torch.autograd.gradcheck(fn, (leaf,))


def test_log_probs_read_their_rows_once_for_the_value_and_once_for_the_gradient(monkeypatch):
    read = []
    of = {name: getattr(walks, name) for name in ("TOKEN_SUMS", "TOKEN_GRADIENT")}
    for name, kernel in of.items():
        monkeypatch.setattr(walks, name, lambda *a, n=name, k=kernel, **o: read.append(n) or k(*a, **o))
    logits = noise(3, 4, 50).float().requires_grad_()
    logp, entropy = fused_logp_and_entropy(logits, torch.arange(4))
    (logp + entropy).sum().backward()
    fused_logp(logits, torch.arange(4)).sum().backward()
    assert read == ["TOKEN_SUMS", "TOKEN_GRADIENT"] * 2
