"""The table of recommendations: its code is run and audited; numbers to log and reasons are enumerated."""

from __future__ import annotations

import itertools
import math
from functools import cache
from typing import Any

import pytest
import torch

from kl_companion import (
    audit,
    bandit,
    exact_moments,
    expected_value,
    k_lambda,
    kf_plus_plus,
    kl_loss,
    kl_reward,
    kl_terms,
    policy_gradient_loss,
    prefix_tree,
)
from kl_companion.auditing import OBJECTIVES
from kl_companion.auditing.worlds.objectives import objectives, value
from kl_companion.estimators.sampled import k1, k3, k5
from kl_companion.recommendations import (
    GUIDE,
    LENGTHS,
    LOGGED,
    QUESTIONS,
    RECOMMENDATIONS,
    TRAINED,
    Recommendation,
    Term,
    logged_for,
    values_of,
)
from kl_companion.rollout import Rollout
from tests.support.data import data

DATA = data(__file__)


Piece = Recommendation | Term
WANTED = {"token": "token_reverse_kl", "sequence": "sequence_reverse_kl", "forward": "token_forward_kl"}
PIECES: list[tuple[Recommendation, Piece]] = [
    (r, piece) for r in TRAINED for piece in (r, *r.alternatives, *r.pitfalls)
]


def named(case: tuple[Recommendation, Piece]) -> str:
    return f"{case[0].key}-{case[1].name}"


def given(rollout: Rollout) -> dict[str, Any]:
    """What a trainer has, under the names that the code uses."""
    logp = rollout.logp
    return {
        "logp": logp,
        "ref_logp": rollout.ref_logp,
        "behavior_logp": rollout.sampled_from,
        "mask": rollout.completion_mask,
        "beta": 1.0,
        "advantages": torch.zeros_like(logp),
        "loss": logp.new_zeros(()),
    }


def loss_of(code: str) -> Any:
    """What a trainer differentiates when these lines are in it: the loss, or its policy gradient."""

    def loss(rollout: Rollout) -> torch.Tensor:
        names = given(rollout)
        start = names["loss"]
        exec(code, names)
        if names["loss"] is not start:
            return names["loss"]
        ratio = (rollout.logp - rollout.sampled_from).exp()
        return -(ratio * names["advantages"] * rollout.completion_mask).sum(-1).mean()

    return loss


def package_loss(place: str, arguments: str) -> Any:
    """The loss that the arguments make of `kl_loss`, or of `kl_reward` and a policy gradient."""

    def loss(rollout: Rollout) -> torch.Tensor:
        positional, named = values_of(arguments)
        if place == "loss":
            return kl_loss(rollout, *positional, **named)
        return policy_gradient_loss(rollout, -kl_reward(rollout, *positional, **named, beta=1.0))

    return loss


def in_words(case: Any) -> str:
    """The objective of one condition of an audit, as the table writes it."""
    if case.zero:
        return "zero"
    if not case.matches:
        return "other"
    text = ""
    for name, c in case.matches[0].items():
        assert abs(c) == pytest.approx(round(abs(c))), (name, c)
        sign = (" - " if c < 0 else " + ") if text else ("-" if c < 0 else "")
        text += sign + ("" if round(abs(c)) == 1 else f"{round(abs(c))} ") + name
    return text


@cache
def of_code(code: str, samples: str) -> set[str]:
    return {in_words(c) for c in audit(loss_of(code), off_policy=samples == "older", scale=1.0).findings}


@cache
def of_arguments(place: str, arguments: str, samples: str, want: str = "") -> set[str]:
    # at small ratios policy and reference share their likeliest token: which one it was shows at large ones
    scale = 4.0 if "top_k" in arguments else 1.0
    off_policy = samples == "older"
    cases = audit(package_loss(place, arguments), off_policy=off_policy, scale=scale).findings
    # the objectives of lengths are told apart where lengths vary
    return {in_words(c) for c in cases if c.condition.eos or want != "lengths"}


# -- what is put into the loss or the reward ----------------


@pytest.mark.parametrize(
    ("entry", "piece"), [c for c in PIECES if c[1].lines], ids=map(named, [c for c in PIECES if c[1].lines])
)
def test_code_has_the_gradient_that_the_table_says(entry: Recommendation, piece: Piece) -> None:
    assert of_code(entry.code_of(piece), entry.samples) == {piece.objective}


