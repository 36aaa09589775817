"""The explorer's numbers, computed in a browser, are the package's."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from kl_book.explorer.enumerated import Exact, exact, loss_of, problem_of, ratio_of
from kl_book.explorer.presets import PLAIN, PRESETS
from kl_book.explorer.sentences import neighborhood
from kl_companion import audit, bandit, get_estimator
from kl_companion.tabular import learn
from tests.support import explorer_states as states
from tests.support.site.explorer import SENTENCES, as_exact, open_page

SITE = Path(__file__).resolve().parents[2] / "_build" / "html"
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def page(session: Any, base: str) -> Any:
    open_page(session, base)
    return session


def explored(session: Any, many: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """klExplore of every state; Infinity and NaN, which JSON has not, as the words."""
    text = session.execute_script(
        "return JSON.stringify(arguments[0].map(window.klExplore),"
        " (key, x) => typeof x === 'number' && !Number.isFinite(x) ? String(x) : x)",
        list(many.values()),
    )
    return dict(zip(many, json.loads(text), strict=True))


def close(got: Any, want: Any) -> bool:
    """Whether numbers agree to 1e-6, relative to those that are larger than one."""
    got, want = (torch.as_tensor(x, dtype=torch.float64).flatten() for x in (got, want))
    return bool(torch.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)) and not got.isnan().any()


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a @ b / (a.norm() * b.norm())).item()


def wrong(got: dict[str, Any], want: Exact) -> list[str]:
    pairs = {
        "value": (got["value"], want.value),
        "bias": (got["bias"], want.bias),
        "variance": (got["variance"], want.variance),
        "gradient": (got["gradient"], want.gradient),
        "gradient variance": (got["gradientVariance"], want.gradient_variance),
        "reverse KL": (got["reverse"]["value"], want.reverse_kl),
        "forward KL": (got["forward"]["value"], want.forward_kl),
        "gradient of the reverse KL": (got["reverse"]["gradient"], want.reverse_gradient),
        "gradient of the forward KL": (got["forward"]["gradient"], want.forward_gradient),
        "reverse optimum": (got["fixed"]["reverse"], want.reverse_optimum),
        "forward optimum": (got["fixed"]["forward"], want.forward_optimum),
    }
    if want.gradient.norm() > 1e-6 and want.reverse_gradient.norm() > 1e-6:
        for name in ("reverse", "forward"):
            wanted = cosine(want.gradient, getattr(want, f"{name}_gradient"))
            pairs[f"cosine to the {name} KL"] = ((got["cosine"] or {}).get(name, math.nan), wanted)
    if want.gradient.norm() < 1e-13:
        pairs["no gradient"] = (got["zero"], True)
    return [f"{name}: {a}, expected {b}" for name, (a, b) in pairs.items() if not close(a, b)]


def test_arms_agree_with_enumeration_to_1e_6(page: Any) -> None:
    many = states.arms()
    assert len(many) > 200
    found = explored(page, many)
    problems = {name: wrong(found[name], exact(state)) for name, state in many.items()}
    assert {name: lines for name, lines in problems.items() if lines} == {}


# -- Gaussians: the package's estimators on a fine grid, with torch's derivatives


def normal(pair: list[float]) -> Normal:
    return Normal(*torch.tensor(pair, dtype=torch.float64))


def midpoints(
    p: torch.distributions.Normal, q: torch.distributions.Normal
) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and cells of a midpoint rule whose cells end where the densities cross, for the kinks there."""
    far = 22.0  # beyond it w overflows; nothing of it counts at these settings
    a, b = 1 / p.variance - 1 / q.variance, -2 * (p.mean / p.variance - q.mean / q.variance)
    c = p.mean**2 / p.variance - q.mean**2 / q.variance + torch.log(p.variance / q.variance)
    crossings = [x.real for x in np.roots([a, b, c]) if abs(x.imag) < 1e-12 and abs(x) < far]
    edges = [-far, *sorted(crossings), far]
    pieces = [(low, (high - low) / 40_000) for low, high in pairwise(edges)]
    at = torch.arange(40_000, dtype=torch.float64) + 0.5
    points = torch.cat([low + at * step for low, step in pieces])
    return points, torch.cat([torch.full_like(at, step) for _, step in pieces])


