"""Appendix G, figure 4 and what section 6 concludes from it, on the synthetic task (emapg2026)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, corrected, inside, less, numbers, printed, rises, same
from kl_book.ledger.claims.ground import sums, synthetic_task, top_k, worlds
from kl_book.ledger.claims.ground.errors import degree, hedged
from kl_book.ledger.claims.ground.synthetic_task import (
    DRAWS,
    HEADS,
    MASSES,
    SEEDS,
    VOCAB,
    SyntheticTask,
    forms,
    task,
    tasks,
)
from kl_book.ledger.claims.ground.world import Enumeration, each

LAST_SEED = SEEDS[-1]


def pairs() -> list[tuple[SyntheticTask, int]]:
    """Every task with every K."""
    return list(itertools.product(tasks(), HEADS))


@claim("EMA-G1", over=each(worlds.bandits))
def one_position_by_itself(w: Enumeration) -> Iterator[Found]:
    """Eq (103) at one position: its value is E[-log w] and its gradient P (l - KL), no other row in it."""
    yield same(w.kl, w.E(w.l))
    yield same(w.d_kl.flatten(), w.p * (w.l - w.E(w.l)))


@claim("EMA-G2-setup")
def scale_meets_the_mass() -> Iterator[Found]:
    """A scale exists for every target mass; the larger it is, the lower the policy's entropy."""
    for x in tasks():
        yield same(x.logp.exp().topk(32).values.sum(), x.mass)
        yield same(x.kl, x.logp.exp() @ x.log_ratio)
        yield same(synthetic_task.of_scores(x, x.log_ratio), x.gradient)
    for seed in SEEDS:
        yield rises([float(t.logp.exp() @ t.logp) for t in (task(m, seed) for m in MASSES)])


@claim("EMA-G2-sweep", over=each(*worlds.bandits()[:6]))
def error_is_bias_and_noise(w: Enumeration) -> Iterator[Found]:
    """Eq (108) squared is (|bias|^2 + variance / B) / |grad KL|^2: every pair of draws, on small worlds."""
    split, p, q = top_k.PUBLISHED["reverse"][0], w.t.logp.sum(-1), w.t.ref_logp.sum(-1)
    x = SyntheticTask(0.0, 0, p, q, w.kl, w.d_kl.flatten())
    for head in top_k.heads(p):
        leaf = p.clone().requires_grad_()
        (c,) = torch.autograd.grad((split.head(leaf, q) * head).sum(), leaf)
        (d,) = torch.autograd.grad((split.tail(leaf, q) * ~head).sum(), leaf)
        single = sums.mean(c, w.s) + d[:, None, None] * w.s  # gradient of each draw
        of_two = (single[:, None] + single) / 2 - w.d_kl
        mse = w.p @ of_two.flatten(2).square().sum(-1) @ w.p
        form = synthetic_task.errors_of(x, head * (x.log_ratio + 1), ~head * x.log_ratio)
        yield same(mse.sqrt() / x.size, form.at(2))


@claim("EMA-G2-unbiased")
def top_k_has_no_bias() -> Iterator[Found]:
    """Bias of the published form; of the forms whose summed and sampled parts belong together."""
    bias = [forms(x, k)["published"].bias for x, k in pairs()]
    yield printed(max(bias))
    for x, k in pairs():
        yield corrected(forms(x, k)["generic"].bias)
        yield corrected(forms(x, k)["bregman"].bias)
    yield numbers(last_seed=LAST_SEED, least=min(bias), most=max(bias))


@claim("EMA-G2-floor")
def truncation_leaves_a_floor() -> Iterator[Found]:
    """The truncated form has a bias at every K but the last, and no noise to average out."""
    for x, k in pairs():
        yield less(0.0, forms(x, k)["truncated"].bias, by=1e-4)
        yield printed(forms(x, k)["truncated"].noise)
    for x in tasks():
        yield printed(forms(x, VOCAB)["truncated"].bias)


def near_the_reference() -> SyntheticTask:
    """The first task at mass 0.8, its policy pulled to within a hundredth of its log-ratios."""
    x = task(0.8, 0)
    return synthetic_task.task_of(0.8, 0, x.logp, (x.logp - 0.01 * x.log_ratio).log_softmax(-1))


@claim("EMA-G2-critical")
def a_critical_sample_size() -> Iterator[Found]:
    """The published form passes the truncated one only where its own floor is the lower of the two."""
    without = []
    for x, k in pairs():
        published, truncated, bregman = (forms(x, k)[f] for f in ("published", "truncated", "bregman"))
        if not math.isfinite(synthetic_task.critical(published, truncated)):
            without.append((x, k))
        n = synthetic_task.critical(bregman, truncated)
        yield less(truncated.bias, bregman.at(0.99 * n), "corrected", by=0.0)
        yield less(bregman.at(1.01 * n), truncated.bias, "corrected", by=0.0)
        yield corrected(float(not math.isfinite(n)))
        yield corrected(bregman.bias)
    yield printed(len(without) / len(pairs()))
    x, k = without[0] if without else (task(MASSES[-1], 0), HEADS[-1])
    yield numbers(without=len(without), critical=len(pairs()) - len(without), cells=len(pairs()))
    yield numbers(last_seed=LAST_SEED, mass=x.mass, k=k, smallest=HEADS[0])
    near = forms(near_the_reference(), HEADS[0])
    for form in ("published", "truncated"):
        average = averaged_error(MASSES[-1], HEADS[-1], form, 10**12)
        bias = {form: forms(x, k)[form].bias, f"{form}_mean": average, f"{form}_near": near[form].bias}
        yield numbers(**bias)