@pytest.mark.parametrize(
    ("entry", "piece"),
    [c for c in PIECES if c[1].arguments],
    ids=map(named, [c for c in PIECES if c[1].arguments]),
)
def test_arguments_have_the_gradient_that_the_table_says(entry: Recommendation, piece: Piece) -> None:
    assert of_arguments(entry.place, piece.arguments, entry.samples) == {piece.objective}


@pytest.mark.parametrize("term", LENGTHS, ids=lambda term: term.name)
def test_a_mean_over_each_answer_has_the_gradient_that_the_table_says(term: Term) -> None:
    assert of_arguments("loss", term.arguments, "policy", "lengths") == {term.objective}


@pytest.mark.parametrize("entry", [r for r in TRAINED if r.with_logits], ids=lambda r: r.key)
def test_whole_distributions_have_the_same_objective(entry: Recommendation) -> None:
    assert of_arguments("loss", f'"{entry.with_logits}"', entry.samples) == {entry.objective}


def test_a_recommendation_has_the_objective_that_is_wanted_and_so_have_its_alternatives() -> None:
    for entry in (*GUIDE, *LOGGED):
        assert entry.objective == WANTED[entry.want], entry.key
    for entry in TRAINED:
        assert {term.objective for term in entry.alternatives} <= {entry.objective}, entry.key
        assert all(p.objective != entry.objective for p in entry.pitfalls), entry.key


def test_every_combination_of_the_questions_has_one_answer_of_at_most_five_lines() -> None:
    asked = [answers for _, answers in QUESTIONS.values()]
    answered = [tuple(getattr(entry, name) for name in QUESTIONS) for entry in GUIDE]
    assert sorted(answered) == sorted(itertools.product(*asked))
    assert all(len(entry.code_of(piece).splitlines()) <= 5 for entry, piece in PIECES)
    assert len(RECOMMENDATIONS) == len(TRAINED) + len(LOGGED)
    assert all(entry.lines for entry in GUIDE)
    known = {*objectives(off_policy=True), "zero", "other"}
    parts = {x for _, p in PIECES for x in p.objective.removeprefix("2 ").replace(" - ", " + ").split(" + ")}
    assert parts <= known


def test_no_ratio_of_a_recommended_loss_carries_a_gradient() -> None:
    """The rule that the module states: what a clip would break is no more than an alternative."""
    for entry in TRAINED:
        if entry.place == "loss" and entry.samples == "older":
            assert "attached" not in entry.arguments
            assert all(".detach()" in line for line in entry.lines.splitlines() if line.startswith("rho"))


@pytest.mark.parametrize("key", ["loss-token-older", "loss-forward-older"])
def test_a_clip_of_the_detached_ratio_is_a_weight_and_of_an_attached_one_a_mask(key: str) -> None:
    """Where the ratio is clipped the recommended gradient is the same with the limit in the ratio's place."""
    entry = RECOMMENDATIONS[key]
    logp = torch.tensor([[-0.2]], dtype=torch.float64, requires_grad=True)
    ref_logp, behavior_logp = torch.tensor([[-1.5]]).double(), torch.tensor([[-3.0]]).double()

    def slope(code: str) -> float:
        names = {"logp": logp, "ref_logp": ref_logp, "behavior_logp": behavior_logp}
        exec(code, names)
        return torch.autograd.grad(names["kl"].sum(), logp)[0].item()

    clipped = entry.lines.replace(".exp().detach()", ".exp().detach().clamp(max=2.0)", 1)
    whole = slope(entry.lines)
    rho = (logp - behavior_logp).exp().item()
    assert slope(clipped) / 2.0 == pytest.approx(whole / rho)
    attached = (
        "rho = (logp - behavior_logp).exp().clamp(max=2.0)\nd = ref_logp - logp\nkl = rho * (d.exp() - 1 - d)"
    )
    w = (ref_logp - logp).exp().item()
    assert slope(attached) / 2.0 == pytest.approx(1 - w)  # not -log w, which it has without the clip
    assert slope(attached.replace(".clamp(max=2.0)", "")) / rho == pytest.approx(-math.log(w))


