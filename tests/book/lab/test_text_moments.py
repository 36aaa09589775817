"""Moments at the tokens of a text: against every draw, one by one, through a real output layer."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch

from kl_book.lab.text_moments import TextMoments, read_text, rounding_and_truncation, text_moments
from kl_companion.llm.generation import generate
from kl_companion.llm.scoring import completion_logits
from kl_companion.llm.tasks import make_task

VOCAB, WIDTH, TOKENS = 6, 4, 5


def world(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the output layer reads, its weights, and the logits of a reference."""
    g = torch.Generator().manual_seed(seed)
    inputs, weights, ref = (
        torch.randn(*shape, generator=g, dtype=torch.float64)
        for shape in ((TOKENS, WIDTH), (VOCAB, WIDTH), (TOKENS, VOCAB))
    )
    return inputs, weights, ref


def by_hand(name: str, placement: str, logp: torch.Tensor, ref_logp: torch.Tensor, y: int) -> tuple:
    """Value of one draw at one token, and a scalar whose gradient is that of the estimate."""
    score, w = logp[y], (ref_logp - logp)[y].detach().exp()
    value = {"k1": -w.log(), "k3": w - 1 - w.log()}.get(name)
    if placement == "reward":
        return value, value * score
    if name == "k1":
        return value, score
    if name == "k3":  # d/dlogp of w - 1 - log w
        return value, (1 - w) * score
    p, log_ratio = logp.exp(), logp - ref_logp
    head = p.detach().topk(2).indices
    if name == "truncated_kl(2, published)":
        inside = (p * log_ratio)[head].sum()
        return inside.detach(), inside
    assert name == "top_k_reverse_kl(2)"  # f = t log t - t + 1 on the head, and on the rest by a sample
    inside = (p * log_ratio - p + ref_logp.exp())[head].sum()
    if y in head.tolist():
        return inside.detach(), inside
    return inside.detach() + (w - 1 - w.log()), inside - w.log() * score


def enumerated(name: str, placement: str, seed: int = 0) -> TextMoments:
    """Every draw at every token, its gradient by automatic differentiation, weighted with its probability."""
    inputs, weights, ref = world(seed)
    rows, sums = [], torch.zeros(2, VOCAB, WIDTH, dtype=torch.float64)
    spread = 0.0
    for t in range(TOKENS):
        w = weights.clone().requires_grad_()
        z = (w @ inputs[t]).detach().requires_grad_()
        ref_logp = ref[t].log_softmax(-1)

        def gradients(scalar: torch.Tensor, z=z, t=t) -> tuple[torch.Tensor, torch.Tensor]:
            (by_logits,) = torch.autograd.grad(scalar, z, retain_graph=True)
            return by_logits, torch.outer(by_logits, inputs[t])

        logp = z.log_softmax(-1)
        p = logp.detach().exp()
        kl = (logp.exp() * (logp - ref_logp)).sum()
        exact, by_weights = gradients(kl)
        draws = [by_hand(name, placement, logp, ref_logp, y) for y in range(VOCAB)]
        values = torch.stack([value.detach() for value, _ in draws])
        each = torch.stack([gradients(scalar)[0] for _, scalar in draws])
        mean, value = (p[:, None] * each).sum(0), (p * values).sum()
        variance = (p * (each - mean).square().sum(-1)).sum()
        numbers = [kl.detach(), value - kl.detach(), (p * (values - value) ** 2).sum()]
        rows.append(torch.stack([*numbers, exact.norm(), (mean - exact).norm(), variance]))
        sums += torch.stack([by_weights, torch.outer(mean - exact, inputs[t])])
        spread += sum(
            p[y] * (torch.outer(each[y] - mean, inputs[t])).square().sum().item() for y in range(VOCAB)
        )
    layer = torch.stack([sums[0].norm(), sums[1].norm(), torch.as_tensor(spread).sqrt()])
    return TextMoments(*torch.stack(rows, -1), layer)


@pytest.mark.parametrize(
    ("name", "placement"),
    [
        *[("k1", "loss"), ("k3", "loss"), ("k1", "reward"), ("k3", "reward")],
        *[("top_k_reverse_kl(2)", "loss"), ("truncated_kl(2, published)", "loss")],
    ],
)
def test_moments_are_those_of_all_draws(name: str, placement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, weights, ref = world()
    wanted = enumerated(name, placement)
    for entries in (2**22, 2 * VOCAB):  # in one block, and in three
        monkeypatch.setattr("kl_book.lab.text_moments._ENTRIES", entries)
        found = text_moments(name, inputs @ weights.T, ref, inputs, placement=placement)
        for field, x, y in zip(TextMoments._fields, found, wanted, strict=True):
            # the sums over the layer's weights are kept in float32
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6 if field == "layer" else 1e-10, msg=field)
    assert found.relative_bias == pytest.approx(
        math.sqrt(wanted.gradient_bias.square().sum() / wanted.gradient.square().sum())
    )
    assert found.relative_noise == pytest.approx(
        math.sqrt(wanted.gradient_variance.sum() / wanted.gradient.square().sum())
    )


