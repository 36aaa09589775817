"""What is not computed here: training runs, and judgements (zhang2025design)."""

from __future__ import annotations

from kl_book.ledger.claims.ground.errors import relative
from kl_book.ledger.claims.ground.printed_accuracies import REINFORCE_URKL, column, columns
from kl_book.ledger.claims.ground.reported import reported
from kl_book.ledger.claims.ground.sums import mean, terms
from kl_book.ledger.claims.ground.unnormalized import BETA, normalized, objective_gradient
from kl_book.ledger.claims.standard import JUDGEMENT

RUNS = "training runs of Qwen3-4B and Qwen2.5-7B-Instruct with the source's settings, and its test sets"


def _ranks() -> str:
    """The worst places of RPG variants in Table 5, in words."""
    places = {}
    for x in columns(5):
        found = column(*x)
        order = sorted(found, key=lambda method: -found[method])
        places[x] = max(order.index(m) for m in order if m.startswith("RPG")) + 1
    (_, benchmark, which), place = max(places.items(), key=lambda item: item[1])
    return (
        f"In Table 5 the lowest place of an RPG variant is {place} of 8 ({benchmark}, {which}); each column "
        "has one of them on top."
    )


def _first_place() -> str:
    """The accuracy that the abstract rounds."""
    best, last = (column(3, "AIME25", which)[REINFORCE_URKL] for which in ("best", "last"))
    return f"Table 3 has {best:.4f} at best for {REINFORCE_URKL}, and {last:.4f} at the end of the run."


def _token_weights() -> str:
    """How far the update with ratios and log-ratios of tokens is from the gradient, in words."""
    found = []
    for world in (w for w in normalized() if w.problem.rows.shape[1] > 1):
        problem, t = world.problem, terms(world.problem)
        log_w = t.logp - problem.token_logp(problem.sampled_from)
        weight = log_w.exp() * (problem.rewards[:, None] - BETA * log_w) * problem.completion_mask
        update = mean(t.p, (weight[..., None, None] * t.scores).sum(1))
        found.append(relative(update, objective_gradient(world, "URKL")))
    return (
        r"On two trees that another policy samples, with the reward of the whole answer, the update of $w_t "
        f"A_t$ with ratios of tokens is {min(found):.0%} and {max(found):.0%} away from the gradient of the "
        rf"objective of sequences (URKL, $\beta$ = {BETA})."
    )


reported("RPG-abs-52", f"{RUNS}, and Qwen3-4B-Instruct", _first_place)
reported("RPG-I1-rank", JUDGEMENT, _ranks)
reported("RPG-G2-token", JUDGEMENT, _token_weights)
