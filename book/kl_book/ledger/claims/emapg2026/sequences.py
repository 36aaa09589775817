"""Section 5.1 and appendix D: the KL of sequences, the KL of tokens (emapg2026)."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, differs, less, relative, violation, worst
from kl_book.ledger.claims.ground.estimates import SAMPLED
from kl_book.ledger.claims.ground.sequences import (
    cumulative_gradients,
    curl,
    longer_trees,
    partial_gradient,
    sequence_gradients,
    sum_from_here,
    token_kls,
    token_weighted,
)
from kl_book.ledger.claims.ground.sums import (
    differentiated,
    exact,
    kl_gradient,
    log_ratio,
    mean,
    reverse_kl,
    terms,
)
from kl_book.ledger.claims.ground.worlds import bandits, tree_of, trees, two_policies
from kl_companion.tabular import Problem

ASYMMETRY = 1e-3  # of a Jacobian by central differences: far above their error


def opposed() -> Problem:
    """Two binary tokens where the likelier first token leads to no KL, and the other to much."""
    half, far = (0.5, 0.5), (0.95, 0.05)
    return tree_of([(0.6, 0.4), half, far], [half, half, half])


def field(problem: Problem, coefficient: torch.Tensor) -> torch.Tensor:
    """E[sum_n c_n s_n] from coefficients [count, length], [rows, vocab]."""
    return mean(terms(problem).p, token_weighted(problem, coefficient))


@claim("EMA-eq10")
def sign_of_the_sequence_estimate() -> Iterator[Found]:
    """The mean of -log(pi/pi_ref) is minus the KL; equation (11) carries a second minus sign."""
    printed, corrected = [], []
    for problem in (*longer_trees(), *bandits()):
        kl, found = exact(reverse_kl, problem)[0], mean(terms(problem).p, log_ratio(problem))
        printed.append(apart(-found, kl))
        corrected.append(apart(found, kl))
    small = two_policies((0.75, 0.25), (0.5, 0.5))
    value = float(-mean(terms(small).p, log_ratio(small)))
    yield from each_form(worst(printed), worst(corrected), value=value, number=exact(reverse_kl, small)[0])


@claim("EMA-eq11-12")
def sequence_gradient_is_unbiased() -> Iterator[Found]:
    """E[-sg(KL_seq) s] with eq (10)'s sign, two minus signs in all, is the gradient of the KL."""
    errors = []
    for problem in (*longer_trees(), *bandits()):
        estimate = -log_ratio(problem)  # eq (10)
        found = mean(terms(problem).p, -estimate[:, None, None] * terms(problem).score)
        errors.append(apart(found, kl_gradient(problem)))
    yield from each_form(worst(errors))


@claim("EMA-eq11-12+reward")
def difference_of_log_probs_in_the_reward() -> Iterator[Found]:
    """E[(R - beta log-ratio) s] is the gradient of objective (1)."""
    errors = []
    for problem in longer_trees():
        t = terms(problem)
        for beta in (0.05, 1.0, 3.0):
            shaped = problem.rewards - beta * log_ratio(problem)
            found = mean(t.p, shaped[:, None, None] * t.score)

            def objective(
                logp: torch.Tensor,
                ref_logp: torch.Tensor,
                beta: float = beta,
                rewards: torch.Tensor = problem.rewards,
            ) -> torch.Tensor:
                return logp.exp() @ rewards - beta * reverse_kl(logp, ref_logp)

            errors.append(apart(found, exact(objective, problem)[1]))
    yield from each_form(worst(errors))


def _prefix_probabilities(problem: Problem) -> torch.Tensor:
    """Probability that the policy visits each prefix, from the root on, [rows]."""
    p, vocab = problem.logits.softmax(-1), problem.logits.shape[-1]
    visited = torch.zeros(len(p), dtype=p.dtype).index_fill(0, problem.rows[:1, 0], 1.0)
    known = {int(problem.rows[0, 0])}
    for row, mask, tokens in zip(problem.rows, problem.completion_mask, problem.sequences, strict=True):
        for n in range(1, int(mask.sum())):
            if int(row[n]) not in known:
                known.add(int(row[n]))
                visited[row[n]] = visited[row[n - 1]] * p[row[n - 1], tokens[n - 1] % vocab]
    return visited


def _row_gradients(problem: Problem) -> torch.Tensor:
    """pi (l - KL) of every prefix: the gradient of each next token's KL in its own logits, [rows, vocab]."""
    p = problem.logits.softmax(-1)
    x = problem.logits.log_softmax(-1) - problem.ref_logits.log_softmax(-1)
    return p * (x - (p * x).sum(-1, keepdim=True))


def _token_level(problem: Problem) -> torch.Tensor:
    """sum over prefixes of their probability times the gradient of their KL, [rows, vocab]."""
    return _prefix_probabilities(problem)[:, None] * _row_gradients(problem)