@pytest.mark.parametrize("key", ["reward-forward-policy", "reward-forward-older"])
def test_the_constant_in_the_forward_reward_takes_noise_away(key: str) -> None:
    entry = RECOMMENDATIONS[key]

    def noise(lines: str) -> float:
        def terms(rollout: Rollout) -> torch.Tensor:
            names = given(rollout)
            exec(lines, names)
            ratio = (rollout.logp - rollout.sampled_from).exp()
            return (ratio * names["kl"] * rollout.completion_mask).sum(-1)

        problem = bandit(4, seed=1, scale=0.1, off_policy=entry.samples == "older")
        return exact_moments(terms, problem).gradient_variance

    assert noise(entry.lines) < noise(entry.lines.replace("1 - (", "-(")) / 20


# -- what is logged -----------------------------------------


def number_of(entry: Recommendation) -> Any:
    def number(rollout: Rollout) -> torch.Tensor:
        names = given(rollout)
        exec(entry.code, names)
        return names["number"]

    return number


@pytest.mark.parametrize("entry", LOGGED, ids=lambda r: r.key)
@pytest.mark.parametrize("eos", [False, True])
@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_the_number_to_log_is_unbiased(entry: Recommendation, eos: bool, scale: float) -> None:
    """By enumeration of trees: the mean of the code, and that of the package's own term."""
    problem = prefix_tree(3, 2, seed=5, eos=eos, off_policy=entry.samples == "older", scale=scale)
    exact = value(OBJECTIVES[entry.objective], problem)
    assert expected_value(package_loss("loss", entry.arguments), problem) == pytest.approx(exact, rel=1e-9)
    if entry.lines:
        assert expected_value(number_of(entry), problem) == pytest.approx(exact, rel=1e-9)
    if "never negative" in entry.why:

        def least(rollout: Rollout) -> torch.Tensor:
            names = given(rollout)
            exec(entry.lines, names)
            return names["kl"].min()

        assert least(problem.rollout(problem.logits)) >= 0


@pytest.mark.parametrize(("key", "objective"), DATA["logging_with_another_ratio_is_biased"])
def test_logging_with_another_ratio_is_biased(key: str, objective: str) -> None:
    problems = [prefix_tree(3, 2, seed=s, off_policy=True, scale=2.0) for s in range(4)]
    number = number_of(RECOMMENDATIONS[key])
    off = [expected_value(number, p) / value(OBJECTIVES[objective], p) - 1 for p in problems]
    assert max(map(abs, off)) > 0.05


def test_every_answer_of_the_guide_logs_what_it_wants() -> None:
    for entry in GUIDE:
        log = logged_for(entry)
        assert log.samples == entry.samples
        # with samples of the policy, the sum over an answer has the mean of both
        assert log.objective == entry.objective or (entry.samples, entry.want) == ("policy", "sequence")
        assert log.lines


def spread(fn: Any, p: torch.Tensor, q: torch.Tensor) -> float:
    """The variance of one sample y ~ p of fn(log p(y), log q(y))."""
    x = fn(p.log(), q.log())
    return (p * (x - (p * x).sum()) ** 2).sum().item()


