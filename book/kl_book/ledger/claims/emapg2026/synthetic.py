"""Appendix G, figure 4 and what section 6 concludes from it, on the synthetic task (emapg2026)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache

import torch

from kl_book.ledger.claims.checks import claim
from kl_book.ledger.claims.comparisons import Found, each_form
from kl_book.ledger.claims.ground.errors import apart, degree, hedged, less, worst
from kl_book.ledger.claims.ground.sums import exact, mean, reverse_kl, terms
from kl_book.ledger.claims.ground.synthetic_task import (
    DRAWS,
    HEADS,
    MASSES,
    SEEDS,
    VOCAB,
    SyntheticTask,
    critical,
    errors_of,
    forms,
    of_scores,
    task,
    task_of,
    tasks,
)
from kl_book.ledger.claims.ground.top_k import PUBLISHED, heads
from kl_book.ledger.claims.ground.worlds import bandits


@claim("EMA-G1")
def one_position_by_itself() -> Iterator[Found]:
    """Eq (103) at one position: its value is E[-log w] and its gradient P (l - KL), no other row in it."""
    found = []
    for problem in bandits():
        t = terms(problem)
        score = t.log_ratio.sum(-1)
        kl, slope = exact(reverse_kl, problem)
        by_hand = t.p * (score - (t.p * score).sum())
        found += [apart(kl, (t.p * score).sum()), apart(slope.flatten(), by_hand)]
    yield from each_form(worst(found))


@claim("EMA-G2-setup")
def scale_meets_the_mass() -> Iterator[Found]:
    """A scale exists for every target mass; the larger it is, the lower the policy's entropy."""
    found = []
    for x in tasks():
        p = x.logp.exp()
        found += [apart(p.topk(32).values.sum(), x.mass), apart(x.kl, (p * x.log_ratio).sum())]
        found.append(apart(of_scores(x, x.log_ratio), x.gradient))
    for seed in SEEDS:
        entropy = [-float((t.logp.exp() * t.logp).sum()) for t in (task(m, seed) for m in MASSES)]
        found += [less(b, a) for a, b in itertools.pairwise(entropy)]
    yield from each_form(worst(found))


@claim("EMA-G2-sweep")
def error_is_bias_and_noise() -> Iterator[Found]:
    """Eq (108) squared is (|bias|^2 + variance / B) / |grad KL|^2: every pair of draws, on small worlds."""
    found = []
    split, _, _ = PUBLISHED["reverse"]
    for problem in bandits()[:6]:
        t = terms(problem)
        p, q = t.logp.sum(-1), t.ref_logp.sum(-1)
        x = SyntheticTask(0.0, 0, p, q, *exact(reverse_kl, problem))
        x = x._replace(gradient=x.gradient.flatten())
        for chosen in heads(p):
            leaf = p.clone().requires_grad_()
            (c,) = torch.autograd.grad((split.head(leaf, q) * chosen).sum(), leaf)
            (d,) = torch.autograd.grad((split.tail(leaf, q) * ~chosen).sum(), leaf)
            single = mean(c, t.score) + d[:, None, None] * t.score  # gradient of each draw
            pairs = (single[:, None] + single[None, :]) / 2 - x.gradient.reshape(single.shape[1:])
            mse = (t.p[:, None] * t.p * pairs.flatten(2).square().sum(-1)).sum()
            form = errors_of(x, chosen * (x.log_ratio + 1), ~chosen * x.log_ratio)
            found.append(apart(float(mse.sqrt()) / x.size, form.at(2)))
    yield from each_form(worst(found))


def _range(values: list[float]) -> str:
    return f"{min(values):.2g} to {max(values):.2g}"


@claim("EMA-G2-unbiased")
def top_k_has_no_bias() -> Iterator[Found]:
    """Bias of the published form; of the forms whose summed and sampled parts belong together."""
    published = [forms(x, k)["published"].bias for x in tasks() for k in HEADS]
    repaired = [forms(x, k)[f].bias for x in tasks() for k in HEADS for f in ("generic", "bregman")]
    yield from each_form(
        worst(published),
        worst(repaired),
        SEEDS_1=SEEDS[-1],
        range_published=_range(published),
    )