def on_a_grid(state: dict[str, Any]) -> dict[str, Any]:
    entry = get_estimator(state["est"])
    p, q, m = (normal(state[name]) for name in ("gp", "gq", "gm"))
    x, step = midpoints(p, q)
    sampler = m if state["off"] else p
    weight = sampler.log_prob(x).exp() * step
    theta = torch.tensor([state["gp"][0], math.log(state["gp"][1])], dtype=torch.float64)
    score = torch.stack([(x - theta[0]) / p.variance, (x - theta[0]) ** 2 / p.variance - 1])
    rho = (p.log_prob(x) - sampler.log_prob(x)).exp() if state["ratio"] != "none" else torch.ones_like(x)
    forward = entry.target == "forward_kl"
    if entry.inputs == "vocab":
        pair = (q, p) if forward else (p, q)
        exact_value = kl_divergence(*pair)
        v, h = exact_value.expand_as(x), torch.zeros_like(x)
    else:
        logp = p.log_prob(x).requires_grad_()
        v = entry.fn(logp, q.log_prob(x))
        (h,) = torch.autograd.grad(v.sum(), logp)
        v = v.detach()
    attached = ratio_of(state) == "attached"
    c = (v if state["place"] == "reward" else h + v if attached else h) * rho
    drawn = v if entry.inputs == "vocab" else v * rho
    mean = (weight * drawn).sum()
    gradient = (score * c * weight).sum(-1)
    found = {
        "value": mean,
        "variance": (weight * drawn**2).sum() - mean**2,
        "gradient": gradient,
        "gradientVariance": (weight * c**2 * score.square().sum(0)).sum() - gradient @ gradient,
    }
    if entry.inputs == "vocab":
        found |= {"value": exact_value, "variance": torch.zeros(())}
        if state["place"] == "loss":
            t = theta.requires_grad_()
            of = Normal(t[0], t[1].exp())
            kl = kl_divergence(*((q, of) if forward else (of, q)))
            found |= {"gradient": torch.autograd.grad(kl, t)[0], "gradientVariance": torch.zeros(())}
    return found


def test_gaussians_agree_with_a_fine_grid_to_1e_6(page: Any) -> None:
    many = states.gaussians()
    found = explored(page, many)
    problems = []
    for name, state in many.items():
        got, want = found[name], on_a_grid(state)
        # K3's and K5's own second moments do not exist everywhere; there the grid's number means nothing
        infinite = [key for key in want if got[key] == "Infinity"]
        problems += [
            f"{name}, {key}: {got[key]}, expected {want[key]}"
            for key in want
            if key not in infinite and not close(got[key], want[key])
        ]
    assert problems == []


@pytest.mark.parametrize(("sd", "infinite"), [(1.40, False), (1.42, True), (2.0, True)])
def test_the_variance_of_k3_is_infinite_from_twice_the_variance_on(
    page: Any, sd: float, infinite: bool
) -> None:
    state = {**PLAIN, "world": "gauss", "gp": [0.0, 1.0], "gq": [0.0, sd]}
    (got,) = explored(page, {"k3": state}).values()
    assert (got["variance"] == "Infinity") == infinite
    if not infinite:  # far out K3 is w, and w^2 pi has the wide tail that is cut off at 200
        x = torch.linspace(-200, 200, 2_000_001, dtype=torch.float64)
        p, q = normal([0.0, 1.0]), normal([0.0, sd])
        u = q.log_prob(x) - p.log_prob(x)
        low = u < 300
        second = (p.log_prob(x)[low].exp() * (torch.expm1(u[low]) - u[low]) ** 2).sum()
        tail = ((p.log_prob(x) + 2 * u)[~low]).exp().sum()
        step = (x[1] - x[0]).item()
        assert got["variance"] == pytest.approx(((second + tail) * step).item() - got["value"] ** 2, rel=1e-6)


# -- names and ends

