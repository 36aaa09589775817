"""Exact bias and noise of KL estimators at the tokens of a real text, in value and in gradient.

At every token of a completion the next-token distributions of policy and reference are known whole, so an
estimate from one sampled token has an exact mean and an exact variance: every token of the vocabulary is
summed over, and none is drawn (`kl_companion.tabular.token_statistics`).

Gradients are taken with respect to the logits of each token, and to the weights of the output layer for all
tokens of the text together. There the gradient of token t is the outer product of the gradient by its logits
and of what the layer reads, so means add up as matrices, and variances of independent draws as numbers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from kl_companion.checks import check_floating, check_shape
from kl_companion.divergences import Divergence, get_divergence
from kl_companion.estimators.registry import Estimator, get_estimator
from kl_companion.eval_mode import evaluating
from kl_companion.llm.generation import Samples
from kl_companion.llm.models import LanguageModel
from kl_companion.llm.scoring import with_output_inputs
from kl_companion.tabular.draws import SinglePlacement
from kl_companion.tabular.tokens import token_statistics
from kl_companion.tabular.worlds import truncated

_ENTRIES = 2**22  # of a float64 block of rows: thirty megabytes


class Text(NamedTuple):
    """What a model computes at the tokens that a completion chose.

    Attributes:
        logits: Next-token logits, [tokens, vocab] float32.
        inputs: What the output layer reads, [tokens, width] float32.
        tokens: The tokens that were chosen, [tokens] int64.
    """

    logits: torch.Tensor
    inputs: torch.Tensor
    tokens: torch.Tensor


class TextMoments(NamedTuple):
    """Exact moments of an estimate from one sampled token, at every token of a text; [tokens] float64.

    Attributes:
        divergence: The divergence that bias is measured against.
        value_bias: Expected value minus it.
        value_variance: Variance of the value.
        gradient: Norm of the divergence's gradient by the logits.
        gradient_bias: Norm of the expected gradient minus that one.
        gradient_variance: Trace of the gradient's covariance.
        layer: The same three for the output layer's weights and the sum over all tokens, [3]: the norm of
            the divergence's gradient, that of the bias, and the root of the trace of the covariance.
    """

    divergence: torch.Tensor
    value_bias: torch.Tensor
    value_variance: torch.Tensor
    gradient: torch.Tensor
    gradient_bias: torch.Tensor
    gradient_variance: torch.Tensor
    layer: torch.Tensor

    @property
    def relative_bias(self) -> float:
        """Bias of the gradient by the logits in units of the divergence's, over all tokens."""
        return (self.gradient_bias.square().sum() / self.gradient.square().sum()).sqrt().item()

    @property
    def relative_noise(self) -> float:
        """Standard deviation of the gradient by the logits in the same units."""
        return (self.gradient_variance.sum() / self.gradient.square().sum()).sqrt().item()


def read_text(lm: LanguageModel, samples: Samples, *, temperature: float = 1.0) -> Text:
    """What a model computes at the chosen tokens of given completions, in the order of the rows.

    Args:
        lm: The model; it is run in evaluation mode, without gradients.
        samples: From `kl_companion.llm.generation.generate`.
        temperature: The logits are divided by it.

    Raises:
        ValueError: temperature not above 0.
    """
    inside = samples.completion_mask.bool()
    with evaluating(lm.model):
        logits, inputs = with_output_inputs(lm.model, samples, temperature=temperature)
    return Text(logits[inside], inputs[inside].float(), samples.tokens[inside])


def text_moments(
    estimator: str | Estimator,
    logits: torch.Tensor,
    ref_logits: torch.Tensor,
    inputs: torch.Tensor,
    *,
    placement: SinglePlacement = "loss",
    target: str | Divergence | None = None,
) -> TextMoments:
    """Exact moments of an estimator at every token of a text that the policy wrote.

    Args:
        estimator: Any registered estimator or `Estimator`, for one token drawn from the policy.
        logits: Of the policy, [tokens, vocab]; -inf for a token that it never says.
        ref_logits: Of the reference, the same shape.
        inputs: What the policy's output layer reads, [tokens, width].
        placement: ``"loss"`` or ``"reward"``, see `kl_companion.tabular.token_moments`.
        target: The divergence that bias is measured against; the estimator's own by default.

    Raises:
        ValueError: shapes that do not fit, no token, and what `kl_companion.tabular.token_moments` raises.
    """
    entry = get_estimator(estimator)
    against = get_divergence(entry.target if target is None else target)
    for name, x in (("logits", logits), ("ref_logits", ref_logits), ("inputs", inputs)):
        check_floating(name, x)
    if logits.ndim != 2 or not logits.numel():
        raise ValueError(
            f"logits has shape {list(logits.shape)}, expected [tokens, vocab], one token or more"
        )
    check_shape("ref_logits", ref_logits, logits.shape, "logits [tokens, vocab]")
    if inputs.ndim != 2 or len(inputs) != len(logits):
        raise ValueError(f"inputs has shape {list(inputs.shape)}, expected [{len(logits)}, width]")
    rows: list[torch.Tensor] = []
    # by the layer's weights: the target's, the bias
    sums = torch.zeros(2, logits.shape[1], inputs.shape[1], device=logits.device)
    for part in torch.arange(len(logits), device=logits.device).split(max(1, _ENTRIES // logits.shape[1])):
        logp, ref_logp = (x[part].double().log_softmax(-1) for x in (logits, ref_logits))
        draws = token_statistics(entry, logp, ref_logp, placement=placement, target=against)
        exact = draws.target_gradient.squeeze(-2)
        off = draws.gradient.squeeze(-2) - exact
        for total, each in zip(sums, (exact, off), strict=True):
            total.addmm_(each.float().T, inputs[part].float())
        numbers = [draws.target_value, draws.value - draws.target_value, draws.value_variance]
        numbers += [exact.norm(dim=-1), off.norm(dim=-1), draws.single]
        rows.append(torch.stack(numbers))
    found = torch.cat(rows, 1)
    spread = (found[-1] * inputs.double().square().sum(-1)).sum().sqrt()
    size, bias = (x.norm().double() for x in sums)
    return TextMoments._make([*found, torch.stack([size, bias, spread])])


def rounding_and_truncation(
    logits: torch.Tensor, sampler_logits: torch.Tensor, **head: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """The two parts of the KL of a truncated sampler to the trainer's policy, [tokens] float64 each.

    The sampler draws from its own distribution mu on the tokens that top-p or top-k leaves. The KL of that to
    the policy is E log mu/pi under it, what the two engines round differently (it may be negative), plus the
    logarithm of 1 over the mass of mu that is kept.

    Args:
        logits: Of the policy as the trainer computes it, [tokens, vocab].
        sampler_logits: Of the model as the sampler computes it, before truncation.
        **head: ``top_p`` or ``top_k``, as `kl_companion.tabular.worlds.truncated`.

    Raises:
        ValueError: as `truncated`.
    """
    policy, sampler = (x.double().log_softmax(-1) for x in (logits, sampler_logits))
    cut = truncated(sampler, **head)
    mass = cut.logsumexp(-1)
    p = (cut - mass.unsqueeze(-1)).exp()
    return (p * (sampler - policy)).sum(-1), -mass
