"""From numbers of tokens to the columns of an observation: means, intervals, errors, shares."""

from __future__ import annotations

import math

import torch

from kl_companion.estimators.sampled import k3
from kl_companion.monitor.given import StepAnswers
from kl_companion.monitor.looking import LogitsRead
from kl_companion.monitor.moments import Asked, TokenNumbers
from kl_companion.student_t import t_quantile


def sampled_of(
    given: StepAnswers, looked: LogitsRead | None, sampled: tuple[torch.Tensor | None, torch.Tensor | None]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the tokens inside under policy and reference, [tokens] each, float64, on the host."""
    if looked is not None:
        return looked.numbers.logp, looked.numbers.ref_logp
    logp, ref_logp = (x.detach()[given.inside].double() for x in sampled if x is not None)
    return logp, ref_logp


def columns_of(
    given: StepAnswers,
    looked: LogitsRead | None,
    pair: tuple[torch.Tensor, torch.Tensor],
    asked: Asked,
    beta: float | None,
    divided: str | None,
    logged: float | None,
) -> dict[str, float | None]:
    """The columns that answers give, as far as they are known.

    Args:
        given: The answers.
        looked: What was read of their logits; None where only log-probs are known.
        pair: From `sampled_of`.
        asked: The clamp, whether the trainer's estimator is known, and ids that end an answer.
        beta: The KL coefficient, if it is known.
        divided: How rewards are divided: ``"group_std"``, ``"batch_std"``, another word, or None for not at
            all; the first two are computed from the rewards where ``given`` has no deviations.
        logged: The trainer's number, if it is known.
    """
    ratio = pair[0] - pair[1]
    found: dict[str, float | None] = {"largest_log_ratio": ratio.abs().max().item()}
    if asked.clamp is not None:
        low, high = asked.clamp
        found["dead_zone"] = ((ratio < low) | (ratio > high)).double().mean().item()
    found |= _mismatch(given, looked, pair[0]) | _groups(given, beta, divided)
    if looked is None:
        return found
    if asked.ends and given.advantages is not None:
        inside, end = given.inside, looked.numbers.end
        ended = torch.isin(given.tokens[inside], torch.tensor(asked.ends))
        advantages = given.advantages[inside].double()
        # minus the gradient of -advantage log-prob by the logit of the end
        found["length_pull_reward"] = (advantages * (ended.double() - end)).sum().item() / len(inside)
    return found | _exact(looked.numbers, given.inside.nonzero()[:, 0], asked, beta, logged)


def _exact(
    x: TokenNumbers, answer: torch.Tensor, asked: Asked, beta: float | None, logged: float | None
) -> dict[str, float | None]:
    """The columns that need whole distributions; ``answer``, [tokens], says whose a token is."""
    n, answers = len(answer), int(answer.max()) + 1
    found: dict[str, float | None] = {
        "kl_of_answers": x.kl.sum().item() / answers,
        "entropy": x.entropy.mean().item(),
        "k2_bias": (x.k2_mean - x.kl).mean().item(),
    }
    for name, values in (("kl", x.kl), ("forward_kl", x.forward_kl)):
        found[name], found[f"{name}_low"], found[f"{name}_high"] = ratio_interval(values, answer)
    for name, variance in (("k1", x.k1_variance), ("k2", x.k2_variance), ("k3", x.k3_variance)):
        found[f"{name}_error"] = variance.sum().sqrt().item() / n
    if asked.estimator is not None:
        expected = x.number_mean.mean().item()
        found["logged_expected"], found["logged_bias"] = expected, expected - x.kl.mean().item()
        found["logged_error"] = x.number_variance.sum().sqrt().item() / n
        found["logged_noise"] = None if logged is None else logged - expected
    if beta is not None and asked.ends:
        found["length_pull_kl"] = beta * x.pull.sum().item() / answers
    return found


def ratio_interval(values: torch.Tensor, answer: torch.Tensor) -> tuple[float, float | None, float | None]:
    """Mean over tokens of values that are never negative, and its 95 % interval, answers being independent.

    The mean is a ratio of two sums over answers, of the values and of the tokens; its variance is that of the
    answers' residuals, and Student's quantile is that of their number. The lower end is cut at 0. One answer
    has no interval, and neither has an infinite mean.

    Args:
        values: [tokens].
        answer: [tokens], 0 to answers - 1.
    """
    answers, mean = int(answer.max()) + 1, values.mean().item()
    if answers < 2 or not math.isfinite(mean):
        return mean, None, None
    residual = torch.zeros(answers, dtype=values.dtype).index_add_(0, answer, values - mean)
    spread = math.sqrt(answers / (answers - 1) * residual.square().sum().item()) / len(values)
    half = t_quantile(answers - 1) * spread
    return mean, max(0.0, mean - half), mean + half


def _mismatch(given: StepAnswers, looked: LogitsRead | None, logp: torch.Tensor) -> dict[str, float | None]:
    """The mismatch of tokens whose log-probs both are known, its parts, and the engine they belong to."""
    if given.behavior_logp is None:
        return {}
    engine_logp = given.behavior_logp.detach()[given.inside].double()
    known = ~engine_logp.isnan()
    if not known.any():
        return {}
    engine_logp, logp = engine_logp[known], logp[known]
    found: dict[str, float | None] = {
        "mismatch": (engine_logp - logp).abs().mean().item(),
        "mismatch_kl": k3(engine_logp, logp).mean().item(),
    }
    if looked is not None and looked.parts is not None and looked.engine is not None:
        for name in ("temperature", "truncation", "rounding"):
            found[f"mismatch_{name}"] = getattr(looked.parts, name).abs().mean().item()
        found["engine_temperature"] = looked.engine.temperature
        found["engine_kept"] = looked.parts.kept.mean().item()
    return found


def _groups(given: StepAnswers, beta: float | None, divided: str | None) -> dict[str, float | None]:
    """Rewards, groups and what beta is worth beside them."""
    rewards, prompt_index, deviations = given[-3:]
    found: dict[str, float | None] = {}
    if rewards is not None:
        rewards = rewards.double()
        known = ~rewards.isnan()
        found["reward"] = rewards[known].mean().item()
        if prompt_index is not None:
            index = prompt_index[known]
            groups = [rewards[known][index == g] for g in index.unique()]
            groups = [group for group in groups if len(group) > 1]
            if groups:
                same = [float(group.amax() == group.amin()) for group in groups]
                found["equal_groups"] = sum(same) / len(same)
            if deviations is None and divided == "group_std" and groups:
                deviations = torch.stack([group.std() for group in groups])
        if deviations is None and divided == "batch_std" and known.sum() > 1:
            deviations = rewards[known].std()
    if beta is not None and (deviations is not None or divided is None):
        found["effective_beta"] = beta * (
            1.0 if deviations is None else _over_groups(deviations, prompt_index)
        )
    return found


def _over_groups(deviations: torch.Tensor, prompt_index: torch.Tensor | None) -> float:
    """Mean over groups; of what is not given per answer, over what is given."""
    x = deviations.double().flatten()
    if prompt_index is None or len(x) != len(prompt_index):
        return x.mean().item()
    return torch.stack([x[prompt_index == g].mean() for g in prompt_index.unique()]).mean().item()
