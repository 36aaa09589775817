"""The claims of a machine-written summary of Tang and Munos' note (summary2025pitfalls)."""

from __future__ import annotations

import torch

from kl_companion.claims.ledger import Evidence, claim
from kl_companion.claims.worlds import (
    apart,
    differentiated,
    differs,
    exact,
    mean,
    reverse_kl,
    terms,
    trees,
    worst,
)
from kl_companion.tabular import Problem


def _last_token_only(problem: Problem) -> torch.Tensor:
    """Expected gradient of the squared log-ratio of the last token of every sequence alone."""
    t = terms(problem)
    last = torch.nn.functional.one_hot(problem.completion_mask.sum(-1).long() - 1, t.logp.shape[1])
    return mean(t.p, torch.einsum("it,itrv->irv", t.log_ratio * last, t.scores))


@claim("AI-1")
def second_misuse_takes_the_final_token_only() -> Evidence:
    """The note's second misuse differentiates every token; what it drops is the effect on later tokens."""
    printed, corrected = [], []
    for problem in trees():
        t = terms(problem)
        misuse = mean(t.p, differentiated("k2", problem, per_token=True))  # eq (6) of the note
        every = mean(t.p, torch.einsum("it,itrv->irv", t.log_ratio, t.scores))
        printed.append(apart(_last_token_only(problem), misuse))
        corrected += [apart(every, misuse), differs(misuse, exact(reverse_kl, problem)[1])]
    small = trees()[0]
    share = _last_token_only(small)[0].norm()
    first = mean(terms(small).p, differentiated("k2", small, per_token=True))[0].norm()
    return Evidence(
        worst(printed),
        worst(corrected),
        correction=(
            "each token is charged with its own log-ratio and not with those of later tokens; all tokens "
            "get a gradient"
        ),
        counterexample=(
            f"two binary tokens: the first prefix gets a gradient of norm {float(first):.4f} from the "
            f"note's equation (6), and {float(share):.4f} from the final token alone"
        ),
    )


@claim("AI-2", how="reading")
def corrected_gradients_improve_the_final_task() -> Evidence:
    """The note itself reports one reward-KL curve for both estimates in its reward experiment."""
    return Evidence(
        needs="the note's Llama 3.1 experiments, which report KL curves and no gain on a final task",
        correction="section 5.1 of the note finds similar curves of reward against KL for both estimates",
    )