@claim("EMA-eq13-14")
def token_level_gradient() -> Iterator[Found]:
    """E[sum of grad KL_n], the visits held fixed: a well-defined vector, and the gradient of no function."""
    errors, found = [], []
    for problem in longer_trees():
        errors.append(apart(partial_gradient(problem), _token_level(problem)))
        errors.append(differs(partial_gradient(problem), kl_gradient(problem)))
    for problem in trees()[:3]:
        found.append(curl(problem, "k2"))
    errors += [violation(ASYMMETRY - c) for c in found]
    token, sequence = (float(x[0, 0]) for x in (partial_gradient(opposed()), kl_gradient(opposed())))
    yield from each_form(worst(errors), max_found=max(found), token=token, sequence=sequence)


@claim("EMA-eq13-14+GRPO")
def what_grpo_differentiates() -> Iterator[Found]:
    """Differentiated per token, K2, K3++ and K4 have eq (14) as their mean; K3 has the forward KL's."""
    inside, printed = [], []
    for problem in longer_trees():
        p = terms(problem).p
        found = {n: mean(p, differentiated(SAMPLED[n], problem, per_token=True)) for n in SAMPLED}
        inside += [apart(found[n], partial_gradient(problem)) for n in ("K2", "K3++", "K4")]
        inside.append(apart(found["K3"], partial_gradient(problem, forward=True)))
        printed.append(relative(found["K3"], partial_gradient(problem)))
    first = opposed()
    x = float(mean(terms(first).p, differentiated(SAMPLED["K3"], first, per_token=True))[0, 0])
    yield from each_form(
        max(worst(inside), worst(printed)),
        inside=worst(inside),
        x=x,
        float=float(partial_gradient(first)[0, 0]),
    )


@claim("EMA-eq15")
def sequence_level_coefficients() -> Iterator[Found]:
    """Each score times the log-ratios from its token on has the gradient of the sequence KL as its mean."""
    errors = [apart(mean(terms(p).p, cumulative_gradients(p)), kl_gradient(p)) for p in longer_trees()]
    yield from each_form(worst(errors))


@claim("EMA-eq16")
def token_level_coefficients() -> Iterator[Found]:
    """Each score times its own log-ratio has the token-level gradient as its mean."""
    errors = []
    for problem in longer_trees():
        found = field(problem, terms(problem).log_ratio)
        errors += [apart(found, _token_level(problem)), apart(found, partial_gradient(problem))]
    yield from each_form(worst(errors))


def _future_kl(problem: Problem) -> torch.Tensor:
    """KL of everything after each token, given the sequence up to it, [count, length]; 0 at the end."""
    p = problem.logits.softmax(-1)
    kl = (p * (problem.logits.log_softmax(-1) - problem.ref_logits.log_softmax(-1))).sum(-1)
    mask, length = problem.completion_mask.bool(), problem.rows.shape[1]
    reached = problem.token_logp(problem.logits).sum(-1).exp()
    later = sum_from_here(kl[problem.rows] * mask) - kl[problem.rows] * mask  # along one sequence
    out = torch.zeros_like(later)
    for n in range(length - 1):
        same = (problem.rows[:, None, n] == problem.rows[None, :, n]) & mask[:, None, n] & mask[None, :, n]
        same &= problem.sequences[:, None, n] == problem.sequences[None, :, n]
        weight = same * reached
        total = weight.sum(-1)
        out[:, n] = torch.where(total > 0, (weight @ later[:, n]) / total.clamp(min=1e-300), 0.0)
    return out


@claim("EMA-eq16+punish")
def future_tokens_are_charged_to_the_present_one() -> Iterator[Found]:
    """What the sequence level adds is each score times the KL still to come, which is never negative."""
    errors = []
    for problem in longer_trees():
        t, future = terms(problem), _future_kl(problem)
        added = field(problem, sum_from_here(t.log_ratio)) - field(problem, t.log_ratio)
        errors += [apart(added, field(problem, future)), violation(-float(future.min()))]
        changed = problem._replace(logits=problem.logits.clone())
        changed.logits[1:] = problem.logits[1:].flip(-1)  # the root is row 0: only later tokens change
        token = [field(p, terms(p).log_ratio)[0] for p in (problem, changed)]
        sequence = [mean(terms(p).p, cumulative_gradients(p))[0] for p in (problem, changed)]
        errors += [apart(token[0], token[1]), differs(sequence[0], sequence[1])]
    yield from each_form(worst(errors))


@claim("EMA-eq16+objective")
def only_the_sequence_level_belongs_to_the_objective() -> Iterator[Found]:
    """Of the two gradients the sequence level's is that of the KL in objective (1); they may be opposed."""
    errors = []
    for problem in longer_trees():
        wanted = kl_gradient(problem)
        errors.append(apart(mean(terms(problem).p, sequence_gradients(problem)), wanted))
        errors.append(differs(field(problem, terms(problem).log_ratio), wanted))
    token, sequence = (float(x[0, 0]) for x in (partial_gradient(opposed()), kl_gradient(opposed())))
    errors.append(less(token * sequence, 0.0))
    yield from each_form(worst(errors))


