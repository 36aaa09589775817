"""What the explorer must show, by this package's enumeration: the numbers its page is tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from kl_book.explorer.formulas import growth, in_log_ratio
from kl_companion.auditing.worlds.objectives import OBJECTIVES, field
from kl_companion.checks import check_choice
from kl_companion.estimators import Estimator, get_estimator
from kl_companion.kl_term import KLTerm, Ratio
from kl_companion.losses import kl_loss, kl_terms
from kl_companion.rollout import Rollout, importance_weight, per_token
from kl_companion.tabular import Problem, exact_moments, expected_value, learn, token_moments
from kl_companion.theory.calculus import value as value_in_symbols
from kl_companion.theory.optima import optimal_policy

State = Mapping[str, Any]
RATIOS = ("none", "detached", "attached")
NOTHING = torch.empty(0, dtype=torch.float64)
_GRID = 8001  # arms that stand for a Gaussian
_WIDTH = 12  # standard deviations of the wider Gaussian on either side
_STEPS, _RATE = 1000, 0.5


class Exact(NamedTuple):
    """Exact numbers of one setting; gradients [arms] by the policy's logits, policies [arms].

    Those of Gaussians are by mean and logarithm of the standard deviation, [2]; policies are empty.

    Attributes:
        policy, reference: Probabilities of the arms.
        value, bias, variance: Of one draw; bias against the divergence that the estimator is named for.
        gradient, gradient_variance: Expected gradient of one draw, and the trace of its covariance, which is
            NaN for Gaussians.
        reverse_kl, forward_kl: The two divergences of policy and reference.
        reverse_gradient, forward_gradient: Their gradients.
        reverse_optimum, forward_optimum: Policies that maximize E[r] - beta KL, either way.
        end: Where training on E[r] - beta times the term arrives, if `trained` found it; else empty.
    """

    policy: torch.Tensor
    reference: torch.Tensor
    value: float
    bias: float
    variance: float
    gradient: torch.Tensor
    gradient_variance: float
    reverse_kl: float
    forward_kl: float
    reverse_gradient: torch.Tensor
    forward_gradient: torch.Tensor
    reverse_optimum: torch.Tensor
    forward_optimum: torch.Tensor
    end: torch.Tensor = NOTHING


def estimator_of(state: State) -> Estimator:
    """The estimator of a state, with k and form where it has a head; ValueError for an unknown one."""
    name = state["est"]
    if name.startswith(("top_k_", "truncated_")):
        name = f"{name}({min(state['k'], len(state['p']))}, {state['form']})"
    return get_estimator(name)


def ratio_of(state: State) -> str:
    """The ratio that matters: a detached cost, and a sum over a head, have none to attach."""
    check_choice("ratio", state["ratio"], RATIOS)
    loose = state["place"] == "reward" or estimator_of(state).inputs != "sampled"
    return "detached" if state["ratio"] == "attached" and loose else str(state["ratio"])


def problem_of(state: State) -> Problem:
    """The bandit of a state: logits ``p``, of the reference ``q``, the sampler ``m``; rewards ``r``; [arms].

    Raises:
        ValueError: lists of different lengths, or fewer than two arms.
    """
    arms = len(state["p"])
    sizes = {name: len(state[name]) for name in "pqmr"}
    if arms < 2 or set(sizes.values()) != {arms}:
        raise ValueError(f"got lists of lengths {sizes}, expected one length of at least 2")
    p, q, m, r = (torch.tensor(state[name], dtype=torch.float64) for name in "pqmr")
    return Problem(
        p.unsqueeze(0),
        q.unsqueeze(0),
        m.unsqueeze(0) if state["off"] else None,
        torch.arange(arms).unsqueeze(-1),
        torch.ones(arms, 1, dtype=torch.float64),
        torch.zeros(arms, 1, dtype=torch.long),
        r,
    )


def loss_of(state: State) -> Callable[[Rollout], torch.Tensor]:
    """The term as a trainer would write it, for `kl_companion.audit` or `kl_companion.expected_gradient`."""
    entry, ratio = estimator_of(state), ratio_of(state)
    attached: Ratio = "attached" if ratio == "attached" else "detached"
    term = KLTerm(entry, importance=None if ratio == "none" else "auto", ratio=attached)

    def in_the_reward(rollout: Rollout) -> torch.Tensor:
        cost = per_token(entry, rollout).detach()
        weight = 1.0 if ratio == "none" else importance_weight(rollout, scope="token")
        return (cost * weight * rollout.logp).sum()

    def in_the_loss(rollout: Rollout) -> torch.Tensor:
        return kl_loss(rollout, term)

    check_choice("place", state["place"], ("loss", "reward"))
    return in_the_reward if state["place"] == "reward" else in_the_loss


def exact(state: State) -> Exact:
    """Every number of a setting, by enumeration; a Gaussian is a choice between the points of a fine grid.

    Args:
        state: What the page's ``klExplore`` takes: p, q, m, r, est, k, form, place, off, ratio, beta, or
            world ``"gauss"`` with the pairs gp and gq of mean and standard deviation.

    Raises:
        ValueError: an unknown name or choice, lists of different lengths, or Gaussians with a sampler of
            their own or a term in the reward, which this does not treat.
    """
    if state.get("world") == "gauss":
        return _gaussians(state)
    entry, ratio, problem = estimator_of(state), ratio_of(state), problem_of(state)
    logp, ref_logp = problem.logits.log_softmax(-1), problem.ref_logits.log_softmax(-1)
    if ratio == "attached":
        found = exact_moments(
            lambda rollout: kl_terms(rollout, entry, importance="token", ratio="attached"),
            problem,
            target=entry.target,
        )
    else:
        found = token_moments(
            entry,
            logp,
            ref_logp,
            behavior_logp_all=None
            if problem.behavior_logits is None
            else problem.sampled_from.log_softmax(-1),
            placement=state["place"],
            weighted=ratio == "detached",
        )
    divergence = {n: OBJECTIVES[f"sequence_{n}_kl"] for n in ("reverse", "forward")}
    at_policy = problem._replace(behavior_logits=None)
    optimum = {
        n: optimal_policy(problem.rewards, ref_logp[0], f"{n}_kl", state["beta"]).logp.exp()
        for n in divergence
    }
    numbers = {name: float(getattr(found, name)) for name in ("value", "value_variance", "gradient_variance")}
    return Exact(
        policy=logp[0].exp(),
        reference=ref_logp[0].exp(),
        value=numbers["value"],
        bias=float(found.value_bias),
        variance=numbers["value_variance"],
        gradient=found.gradient.flatten(),
        gradient_variance=numbers["gradient_variance"],
        reverse_kl=expected_value(lambda rollout: per_token("exact_kl", rollout).sum(), at_policy),
        forward_kl=expected_value(lambda rollout: per_token("exact_forward_kl", rollout).sum(), at_policy),
        reverse_gradient=field(divergence["reverse"], at_policy).flatten(),
        forward_gradient=field(divergence["forward"], at_policy).flatten(),
        reverse_optimum=optimum["reverse"],
        forward_optimum=optimum["forward"],
    )


def _gaussians(state: State) -> Exact:
    if state["off"] or state["place"] != "loss":
        raise ValueError(
            f"Gaussians got off={state['off']} and place={state['place']!r}, expected the policy's own "
            "samples and a term in the loss"
        )
    (mean, sd), (ref_mean, ref_sd) = state["gp"], state["gq"]
    far = abs(mean - ref_mean) + _WIDTH * max(sd, ref_sd)
    z = torch.linspace(-far, far, _GRID, dtype=torch.float64) / sd
    logits = -0.5 * z.square()
    logp = logits.log_softmax(-1)
    ref_logp = (-0.5 * ((mean + sd * z - ref_mean) / ref_sd).square()).log_softmax(-1)
    by_parameters = torch.stack([z / sd, z.square()])  # derivatives of the logits
    found = {n: token_moments(n, logp, ref_logp) for n in (state["est"], "exact_kl", "exact_forward_kl")}
    gradient = {name: by_parameters @ x.gradient.flatten() for name, x in found.items()}
    term = found[state["est"]]
    return Exact(
        policy=NOTHING,
        reference=NOTHING,
        value=float(term.value),
        bias=float(term.value_bias),
        variance=float(term.value_variance) if _has_variance(state) else math.inf,
        gradient=gradient[state["est"]],
        gradient_variance=math.nan,
        reverse_kl=float(found["exact_kl"].value),
        forward_kl=float(found["exact_forward_kl"].value),
        reverse_gradient=gradient["exact_kl"],
        forward_gradient=gradient["exact_forward_kl"],
        reverse_optimum=NOTHING,
        forward_optimum=NOTHING,
    )


def _has_variance(state: State) -> bool:
    """Whether the integral of the squared estimate over all of the line, which no grid shows, is finite."""
    entry = estimator_of(state)
    if entry.inputs != "sampled":
        return True
    precision, ref_precision = (1 / sd**2 for _, sd in (state["gp"], state["gq"]))
    ends = growth(in_log_ratio(value_in_symbols(entry.name)))
    bend = (precision - ref_precision) / 2  # u = log(reference/policy) is about bend x^2 at either end
    grows = ends.high if bend > 0 else ends.low
    return precision > 4 * grows * bend


def trained(states: Sequence[State]) -> list[Exact]:
    """The numbers of several settings of one term, with where training ends: a thousand exact steps.

    Settings in which something else than the policy samples, the top-k estimators and Gaussians have no end.

    Raises:
        ValueError: as `exact`, no setting, or settings that differ in more than policies and rewards.
    """
    kinds = {(s["world"], s["est"], s["place"], s["off"], s["beta"], len(s["p"])) for s in states}
    if len(kinds) != 1:
        raise ValueError(f"got settings of {len(kinds)} kinds {sorted(kinds)}, expected those of one term")
    found = [exact(state) for state in states]
    ((world, est, place, off, beta, _),) = kinds
    if world == "gauss" or off or estimator_of(states[0]).inputs != "sampled":
        return found
    problems = [problem_of(state) for state in states]
    stacked = problems[0]._replace(
        **{
            name: torch.stack([getattr(problem, name) for problem in problems])
            for name in ("logits", "ref_logits", "rewards")
        }
    )
    path = learn(
        stacked,
        est,
        placement=place,
        beta=beta,
        n=None,
        steps=_STEPS,
        lr=_RATE,
        rewards=True,
        record=[_STEPS],
    )
    return [x._replace(end=end) for x, end in zip(found, path.logp[-1].exp(), strict=True)]
