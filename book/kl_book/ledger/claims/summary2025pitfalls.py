"""The claims of a machine-written summary of Tang and Munos' note (summary2025pitfalls)."""

from __future__ import annotations

import torch

from kl_book.ledger.claims.ground.errors import apart, differs, hedged, relative, worst
from kl_book.ledger.claims.ground.learning import lower_mean
from kl_book.ledger.claims.ground.off_policy import mean_gradient
from kl_book.ledger.claims.ground.sequences import (
    cumulative_gradients,
    partial_gradient,
    sequence_gradients,
    sum_from_here,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    field,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
)
from kl_book.ledger.claims.ground.worlds import arms, hedge_trees, trees, two_policies, worlds
from kl_book.ledger.claims.ledger import Evidence, claim
from kl_book.ledger.claims.standard import JUDGEMENT, TOLERANCE
from kl_companion.tabular import Problem, learn


def _per_token(name: str, problem: Problem) -> torch.Tensor:
    """Expected gradient of the sum of the estimates of all tokens: eq (6) of the note."""
    return mean(terms(problem).p, differentiated(name, problem, per_token=True))


@claim("AI-first-misuse")
def first_misuse_differentiates_an_estimate() -> Evidence:
    """k1 and k3 differentiated are biased, and k2 token by token; k2 as a whole is not."""
    inside = [differs(mean_gradient(name, p), kl_gradient(p)) for name in ("k1", "k3") for p in worlds()]
    inside += [differs(_per_token("k2", p), kl_gradient(p)) for p in trees()]
    tried = [apart(mean_gradient(name, p), kl_gradient(p)) for name in ("k1", "k2", "k3") for p in worlds()]
    right = sum(e <= TOLERANCE for e in tried)
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    found, wanted = (float(x[0, 0]) for x in (mean_gradient("k2", small), kl_gradient(small)))
    return Evidence(
        right / len(tried),
        inside=worst(inside),
        unit="share of cases",
        condition="the estimate is $k_1$ or $k_3$, or $k_2$ token by token on sequences",
        correction=(
            "Differentiated, $k_1$ and $k_3$ have the wrong gradient. The squared log-ratio $k_2$ of one "
            "decision or of a whole sequence has, on-policy, exactly that of the KL."
        ),
        counterexample=(
            "policy (3/4, 1/4), reference (1/2, 1/2), first logit: $k_2$ differentiated has the mean "
            f"{found:.4f}, the KL the gradient {wanted:.4f}"
        ),
        practice=(
            "Who goes by the summary gives up a right loss: the squared estimate, whose gradient is the "
            f"KL's in {right} of the {len(worlds())} worlds tried."
        ),
    )


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
        misuse = _per_token("k2", problem)
        every = mean(t.p, torch.einsum("it,itrv->irv", t.log_ratio, t.scores))
        printed.append(relative(_last_token_only(problem), misuse))
        corrected += [apart(every, misuse), differs(misuse, exact(reverse_kl, problem)[1])]
    small = trees()[0]
    share = _last_token_only(small)[0].norm()
    first = _per_token("k2", small)[0].norm()
    return Evidence(
        worst(printed),
        worst(corrected),
        unit="relative difference",
        correction=(
            "All tokens get a gradient. Each is charged with its own log-ratio and not with those of the "
            "tokens after it."
        ),
        counterexample=(
            f"two binary tokens: the first prefix gets a gradient of norm {float(first):.4f} from the "
            f"note's equation (6), and {float(share):.4f} from the final token alone"
        ),
        practice=(
            "A reader who looks for a loss on final tokens finds none and takes their own code to be safe, "
            "while the misuse described is the usual sum over tokens. On the trees tried the two gradients "
            f"differ by {100 * min(printed):.0f} to {100 * max(printed):.0f} % of the latter."
        ),
    )


@claim("AI-derivation")
def unbiased_gradient_of_sequences() -> Evidence:
    """The note's eq (7), and the same without its terms of mean zero: both have the KL's gradient."""
    errors = []
    for problem in trees():
        for gradient in (sequence_gradients(problem), cumulative_gradients(problem)):
            errors.append(apart(mean(terms(problem).p, gradient), kl_gradient(problem)))
    return Evidence(worst(errors), note="With sequences sampled from the policy itself, as in the note.")


@claim("AI-derivation+first", how="reading")
def derived_for_the_first_time() -> Evidence:
    """The note claims no such priority."""
    return Evidence(
        needs=JUDGEMENT,
        note=(
            "The note does not claim it: it calls the loss with this gradient common practice (section 3) "
            "and takes the step to sequences from REINFORCE (appendix D)."
        ),
    )


@claim("AI-paradigm")
def right_gradient_in_the_usual_loop() -> Evidence:
    """As a loss, sg(log-ratios from here on) log pi, sample by sample; in the reward, on average."""
    errors, beta = [], 0.3
    for problem in trees():
        t = terms(problem)
        leaf = t.logp.clone().requires_grad_()
        loss = sum_from_here(leaf - t.ref_logp).detach() * leaf * problem.completion_mask
        (c,) = torch.autograd.grad(loss.sum(), leaf)
        errors.append(apart(torch.einsum("it,itrv->irv", c, t.scores), cumulative_gradients(problem)))

        def objective(
            p: torch.Tensor, q: torch.Tensor, rewards: torch.Tensor = problem.rewards
        ) -> torch.Tensor:
            return p.exp() @ rewards - beta * reverse_kl(p, q)

        shaped = problem.rewards - beta * log_ratio(problem)
        errors.append(apart(field(shaped, problem), exact(objective, problem)[1]))
    return Evidence(worst(errors))