@claim("EMA-G2-floor")
def truncation_leaves_a_floor() -> Iterator[Found]:
    """The truncated form has a bias at every K but the last, and no noise to average out."""
    cut = [forms(x, k)["truncated"] for x in tasks() for k in HEADS]
    whole = [forms(x, VOCAB)["truncated"] for x in tasks()]
    floors = [less(0.0, t.bias, 1e-4) for t in cut]
    yield from each_form(worst([*floors, *(t.noise for t in cut), *(t.bias for t in whole)]))


@cache
def near_the_reference() -> SyntheticTask:
    """The first task at mass 0.8, its policy pulled to within a hundredth of its log-ratios."""
    x = task(0.8, 0)
    return task_of(0.8, 0, x.logp, (x.logp - 0.01 * x.log_ratio).log_softmax(-1))


@claim("EMA-G2-critical")
def a_critical_sample_size() -> Iterator[Found]:
    """The published form passes the truncated one only where its own floor is the lower of the two."""
    without, corrected = [], []
    for x, k in itertools.product(tasks(), HEADS):
        found = forms(x, k)
        if not math.isfinite(critical(found["published"], found["truncated"])):
            without.append((x, k))
        n = critical(found["bregman"], found["truncated"])
        before, after = (found["bregman"].at(s * n) for s in (0.99, 1.01))
        corrected += [less(found["truncated"].bias, before, 0.0), less(after, found["truncated"].bias, 0.0)]
        corrected += [0.0 if math.isfinite(n) else 1.0, found["bregman"].bias]
    cells = len(MASSES) * len(SEEDS) * len(HEADS)
    floors = [averaged_error(MASSES[-1], HEADS[-1], form, 10**12) for form in ("published", "truncated")]
    close = forms(near_the_reference(), HEADS[0])
    x, k = without[0] if without else (task(MASSES[-1], 0), HEADS[-1])
    yield from each_form(
        len(without) / cells,
        worst(corrected),
        number_of_without=len(without),
        cells=cells,
        SEEDS_1=SEEDS[-1],
        mass=x.mass,
        k=k,
        bias=forms(x, k)["published"].bias,
        bias_2=forms(x, k)["truncated"].bias,
        floors_0=floors[0],
        floors_1=floors[1],
        number=cells - len(without),
        HEADS_0=HEADS[0],
        bias_3=close["published"].bias,
        bias_4=close["truncated"].bias,
    )


@claim("EMA-fig4")
def lower_error_in_all_regimes() -> Iterator[Found]:
    """Sampled KL overtakes the published form inside the sweep; the normalized pair never loses."""
    cells = [(x, k, b) for x in tasks() for k in HEADS for b in DRAWS]
    lost: dict[str, list[tuple[SyntheticTask, int, int]]] = {"published": [], "generic": [], "bregman": []}
    for (x, k, b), form in itertools.product(cells, lost):
        if forms(x, k)[form].at(b) >= forms(x, k)["sampled"].at(b):
            lost[form].append((x, k, b))
    never = [forms(x, k)["bregman"].bias for x, k, _ in cells]
    x, k, b = min(lost["published"], key=lambda c: c[2])
    yield from each_form(
        len(lost["published"]) / len(cells),
        max(len(lost["bregman"]) / len(cells), worst(never)),
        number=len(lost["published"]),
        number_of_cells=len(cells),
        SEEDS_1=SEEDS[-1],
        b=b,
        mass=x.mass,
        k=k,
        number_2=forms(x, k)["published"].at(b),
        number_3=forms(x, k)["sampled"].at(b),
        number_4=len(lost["generic"]),
    )


def averaged_error(mass: float, k: int, form: str, draws: int) -> float:
    """RelRMSE of eq (108), averaged over the tasks of one mass."""
    return sum(forms(task(mass, seed), k)[form].at(draws) for seed in SEEDS) / len(SEEDS)


def _tail_pays(mass: float, k: int, form: str = "bregman") -> list[bool]:
    """At every B of the sweep: whether the tail lowers the averaged error."""
    return [averaged_error(mass, k, form, b) < averaged_error(mass, k, "truncated", b) for b in DRAWS]