@claim("EMA-fig4")
def lower_error_in_all_regimes() -> Iterator[Found]:
    """Sampled KL overtakes the published form inside the sweep; the normalized pair never loses."""
    cells = [(x, k, b) for x, k in pairs() for b in DRAWS]

    def lost(form: str) -> list[tuple[SyntheticTask, int, int]]:
        return [(x, k, b) for x, k, b in cells if forms(x, k)[form].at(b) >= forms(x, k)["sampled"].at(b)]

    yield printed(len(lost("published")) / len(cells))
    yield corrected(len(lost("bregman")) / len(cells))
    yield corrected(max(forms(x, k)["bregman"].bias for x, k in pairs()))
    x, k, b = min(lost("published"), key=lambda c: c[2])
    yield numbers(lost=len(lost("published")), cells=len(cells), last_seed=LAST_SEED)
    yield numbers(b=b, mass=x.mass, k=k, lost_by_generic=len(lost("generic")))
    yield numbers(published=forms(x, k)["published"].at(b), sampled=forms(x, k)["sampled"].at(b))


def averaged_error(mass: float, k: int, form: str, draws: int) -> float:
    """RelRMSE of eq (108), averaged over the tasks of one mass."""
    return sum(forms(task(mass, seed), k)[form].at(draws) for seed in SEEDS) / len(SEEDS)


def _tail_pays(mass: float, k: int, form: str = "bregman") -> list[bool]:
    """At every B of the sweep: whether the tail lowers the averaged error."""
    return [averaged_error(mass, k, form, b) < averaged_error(mass, k, "truncated", b) for b in DRAWS]


@claim("EMA-fig4-rule")
def small_heads_with_and_large_ones_without_tail() -> Iterator[Found]:
    """Tail at K = 4 and none at K = 256: right between their two critical sizes, and at no other B."""
    for mass in MASSES:
        small, large = (_tail_pays(mass, k) for k in (HEADS[0], HEADS[-1]))
        right = [b for b, s, t in zip(DRAWS, small, large, strict=True) if s and not t]
        yield inside(float((not right) != (mass == MASSES[0])))
        if right:  # below the window the tail helps neither head, above it both
            low, high = small.index(True), large.index(True) if True in large else len(DRAWS)
            yield inside(float(right != [*DRAWS[low:high]]))
            yield inside(float(any(large[:low])))
            yield inside(float(not all(small[low:] + large[high:])))
            yield numbers(**{f"from_{100 * mass:.0f}": right[0], f"to_{100 * mass:.0f}": right[-1]})
    for x, k in pairs():
        yield inside(forms(x, k)["bregman"].bias)
    with_tail = [x for m in MASSES for x in _tail_pays(m, HEADS[0], "published")]
    without = [not x for m in MASSES for x in _tail_pays(m, HEADS[-1], "published")]
    yield printed(hedged([*with_tail, *without]))
    yield numbers(tasks=len(SEEDS), smallest=HEADS[0], largest=HEADS[-1])
    yield numbers(at_smallest=sum(with_tail) / len(with_tail), at_largest=sum(without) / len(without))


def _less_important_half(entries: torch.Tensor) -> float:
    """Share of the entries' absolute sum that the less important half of the vocabulary holds."""
    ordered = entries.abs().sort().values
    return float(ordered[: len(ordered) // 2].sum() / ordered.sum())


@claim("EMA-5.3-minimal")
def most_tokens_hardly_matter() -> Iterator[Found]:
    """Share of the entries' absolute sum that the less important half of the vocabulary holds."""

    def shares(x: SyntheticTask) -> list[float]:
        return [_less_important_half(entries) for entries in (x.logp.exp() * x.log_ratio, x.gradient)]

    of_tasks = [max(shares(x)) for x in tasks()]
    yield inside(degree(max(of_tasks)))
    for x in tasks():
        yield same(synthetic_task.of_scores(x, x.log_ratio), x.gradient, "inside")
    even = torch.full((VOCAB,), -math.log(VOCAB)).double()
    value, gradient = shares(synthetic_task.task_of(0.0, 0, even, task(0.5, 0).ref_logp))
    yield printed(degree(max(value, gradient)))
    forward = _less_important_half(task(0.2, 0).ref_logp.exp() * task(0.2, 0).log_ratio)
    yield numbers(most=max(of_tasks), even_value=value, even_gradient=gradient, forward=forward)


@claim("EMA-6-larger-k")
def the_larger_the_better() -> Iterator[Found]:
    """Error against K at every B: from K = 0 (sampled) through the sweep to the whole vocabulary (exact)."""
    rising: dict[str, list[int]] = {"published": [], "bregman": []}  # B of every step up
    for x, form in itertools.product(tasks(), rising):
        path = [forms(x, 4)["sampled"], *(forms(x, k)[form] for k in HEADS), forms(x, VOCAB)[form]]
        for b, (one, other) in itertools.product(DRAWS, itertools.pairwise(path)):
            rising[form] += [b] if other.at(b) > one.at(b) + 1e-12 else []
    for x in tasks():
        yield printed(forms(x, VOCAB)["bregman"].bias)
    steps = len(MASSES) * len(SEEDS) * len(DRAWS) * (len(HEADS) + 1)
    up = len(rising["published"])
    yield printed(hedged([True] * (steps - up) + [False] * up))
    yield numbers(lower=steps - up, steps=steps, last_seed=LAST_SEED, first=min(rising["published"]))
    yield numbers(lower_without_bias=steps - len(rising["bregman"]))


@claim("EMA-6-large-k-tail")
def the_tail_does_not_always_help() -> Iterator[Found]:
    """At the largest K there are sample sizes at which the truncated form has the smaller error."""
    for x in tasks():
        largest = forms(x, HEADS[-1])
        yield printed(largest["bregman"].bias)
        for form in ("published", "bregman"):
            yield less(largest["truncated"].at(1), largest[form].at(1))
