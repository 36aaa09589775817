"""From numbers of tokens to the columns of an observation: means, intervals, errors, shares."""

from __future__ import annotations

import math

import torch

from kl_companion.estimators.sampled import k3
from kl_companion.llm.comparisons import t_quantile
from kl_companion.monitor.given import StepAnswers
from kl_companion.monitor.looking import LogitsRead
from kl_companion.monitor.mismatch import Parts
from kl_companion.monitor.moments import Asked, Clamp, TokenNumbers

Pair = tuple[torch.Tensor | None, torch.Tensor | None]


def sampled_of(
    given: StepAnswers, looked: LogitsRead | None, sampled: Pair
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the tokens inside under policy and reference, [tokens] each, float64."""
    if looked is not None:
        return looked.numbers.logp, looked.numbers.ref_logp
    logp, ref_logp = (x.detach()[given.inside].double().cpu() for x in sampled if x is not None)
    return logp, ref_logp


def columns_of(
    given: StepAnswers, looked: LogitsRead | None, logp: torch.Tensor, ref_logp: torch.Tensor, asked: Asked
) -> dict[str, float]:
    """The columns that answers give without the coefficient and the trainer's number."""
    columns = sampled_columns(logp, ref_logp, asked.clamp)
    inside = given.inside
    if given.advantages is not None and asked.ends and looked is not None:
        ended = torch.isin(given.tokens[inside], torch.tensor(asked.ends, device=inside.device)).cpu()
        advantages = given.advantages[inside].detach().double().cpu()
        columns["length_pull_reward"] = reward_pull(advantages, ended, looked.numbers.end, len(inside))
    if given.behavior_logp is None:
        return columns
    engine_logp = given.behavior_logp.detach()[inside].double().cpu()
    known = ~engine_logp.isnan()
    columns |= mismatch_columns(engine_logp[known], logp[known])
    if looked is not None and looked.parts is not None and looked.engine is not None:
        columns |= parts_columns(looked.parts, looked.engine.temperature)
    return columns


def worth_of(
    given: StepAnswers,
    looked: LogitsRead | None,
    asked: Asked,
    beta: float | None,
    divided: str | None,
    logged: float | None,
) -> dict[str, float | None]:
    """The columns that compare with the trainer's number, with its coefficient and with the rewards."""
    groups = [None if x is None else x.detach().cpu() for x in (given.rewards, given.prompt_index)]
    deviations = None if given.deviations is None else given.deviations.cpu()
    columns: dict[str, float | None] = {**group_columns(groups[0], groups[1], deviations, beta, divided)}
    if looked is not None:
        answer = given.inside.nonzero(as_tuple=True)[0].cpu()
        columns |= exact_columns(looked.numbers, answer, asked, beta, logged)
    return columns


def exact_columns(
    x: TokenNumbers, answer: torch.Tensor, asked: Asked, beta: float | None, logged: float | None
) -> dict[str, float | None]:
    """The columns that need whole distributions, those of the trainer's own number included.

    Args:
        x: Numbers of the tokens.
        answer: Which answer a token belongs to, [tokens], 0 to answers - 1, each of them at least once.
        asked: Whether the trainer's estimator is known, and ids that end an answer.
        beta: The KL coefficient, if it is known.
        logged: The trainer's number, if it is known.
    """
    n, answers = len(answer), int(answer.max()) + 1
    kl, low, high = ratio_interval(x.kl, answer)
    forward, forward_low, forward_high = ratio_interval(x.forward_kl, answer)
    found: dict[str, float | None] = {
        "kl": kl,
        "kl_low": low,
        "kl_high": high,
        "forward_kl": forward,
        "forward_kl_low": forward_low,
        "forward_kl_high": forward_high,
        "kl_of_answers": x.kl.sum().item() / answers,
        "entropy": x.entropy.mean().item(),
        "k1_error": x.k1_variance.sum().sqrt().item() / n,
        "k2_error": x.k2_variance.sum().sqrt().item() / n,
        "k3_error": x.k3_variance.sum().sqrt().item() / n,
        "k2_bias": x.k2_mean.mean().item() - kl,
    }
    if asked.estimator is not None:
        expected = x.number_mean.mean().item()
        found["logged_expected"], found["logged_bias"] = expected, expected - kl
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


def sampled_columns(logp: torch.Tensor, ref_logp: torch.Tensor, clamp: Clamp | None) -> dict[str, float]:
    """The columns that sampled log-probs alone give, [tokens] each."""
    ratio = logp - ref_logp
    found = {"largest_log_ratio": ratio.abs().max().item()}
    if clamp is not None:
        found["dead_zone"] = ((ratio < clamp[0]) | (ratio > clamp[1])).double().mean().item()
    return found


def reward_pull(advantages: torch.Tensor, ended: torch.Tensor, end: torch.Tensor, answers: int) -> float:
    """Minus the gradient of -advantage log-prob by the logit of the end, a sum of tokens per answer.

    Args:
        advantages: Of every token, [tokens].
        ended: Whether the token is an end, [tokens].
        end: The probability that it is one, [tokens].
        answers: Their number.
    """
    return (advantages * (ended.double() - end)).sum().item() / answers


def mismatch_columns(engine_logp: torch.Tensor, logp: torch.Tensor) -> dict[str, float]:
    """The mismatch of tokens whose log-probs both are known, [tokens] each."""
    if not len(logp):
        return {}
    return {
        "mismatch": (engine_logp - logp).abs().mean().item(),
        "mismatch_kl": k3(engine_logp, logp).mean().item(),
    }


def parts_columns(x: Parts, temperature: float) -> dict[str, float]:
    """The parts of the mismatch, and the engine that they belong to."""
    if not len(x.kept):
        return {}
    return {
        "mismatch_temperature": x.temperature.abs().mean().item(),
        "mismatch_truncation": x.truncation.abs().mean().item(),
        "mismatch_rounding": x.rounding.abs().mean().item(),
        "engine_temperature": temperature,
        "engine_kept": x.kept.mean().item(),
    }


def group_columns(
    rewards: torch.Tensor | None,
    prompt_index: torch.Tensor | None,
    deviations: torch.Tensor | None,
    beta: float | None,
    divided: str | None,
) -> dict[str, float]:
    """Rewards, groups and what beta is worth beside them.

    Args:
        rewards: [answers], NaN for an answer that was not scored.
        prompt_index: [answers].
        deviations: By what rewards were divided, one number per answer, per group, or one for all.
        beta: The KL coefficient, if it is known.
        divided: How rewards are divided: ``"group_std"``, ``"batch_std"``, another word, or None for not at
            all; the first two are computed from the rewards where ``deviations`` is missing.
    """
    found: dict[str, float] = {}
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
        found["effective_beta"] = beta * (1.0 if deviations is None else _of_groups(deviations, prompt_index))
    return found


def _of_groups(deviations: torch.Tensor, prompt_index: torch.Tensor | None) -> float:
    """Mean over groups; of what is not given per answer, over what is given."""
    x = deviations.double().flatten()
    if prompt_index is None or len(x) != len(prompt_index):
        return x.mean().item()
    return torch.stack([x[prompt_index == g].mean() for g in prompt_index.unique()]).mean().item()