@claim("X-token-vs-seq")
def close_to_the_anchor_the_levels_agree() -> Iterator[Found]:
    """A tenth of the distance leaves a tenth of both gradients, and a hundredth of their difference."""

    def sizes(problem: Problem, d: float) -> tuple[float, float, float]:
        shift = problem.logits - problem.ref_logits
        closer = problem._replace(logits=problem.ref_logits + d * shift / shift.norm())
        token, sequence = partial_gradient(closer), kl_gradient(closer)
        return float(token.norm()), float(sequence.norm()), float((token - sequence).norm())

    errors, shares = [], []
    for problem in longer_trees():
        coarse, fine = sizes(problem, 1e-2), sizes(problem, 1e-3)
        shares.append(coarse[2] / coarse[1])
        for a, b, left in zip(coarse, fine, (0.1, 0.1, 0.01), strict=True):
            errors.append(violation(b / a - 1.1 * left, 0.9 * left - b / a))
    yield from each_form(worst(errors), max_shares=max(shares))


# appendix D


def _given_prefix(problem: Problem, x: torch.Tensor, place: int) -> torch.Tensor:
    """sum over sequences with a common prefix of probability times x_place, [rows, ...]."""
    t, mask = terms(problem), problem.completion_mask[:, place]
    rows = torch.nn.functional.one_hot(problem.rows[:, place], len(problem.logits)).to(t.p)
    return torch.einsum("i,ih,i...->h...", t.p * mask, rows, x)


@claim("EMA-D1-integrals")
def two_integrals_of_the_product_rule() -> Iterator[Found]:
    """The first, over the derivative of pi, is the whole gradient; the second is E[score] = 0."""
    errors = []
    for problem in (*longer_trees(), *bandits()):
        theta = problem.logits.detach().clone().requires_grad_()
        logp = problem.token_logp(theta).sum(-1)
        x = logp - problem.token_logp(problem.ref_logits).sum(-1)
        terms_of_the_sum = (logp.exp() @ x.detach(), logp.exp().detach() @ x)
        first, second = (torch.autograd.grad(s, theta, retain_graph=True)[0] for s in terms_of_the_sum)
        errors += [apart(first, kl_gradient(problem)), apart(first + second, exact(reverse_kl, problem)[1])]
        errors += [apart(second, mean(terms(problem).p, terms(problem).score)), apart(second, 0.0)]
    yield from each_form(worst(errors))


@claim("EMA-eq68-72")
def past_terms_vanish() -> Iterator[Found]:
    """(68) to (72): the score-function form, its double sum, and its past terms prefix by prefix."""
    errors = []
    for problem in longer_trees():
        t, wanted = terms(problem), kl_gradient(problem)
        errors.append(apart(t.log_ratio.sum(-1), log_ratio(problem)))
        errors.append(apart(mean(t.p, t.score), 0.0))  # the second integral of D.1
        errors.append(apart(mean(t.p, log_ratio(problem)[:, None, None] * t.score), wanted))  # (68)
        double = torch.einsum("i,im,inrv->rv", t.p, t.log_ratio, t.scores)  # (69)
        past, future = t.log_ratio.cumsum(-1) - t.log_ratio, sum_from_here(t.log_ratio)
        errors += [apart(double, wanted), apart(field(problem, past) + field(problem, future), double)]
        errors.append(apart(field(problem, past), 0.0))  # (72)
        for n in range(problem.rows.shape[1]):
            errors.append(apart(_given_prefix(problem, t.scores[:, n], n), 0.0))  # step 1
            product = past[:, n, None, None] * t.scores[:, n]
            errors.append(apart(_given_prefix(problem, product, n), 0.0))  # step 2
    yield from each_form(worst(errors))


@claim("EMA-eq73-74")
def token_level_form() -> Iterator[Found]:
    """(73) prefix by prefix: E_n[log-ratio times score] is that KL's gradient; (74) is their sum."""
    errors = []
    for problem in longer_trees():
        t, visits = terms(problem), _prefix_probabilities(problem)
        local = torch.zeros_like(problem.logits)
        for n in range(problem.rows.shape[1]):
            product = t.log_ratio[:, n, None, None] * t.scores[:, n]
            by_prefix = _given_prefix(problem, product, n)  # each touches its own row of logits
            local += torch.diagonal(by_prefix, dim1=0, dim2=1).T
            errors.append(apart(by_prefix.sum(0), torch.diagonal(by_prefix, dim1=0, dim2=1).T))
        errors.append(apart(local, visits[:, None] * _row_gradients(problem)))
        errors.append(apart(field(problem, t.log_ratio), partial_gradient(problem)))
        errors.append(
            apart(mean(t.p, token_kls(problem, problem.logits).sum(-1)), exact(reverse_kl, problem)[0])
        )
    yield from each_form(worst(errors))