SAID = {
    "k3_loss": {}, "k1_loss": {}, "k3_reward_near": {}, "stale": {}, "top_k": {},
    "k2 weighted": {"est": "k2", "off": True, "ratio": "detached"},
    "k2 attached": {"est": "k2", "off": True, "ratio": "attached"},
    "k3 stale": {"off": True},
    "k3_plus_plus attached": {"est": "k3_plus_plus", "ratio": "attached"},
    "k5 attached": {"est": "k5", "off": True, "ratio": "attached"},
    "pearson": {"est": "kf_plus_plus(pearson)"},
    "top_k_forward": {"est": "top_k_forward_kl", "form": "published", "k": 2},
    "k4 in the reward, stale": {"est": "k4", "place": "reward", "off": True},
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_the_objective_is_the_audit_s(page: Any, case: str) -> None:
    preset = PRESETS[case].state if case in PRESETS else {}
    state = {**PLAIN, **preset, "p": [0.1, 0.2, 0.3, 0.4], **SAID[case]}
    state |= {name: [0.0] * 4 for name in "qmr"}
    (got,) = explored(page, {case: state}).values()
    problems = [bandit(4, seed=seed, off_policy=state["off"]) for seed in range(6)]
    found = audit(loss_of(state), problems=problems)
    (seen,) = found.findings
    assert got["objective"]["zero"] == seen.zero
    named = {t["name"]: t["coefficient"] for t in got["objective"]["terms"]}
    if not seen.matches:
        assert named == {}
    else:
        # at one token, the audit's names of tokens and of sequences are the same objective
        others = [
            {n.replace("sequence_", "token_").replace("summed_", "token_").replace("policy_token", "token"): c
             for n, c in match.items()} for match in seen.matches
        ]  # fmt: skip
        others = [
            {n.replace("behavior_token_", "behavior_"): c for n, c in match.items()} for match in others
        ]
        assert any(match == pytest.approx(named, rel=1e-6) for match in others), (named, others)


@pytest.mark.parametrize(
    ("est", "place", "optimum"),
    [
        ("k2", "loss", "reverse"), ("k3", "loss", "forward"), ("k5", "loss", "forward"),
        ("k1", "reward", "reverse"), ("k3_plus_plus", "loss", "reverse"), ("k_lambda(0.5)", "loss", None),
        ("kf_plus_plus(jensen_shannon)", "loss", None),
    ],
)  # fmt: skip
def test_the_end_of_training_is_where_learning_stops(
    page: Any, est: str, place: str, optimum: str | None
) -> None:
    state = {**PLAIN, "est": est, "place": place, "p": [0.3, 0.2, 0.0], "r": [0.5, 0.0, 0.3], "beta": 0.8}
    (got,) = explored(page, {est: state}).values()
    exactly = {"n": None, "steps": 8_000, "lr": 0.5, "rewards": True, "record": [8_000]}
    path = learn(problem_of(state), est, placement=place, beta=state["beta"], **exactly)
    assert got["fixed"]["rests"]
    assert close(got["fixed"]["policy"], path.logp[-1].exp())
    if optimum is not None:
        assert close(got["fixed"]["policy"], got["fixed"][optimum])
        assert close(got["fixed"][optimum], getattr(exact(state), f"{optimum}_optimum"))


@pytest.mark.parametrize("key", ["k3_reward_near", "k3_reward_far"])
def test_arms_are_lost_where_learning_loses_them(page: Any, key: str) -> None:
    state = PRESETS[key].state
    (got,) = explored(page, {key: state}).values()
    exactly = {"n": None, "steps": 500, "lr": 0.5, "rewards": True, "record": [500]}
    path = learn(problem_of(state), state["est"], placement="reward", beta=state["beta"], **exactly)
    assert got["fixed"]["rests"]
    assert got["fixed"]["gone"] == [False, True, True]
    assert (path.logp[-1, 1:].exp() < 1e-9).all()


# -- what is said of the presets


@pytest.mark.parametrize(("key", "number"), SENTENCES)
def test_a_sentence_holds_for_the_page_s_numbers_near_its_preset(page: Any, key: str, number: int) -> None:
    preset = PRESETS[key]
    sentence = preset.sentences[number]
    many = {str(i): s for i, s in enumerate(neighborhood({**preset.state, **sentence.change}))}
    found = explored(page, many)
    assert [many[i] for i, got in found.items() if not sentence.holds(as_exact(got))] == []