@claim("EMA-fig4-rule")
def small_heads_with_and_large_ones_without_tail() -> Iterator[Found]:
    """Tail at K = 4 and none at K = 256: right between their two critical sizes, and at no other B."""
    window = {}
    inside = [forms(x, k)["bregman"].bias for x in tasks() for k in HEADS]
    for mass in MASSES:
        small, large = (_tail_pays(mass, k) for k in (HEADS[0], HEADS[-1]))
        right = [b for b, s, t in zip(DRAWS, small, large, strict=True) if s and not t]
        window[mass] = f"{min(right)} to {max(right)}" if right else "none"
        if mass > MASSES[0]:  # below the window the tail helps neither head, above it both
            low, high = small.index(True), large.index(True) if True in large else len(DRAWS)
            inside += [0.0 if right == [*DRAWS[low:high]] and right else 1.0, float(any(large[:low]))]
            inside.append(float(not all(small[low:] + large[high:])))
    with_tail = [x for m in MASSES for x in _tail_pays(m, HEADS[0], "published")]
    without = [not x for m in MASSES for x in _tail_pays(m, HEADS[-1], "published")]
    said = "; ".join(f"{b} at {mass}" for mass, b in window.items())
    yield from each_form(
        hedged([*with_tail, *without]),
        inside=worst(inside),
        number_of_SEEDS=len(SEEDS),
        said=said,
        HEADS_0=HEADS[0],
        HEADS_1=HEADS[-1],
        number=sum(with_tail) / len(with_tail),
        number_2=sum(without) / len(without),
    )


@claim("EMA-5.3-minimal")
def most_tokens_hardly_matter() -> Iterator[Found]:
    """Share of the entries' absolute sum that the less important half of the vocabulary holds."""

    def share(entries: torch.Tensor) -> float:
        ordered = entries.abs().sort().values
        return float(ordered[: len(ordered) // 2].sum() / ordered.sum())

    def shares(x: SyntheticTask, p: torch.Tensor) -> list[float]:
        return [share(p.exp() * x.log_ratio), share(x.gradient)]

    inside = [s for x in tasks() for s in shares(x, x.logp)]
    by_hand = worst(apart(of_scores(x, x.log_ratio), x.gradient) for x in tasks())
    flat = task_of(0.0, 0, torch.full((VOCAB,), -math.log(VOCAB)).double(), task(0.5, 0).ref_logp)
    spread = shares(flat, flat.logp)
    forward = share(task(0.2, 0).ref_logp.exp() * task(0.2, 0).log_ratio)
    yield from each_form(
        degree(max(spread)),
        inside=max(degree(max(inside)), by_hand),
        max_inside=max(inside),
        spread_0=spread[0],
        spread_1=spread[1],
        forward=forward,
    )


@claim("EMA-6-larger-k")
def the_larger_the_better() -> Iterator[Found]:
    """Error against K at every B: from K = 0 (sampled) through the sweep to the whole vocabulary (exact)."""
    rising: dict[str, list[tuple[float, int]]] = {"published": [], "bregman": []}
    for x, form in itertools.product(tasks(), rising):
        path = [forms(x, 4)["sampled"], *(forms(x, k)[form] for k in HEADS), forms(x, VOCAB)[form]]
        for b in DRAWS:
            rising[form] += [
                (x.mass, b) for one, other in itertools.pairwise(path) if other.at(b) > one.at(b) + 1e-12
            ]
    limit = worst(forms(x, VOCAB)["bregman"].bias for x in tasks())
    steps = len(MASSES) * len(SEEDS) * len(DRAWS) * (len(HEADS) + 1)
    fine = steps - len(rising["published"])
    first = min(b for _, b in rising["published"])
    yield from each_form(
        max(hedged([True] * fine + [False] * (steps - fine)), limit),
        fine=fine,
        steps=steps,
        SEEDS_1=SEEDS[-1],
        first=first,
        number=steps - len(rising["bregman"]),
    )


@claim("EMA-6-large-k-tail")
def the_tail_does_not_always_help() -> Iterator[Found]:
    """At the largest K there are sample sizes at which the truncated form has the smaller error."""
    found = []
    for x in tasks():
        largest = forms(x, HEADS[-1])
        found.append(largest["bregman"].bias)
        found += [less(largest["truncated"].at(1), largest[f].at(1)) for f in ("published", "bregman")]
    yield from each_form(worst(found))