def test_bias_is_measured_against_the_target_that_is_named() -> None:
    inputs, weights, ref = world(1)
    own = text_moments("k3", inputs @ weights.T, ref, inputs)
    other = text_moments("k3", inputs @ weights.T, ref, inputs, target="forward_kl")
    assert own.gradient_bias.min() > 1e-3
    assert other.gradient_bias.max() < 1e-12  # K3 in the loss has the gradient of the forward KL


def test_what_does_not_fit_is_refused() -> None:
    inputs, weights, ref = world()
    logits = inputs @ weights.T
    with pytest.raises(ValueError, match=r"logits has shape \[5, 2, 3\], expected \[tokens, vocab\]"):
        text_moments("k1", logits.view(5, 2, 3), ref.view(5, 2, 3), inputs)
    with pytest.raises(ValueError, match=r"inputs has shape \[4, 4\], expected \[5, width\]"):
        text_moments("k1", logits, ref, inputs[:4])
    with pytest.raises(ValueError, match="ref_logits has shape"):
        text_moments("k1", logits, ref[:4], inputs)
    with pytest.raises(ValueError, match=r"inputs has dtype torch\.int64, expected floating point"):
        text_moments("k1", logits, ref, inputs.long())


def test_a_text_is_read_token_by_token(sharp) -> None:
    task = make_task("arithmetic", levels=[2], out_levels=())
    task = type(task)(**{**vars(task), "alphabet": None})
    examples = [
        e._replace(prompt=e.prompt.replace("+", "").replace("-", ""))
        for e in task.draw(5, torch.Generator().manual_seed(0))
    ]
    samples = generate(sharp, task, examples, generator=torch.Generator().manual_seed(1))
    text = read_text(sharp, samples, temperature=0.7)
    inside = samples.completion_mask.bool()
    assert 5 < len(text.tokens) < inside.numel()  # of unequal length
    assert torch.equal(text.tokens, samples.tokens[inside])
    with torch.no_grad():
        logits = completion_logits(sharp.model, samples)[inside]
    torch.testing.assert_close(0.7 * text.logits, logits, rtol=1e-4, atol=1e-5)
    layer = sharp.model.get_output_embeddings().weight
    torch.testing.assert_close(text.inputs @ layer.T, logits, rtol=1e-4, atol=1e-5)
    assert not text.logits.requires_grad
    assert not list(sharp.model.get_output_embeddings()._forward_pre_hooks)
    with pytest.raises(ValueError, match="temperature is 0"):
        read_text(sharp, samples, temperature=0)


def test_the_kl_of_a_truncated_sampler_has_two_parts() -> None:
    g = torch.Generator().manual_seed(3)
    policy = torch.randn(4, 9, generator=g, dtype=torch.float64)
    sampler = policy + 0.1 * torch.randn(4, 9, generator=g, dtype=torch.float64)
    rounding, truncation = rounding_and_truncation(policy, sampler, top_k=3)
    for t in range(4):
        mu, pi = sampler[t].softmax(-1), policy[t].softmax(-1)
        kept = mu.argsort(descending=True)[:3].tolist()
        mass = sum(mu[i].item() for i in kept)
        kl = sum(mu[i] / mass * math.log(mu[i] / mass / pi[i]) for i in kept)
        assert (rounding + truncation)[t].item() == pytest.approx(kl.item())
        assert truncation[t].item() == pytest.approx(-math.log(mass))
    rounding, truncation = rounding_and_truncation(policy, policy, top_p=0.5)
    assert rounding.abs().max() < 1e-12
    assert truncation.min() > 0.1


@pytest.mark.real
def test_the_chapter_s_lines_for_a_text_of_one_s_own_run(root, capsys: pytest.CaptureFixture[str]) -> None:
    chapter = (root / "book/part8_language_models/05_a_real_model.ipynb").read_text(encoding="utf-8")
    cells = ["".join(cell["source"]) for cell in json.loads(chapter)["cells"]]
    (block,) = re.findall(r"```python\n(.*?)```", "\n".join(cells), re.S)
    exec(block, {})
    kl, bias, noise = (float(x) for x in re.findall(r"\d\.\d+(?:e-\d+)?", capsys.readouterr().out))
    assert 5e-4 < kl < 5e-3
    assert 0.01 < bias < 0.2
    assert 1 < noise < 10
