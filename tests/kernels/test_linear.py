"""Divergences, log-probs and top-k from hidden states: the logits are never there, the gradients are."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from kl_companion.kernels.fused import fused_f_divergence, fused_top_k_f_divergence
from kl_companion.kernels.linear import (
    linear_f_divergence,
    linear_forward_kl,
    linear_kl,
    linear_logp,
    linear_logp_and_entropy,
    linear_top_k_f_divergence,
)
from tests.oracles import fused as oracle
from tests.support.fused_cases import NAMES, noise
from tests.support.linear_cases import BOTH, compare, exact_logits, far, inputs, leaves, per_token

SEARCH = settings(max_examples=50)


@st.composite
def settings_of_a_call(draw):
    return {
        "lead": draw(st.sampled_from([(), (1,), (7,), (2, 5), (0,), (3, 0)])),
        "vocab": draw(st.sampled_from([1, 2, 17, 130])),
        "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from([torch.float64, torch.float32])),
        "trained": draw(st.sampled_from([("hidden",), ("weight", "bias"), ("hidden", "weight", "bias")])),
        "known": draw(st.booleans()),
        "scale": draw(st.sampled_from([1.0, -2.0])),
        "options": {
            "temperature": draw(st.sampled_from([1.0, 0.6])),
            "memory": draw(st.sampled_from(["fast", "frugal", 1, 5000])),
            "soft_cap": draw(st.sampled_from([None, 3.0])),
        },
        "reference": draw(st.sampled_from(["hidden", "logits"])),
    }


@SEARCH
@given(st.sampled_from(NAMES), settings_of_a_call())
def test_divergences(name, chosen):
    lead, dtype, options = chosen["lead"], chosen["dtype"], dict(chosen["options"])
    mine = inputs(1, lead, vocab=chosen["vocab"], dtype=dtype, bias=chosen["bias"])
    weights = per_token(1, lead, dtype)
    trained, exact = leaves(mine, chosen["trained"]), {n: oracle.leaf(x) for n, x in mine.items()}
    passed = {**mine, **trained}
    y = exact_logits(exact, "ref_").detach()
    caps = {"soft_cap": options["soft_cap"], "ref_soft_cap": options["soft_cap"]}
    if chosen["reference"] == "logits":
        for n in ("ref_hidden", "ref_weight", "ref_bias"):
            passed.pop(n, None)
        passed["ref_logits"] = y = y.to(dtype)
    known = {"weights": weights} if chosen["known"] else {}
    value = linear_f_divergence(
        name, passed.pop("hidden"), passed.pop("weight"), **passed, **(options | caps), **known
    )
    want = oracle.divergence(name, exact_logits(exact), y, temperature=options["temperature"], **caps)
    compare(value, want, trained, exact, weights, dtype, chosen["scale"])


@SEARCH
@given(settings_of_a_call(), st.sampled_from([(), (3,)]))
def test_log_probs(chosen, count):
    lead, dtype, options = chosen["lead"], chosen["dtype"], chosen["options"]
    mine = inputs(2, lead, vocab=chosen["vocab"], dtype=dtype, bias=chosen["bias"])
    tokens = (noise(3, *lead, *count, 1).abs().squeeze(-1) * 100).long() % chosen["vocab"]
    weights = per_token(2, tokens.shape, dtype)
    trained, exact = leaves(mine, chosen["trained"]), {n: oracle.leaf(x) for n, x in mine.items()}
    passed = {n: trained.get(n, mine.get(n)) for n in ("hidden", "weight", "bias") if n in mine}
    known = {"weights": weights} if chosen["known"] else {}
    value = linear_logp(passed.pop("hidden"), passed.pop("weight"), tokens, **passed, **options, **known)
    plain = {n: options[n] for n in ("temperature", "soft_cap")}
    want = oracle.logp(exact_logits(exact), tokens, **plain)
    compare(value, want, trained, exact, weights, dtype, chosen["scale"])


@settings(SEARCH, max_examples=30)
@given(settings_of_a_call())
def test_log_prob_and_entropy(chosen):
    lead, dtype, options = chosen["lead"], chosen["dtype"], chosen["options"]
    mine = inputs(4, lead, vocab=chosen["vocab"], dtype=dtype, bias=chosen["bias"])
    tokens = (noise(5, *lead, 1).abs().squeeze(-1) * 100).long() % chosen["vocab"]
    weights = per_token(4, (2, *lead), dtype)
    trained, exact = leaves(mine, chosen["trained"]), {n: oracle.leaf(x) for n, x in mine.items()}
    passed = {n: trained.get(n, mine.get(n)) for n in ("hidden", "weight", "bias") if n in mine}
    parts = linear_logp_and_entropy(passed.pop("hidden"), passed.pop("weight"), tokens, **passed, **options)
    plain = {n: options[n] for n in ("temperature", "soft_cap")}
    x = exact_logits(exact)
    want = torch.stack([oracle.logp(x, tokens, **plain), oracle.entropy(x, **plain)])
    compare(torch.stack(parts), want, trained, exact, weights, dtype, chosen["scale"])


@settings(SEARCH, max_examples=30)
@given(settings_of_a_call(), st.sampled_from(NAMES), st.sampled_from(["bregman", "generic", "published"]))
def test_top_k(chosen, name, form):
    lead, dtype, options, vocab = chosen["lead"], chosen["dtype"], chosen["options"], chosen["vocab"]
    mine = inputs(6, lead, vocab=vocab, dtype=dtype, bias=chosen["bias"])
    tokens = (noise(7, *lead, 1).abs().squeeze(-1) * 100).long() % vocab
    indices = noise(8, *lead, vocab).argsort(-1)[..., :4]
    weights, tail_weight = per_token(6, lead, dtype), per_token(9, lead, dtype).abs()
    trained, exact = leaves(mine, chosen["trained"]), {n: oracle.leaf(x) for n, x in mine.items()}
    y = exact_logits(exact, "ref_").detach().log_softmax(-1)
    shipped = y.gather(-1, indices).to(dtype), y.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).to(dtype)
    passed = {n: trained.get(n, mine.get(n)) for n in ("hidden", "weight", "bias") if n in mine}
    value = linear_top_k_f_divergence(
        name,
        passed.pop("hidden"),
        passed.pop("weight"),
        tokens,
        indices,
        *shipped,
        form=form,
        tail_weight=tail_weight,
        **passed,
        **options,
    )
    plain = {n: options[n] for n in ("temperature", "soft_cap")} | {"form": form, "tail_weight": tail_weight}
    want = oracle.top_k(name, exact_logits(exact), tokens, indices, *shipped, **plain)
    compare(value, want, trained, exact, weights, dtype, chosen["scale"])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("memory", ["fast", "frugal", 3000])
def test_bfloat16(known, memory):
    """Against the float64 gradient of the same bfloat16 numbers, in norm."""
    mine = inputs(10, (33,), width=32, vocab=200, dtype=torch.bfloat16)
    mine["weight"], mine["ref_weight"] = mine["weight"] / 4, mine["ref_weight"] / 4
    weights = per_token(10, (33,), torch.bfloat16)
    trained, exact = leaves(mine, BOTH), {n: oracle.leaf(x) for n, x in mine.items()}
    rest = {n: mine[n] for n in ("ref_hidden", "ref_weight")} | ({"weights": weights} if known else {})
    value = linear_kl(trained["hidden"], trained["weight"], memory=memory, **rest)
    want = oracle.divergence("reverse_kl", exact_logits(exact), exact_logits(exact, "ref_").detach())
    compare(value, want, trained, exact, weights, torch.bfloat16)


def test_the_named_ones_and_the_functions_of_logits():
    mine = inputs(11, (2, 6), vocab=90, dtype=torch.float32)
    rest = {n: mine[n] for n in ("ref_hidden", "ref_weight")}
    x, y = (mine[f"{w}hidden"] @ mine[f"{w}weight"].T for w in ("", "ref_"))
    for function, name in ((linear_kl, "reverse_kl"), (linear_forward_kl, "forward_kl")):
        named = function(mine["hidden"], mine["weight"], **rest)
        torch.testing.assert_close(named, fused_f_divergence(name, x, y), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            named, linear_f_divergence(name, mine["hidden"], mine["weight"], **rest), rtol=0, atol=0
        )
    tokens, indices = torch.zeros(2, 6, dtype=torch.int64), torch.tensor([1, 2]).expand(2, 6, 2)
    shipped = y.log_softmax(-1).gather(-1, indices), y.log_softmax(-1)[..., 0]
    torch.testing.assert_close(
        linear_top_k_f_divergence("pearson", mine["hidden"], mine["weight"], tokens, indices, *shipped),
        fused_top_k_f_divergence("pearson", x, tokens, indices, *shipped),
        rtol=1e-4,
        atol=1e-6,
    )


def test_under_autocast():
    """Hidden states in bfloat16 and a weight that stays float32, as mixed precision has them."""
    mine = inputs(15, (9,), width=32, vocab=70, dtype=torch.float32)
    mine["weight"], mine["ref_weight"] = mine["weight"] / 4, mine["ref_weight"] / 4
    rest = {n: mine[n] for n in ("ref_hidden", "ref_weight")}
    exact = {n: oracle.leaf(x) for n, x in mine.items()}
    want = oracle.divergence("reverse_kl", exact_logits(exact), exact_logits(exact, "ref_").detach())
    slopes = oracle.gradients(want, [exact[n] for n in BOTH])
    for hidden_dtype in (torch.bfloat16, torch.float32):
        trained = leaves(mine, BOTH)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = linear_kl(trained["hidden"].to(hidden_dtype), trained["weight"], **rest)
        value.sum().backward()
        assert value.dtype == torch.float32
        assert far(value, want) <= 3e-2
        for name, slope in zip(BOTH, slopes, strict=True):
            assert trained[name].grad.dtype == torch.float32
            assert far(trained[name].grad, slope) <= 3e-2, name


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_inside_gradient_checkpointing(reentrant, known):
    mine = inputs(16, (9,), vocab=30)
    weights = per_token(16, (9,))
    rest = {n: mine[n] for n in ("ref_hidden", "ref_weight")} | ({"weights": weights} if known else {})
    results = []
    for wrap in (lambda f, *a: f(*a), lambda f, *a: checkpoint(f, *a, use_reentrant=reentrant)):
        trained = leaves(mine, BOTH)
        value = wrap(lambda h, w: linear_kl(h, w, **rest), trained["hidden"], trained["weight"])
        (weights * value).sum().backward()
        results.append((value.detach(), trained["hidden"].grad, trained["weight"].grad))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


M = inputs(18, (4,), dtype=torch.float32, bias=True)
H, W, B, RH, RW, RB = (M[n] for n in ("hidden", "weight", "bias", "ref_hidden", "ref_weight", "ref_bias"))


def test_second_derivatives_are_refused():
    hidden = H.clone().requires_grad_()
    for rest in ({}, {"weights": torch.ones(4)}):
        value = linear_kl(hidden, W, ref_hidden=RH, ref_weight=RW, **rest).sum()
        with pytest.raises(RuntimeError, match="second derivative"):
            torch.autograd.grad(torch.autograd.grad(value, hidden, create_graph=True)[0].sum(), hidden)