def pairs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random pairs of policies, near and far, and pairs of two arms with a token that was abandoned."""
    made = []
    for scale, seed in itertools.product((0.1, 0.5, 1.0, 2.0, 3.0), range(12)):
        world = bandit(6, seed=seed, scale=scale)
        made.append((world.logits[0].softmax(-1), world.ref_logits[0].softmax(-1)))
    for a, b in ((0.9, 0.5), (0.99, 0.5), (0.999, 0.9)):
        made.append((torch.tensor([a, 1 - a]).double(), torch.tensor([b, 1 - b]).double()))
    return made


def test_lambda_star_says_which_number_is_the_least_noisy() -> None:
    """Three situations, told apart by lambda*; the middle one of the three numbers is never the noisiest."""
    functions = {"log-near": k3, "log-between": k_lambda(0.5), "log-far": k1}
    said = {"log-near": "above ¾", "log-between": "between ¼ and ¾", "log-far": "below ¼"}
    assert all(words in RECOMMENDATIONS[key].when for key, words in said.items())
    chosen = set()
    for p, q in pairs():
        w, cost = q / p, (p / q).log()
        best = -((p * cost * w).sum() - (p * cost).sum()) / ((p * w**2).sum() - 1)
        key = "log-near" if best > 0.75 else "log-far" if best < 0.25 else "log-between"
        noise = {name: spread(fn, p, q) for name, fn in functions.items()}
        assert noise[key] == min(noise.values())
        assert noise["log-between"] < max(noise.values())
        chosen.add(key)
    assert chosen == set(functions)


def test_what_the_middle_number_costs() -> None:
    """Tens of times the variance of K3 close to the reference, and of K1 with one abandoned token."""
    ratios = []
    for seed in range(12):
        near = bandit(20, seed=seed, scale=0.1)
        p, q = near.logits[0].softmax(-1), near.ref_logits[0].softmax(-1)
        ratios.append(spread(k_lambda(0.5), p, q) / spread(k3, p, q))
    assert sorted(ratios)[6] > 20
    p, q = torch.tensor([0.999, 0.001]).double(), torch.tensor([0.9, 0.1]).double()
    assert spread(k_lambda(0.5), p, q) > 20 * spread(k1, p, q)


def test_while_no_ratio_exceeds_three_and_a_half() -> None:
    """K3 is no noisier than K1, and Kf++ no noisier than K5: term by term, at every ratio.

    Var K1 - Var K3 is the mean of (w - 1) (2 log w - (w - 1)), and Var K5 - Var Kf++ that of
    (w - 1) (2 w log w - (w - 1)): the means of w - 1 and of the rest are the same for all.
    """
    limit = 3.5
    x = torch.linspace(math.log(1e-6), math.log(limit), 20_001, dtype=torch.float64)
    assert bool(((x.exp() - 1) * (2 * x - x.exp() + 1) >= 0).all())
    x = -x
    assert bool(((x.exp() - 1) * (2 * x * x.exp() - x.exp() + 1) >= 0).all())
    forward = kf_plus_plus("forward_kl")
    checked = [0, 0]
    for p, q in pairs():
        if (q / p).max() <= limit:
            assert spread(k3, p, q) <= spread(k1, p, q)
            checked[0] += 1
        if (p / q).max() <= limit:
            assert spread(forward, p, q) <= spread(k5, p, q)
            checked[1] += 1
    assert min(checked) > 20
    # the limit is not much larger: with w = 4 and a token of almost no weight K1 is the quieter one
    p = torch.tensor([1 - 1e-6, 1e-6]).double()
    q = torch.tensor([1 - 4e-6, 4e-6]).double()
    assert spread(k3, p, q) > spread(k1, p, q)


def test_the_number_for_the_forward_kl_is_the_quieter_one_where_the_chapter_looks() -> None:
    """Gaussians have 'less than a fifth'; bandits of unit scale less than a half on the median."""
    ratios = []
    for seed in range(20):
        world = bandit(20, seed=seed)
        p, q = world.logits[0].softmax(-1), world.ref_logits[0].softmax(-1)
        ratios.append(spread(kf_plus_plus("forward_kl"), p, q) / spread(k5, p, q))
    assert max(ratios) < 1
    assert sorted(ratios)[10] < 0.5


def test_the_alternative_for_old_answers_has_less_noise_and_says_so() -> None:
    entry = RECOMMENDATIONS["loss-sequence-older"]
    (alternative,) = entry.alternatives
    assert "less noise" in alternative.note

    def noise(arguments: str, seed: int, scale: float) -> float:
        problem = prefix_tree(2, 3, seed=seed, off_policy=True, scale=scale)

        def terms(rollout: Rollout) -> torch.Tensor:
            positional, named = values_of(arguments)
            return kl_terms(rollout, *positional, **named)

        return exact_moments(terms, problem).gradient_variance

    for seed, scale in itertools.product(range(3), (0.1, 1.0)):
        assert noise(alternative.arguments, seed, scale) < noise(entry.arguments, seed, scale)


def test_arguments_are_read_and_never_run() -> None:
    assert values_of('"k2", importance="token"') == (["k2"], {"importance": "token"})
    assert values_of("") == ([], {})
    for text in ("print(1)", "*x", "k2"):
        with pytest.raises(ValueError, match="malformed node"):
            values_of(text)
    with pytest.raises(ValueError, match="wanted the arguments of one call"):
        values_of("1) + f(2")