@claim("AI-2+tabular", how="simulation")
def right_and_wrong_gradients_on_bandits() -> Evidence:
    """By samples: the differentiated k1 lets the KL drift up; the differentiated k3 lowers it, as k2 does."""
    problem = arms(30, 20)
    reference = problem.ref_logits.squeeze(-2).log_softmax(-1)
    last = {}
    for name in ("k1", "k2", "k3"):
        path = learn(problem, name, n=4, steps=300, record=300).logp
        start, last[name] = reverse_kl(path, reference)
    inside = [
        lower_mean(start, last["k1"]),
        lower_mean(last["k2"], start),
        lower_mean(last["k3"], start),
    ]
    better = {name: int((last[name] < start).sum()) for name in ("k1", "k3")}
    return Evidence(
        sum(better.values()) / (2 * len(start)),
        inside=worst(inside),
        unit="share of cases",
        condition="the wrong gradient is that of $k_1$, of mean zero",
        correction=(
            "The differentiated $k_1$ lets the policy drift. That of $k_3$ leads to the reference as well; "
            "its fault shows beside a reward, where it ends at another optimum (TM-3-same-minimiser)."
        ),
        counterexample=(
            f"{len(start)} bandits of 20 arms, n = 4, 300 updates, one seed: the mean KL goes from "
            f"{float(start.mean()):.2f} to {float(last['k3'].mean()):.3f} with the differentiated $k_3$"
        ),
        practice=(
            f"With the differentiated $k_3$ the KL falls in {better['k3']} of {len(start)} runs, with "
            f"$k_1$ in {better['k1']} (one seed). A KL that falls is no sign of a right gradient."
        ),
    )


# what the summary says of language models, and the places of the note that report it
SAID = {
    "the KL is held better": ("section 5.2", "section 5.3"),
    "wrong gradients degrade": ("section 5.1: the differentiated vanilla estimate spends most KL",),
    "convergence is steadier": (),
    "the final task improves substantially": (),
}


@claim("AI-2", how="text")
def corrected_gradients_improve_the_final_task() -> Evidence:
    """The note itself reports one reward-KL curve for both estimates in its reward experiment."""
    nowhere = [said for said, places in SAID.items() if not places]
    return Evidence(
        float(len(nowhere)),
        unit="places in the text",
        correction=(
            "With language models the note reports that correct gradients hold the KL better and, in "
            "distillation, faster. With a reward (section 5.1) both estimates trace similar curves of reward "
            "against KL, and no gain on a final task is reported."
        ),
        counterexample=(
            f"{len(nowhere)} of the {len(SAID)} findings named are reported nowhere in sections 5.1 to 5.3: "
            + "; ".join(nowhere)
        ),
        practice=(
            "Who corrects the gradient because of the summary expects more reward. By the note itself the "
            r"reward at equal KL stays about the same ($\beta = 0.001$, low KL); what improves is the KL in "
            "distillation."
        ),
    )


@claim("AI-abstract-seen", how="reading")
def seen_in_projects_and_papers() -> Evidence:
    """About the code of others at the time of the note."""
    return Evidence(
        needs="the code of the projects as it was in June 2025",
        note=(
            "The note names TRL, Open Instruct and the pseudocode of GRPO, whose loss is $k_3$ per token: "
            "EMA-eq13-14+GRPO."
        ),
    )


@claim("AI-abstract-incorrect")
def differentiated_estimates_are_wrong_as_a_rule() -> Evidence:
    """Generally: of k1, k2 and k3 on sequences, summed over tokens or whole, all but the whole k2."""
    found: dict[str, list[bool]] = {}
    for problem in hedge_trees():
        kl = kl_gradient(problem)
        for name in ("k1", "k2", "k3"):
            for form, gradient in (
                ("whole", mean_gradient(name, problem)),
                ("per token", _per_token(name, problem)),
            ):
                found.setdefault(f"{name} {form}", []).append(apart(gradient, kl) > TOLERANCE)
    wrong = [case for cases in found.values() for case in cases]
    exception = worst(apart(mean_gradient("k2", p), kl_gradient(p)) for p in hedge_trees())
    return Evidence(
        max(hedged(wrong), exception),
        note=(
            f"True in {sum(wrong)} of {len(wrong)} cases: three estimates on {len(hedge_trees())} listed "
            "trees, "
            "summed over tokens or of the whole sequence. The exception is $k_2$ of the whole sequence, "
            f"right in {len(found['k2 whole']) - sum(found['k2 whole'])}."
        ),
    )


@claim("AI-abstract-partial")
def a_part_of_the_gradient_at_best() -> Evidence:
    """Per token, k2 has the part that holds the prefixes fixed, k1 nothing, k3 neither part nor whole."""
    errors = []
    for problem in trees():
        part, all_of_it = partial_gradient(problem), kl_gradient(problem)
        errors += [apart(_per_token("k2", problem), part), differs(part, all_of_it)]
        errors.append(apart(_per_token("k1", problem), 0.0))
        errors += [differs(_per_token("k3", problem), x) for x in (part, all_of_it)]
    return Evidence(worst(errors))
