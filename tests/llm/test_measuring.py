"""What is measured on completions against enumeration: every completion of small transformers, in float64."""

import itertools
import math
import statistics

import pytest
import torch

from kl_companion.llm import measuring
from kl_companion.llm.generation import Samples, generate
from kl_companion.llm.measuring import Measured, measure, sequence_kl, standard_error, summarize
from kl_companion.llm.tasks import Example
from tests.support.llm.enumerated import BOS, LENGTH, A, World, next_token, random_model, task_of


@pytest.fixture(scope="module")
def pair():
    return random_model("a", 1), random_model("a", 2)


@pytest.fixture(scope="module", params=[False, True], ids=["fixed length", "end-of-sequence"])
def world(request, pair):
    world = World(*pair, [BOS, A], LENGTH, 4, request.param)
    assert len(world.completions) == (40 if request.param else 64)  # 1 + 3 + 9 * 4 of them end or are full
    return world


@pytest.mark.parametrize("direction", ["reverse", "forward"])
def test_the_mean_over_all_completions_is_the_sequence_kl(pair, world, direction):
    writer, other = (0, 1) if direction == "reverse" else (1, 0)
    seen, weights = measure(*pair, world.samples(), direction=direction, k=2), world.weights(writer)
    assert weights.sum().item() == pytest.approx(1.0, abs=1e-12)
    wanted = world.mean(writer, lambda y: world.logp(writer, y) - world.logp(other, y))
    assert wanted > 0.3
    assert (weights @ seen.kl).item() == pytest.approx(wanted, abs=1e-12)
    entropy = world.mean(writer, lambda y: -world.logp(writer, y))
    assert (weights @ seen.entropy).item() == pytest.approx(entropy, abs=1e-12)
    assert (weights @ seen.length).item() == pytest.approx(world.mean(writer, len), abs=1e-12)
    # each completion by itself: exact next-token sums along it
    for i, y in enumerate(world.completions):
        rows = [world.rows[y[:t]] for t in range(len(y))]
        kl = math.fsum(
            math.exp(p) * (p - q) for row in rows for p, q in zip(row[writer], row[other], strict=True)
        )
        mass = math.fsum(sum(sorted(map(math.exp, row[writer]))[-2:]) for row in rows)
        assert seen.kl[i].item() == pytest.approx(kl, abs=1e-12)
        assert seen.mass[i].item() == pytest.approx(mass, abs=1e-12)


def variances(pair, world):
    """Of the sum of exact next-token KLs, and of the log-ratio of the whole completion."""
    weights, seen = world.weights(0), measure(*pair, world.samples())
    ratio = [world.logp(0, y) - world.logp(1, y) for y in world.completions]
    both = seen.kl, torch.tensor(ratio, dtype=torch.float64)
    return [(weights @ (x - weights @ x).square()).item() for x in both]


def test_the_exact_sum_over_the_vocabulary_takes_noise_away(pair, world):
    exact, ratio = variances(pair, world)
    assert exact < 0.3 * ratio


def test_it_is_no_law_that_it_does():
    """Each token's KL is a conditional mean, their sum is none: between very sure models noise may grow."""
    sure = random_model("a", 1, 6.0, 20.0), random_model("a", 2, 6.0, 20.0)
    exact, ratio = variances(sure, World(*sure, [BOS, A], LENGTH, 4, True))
    assert exact > 2 * ratio > 10


def test_at_a_temperature_both_models_are_tempered(pair):
    world = World(*pair, [BOS, A], 2, 4, True, temperature=0.6)
    seen = measure(*pair, world.samples(), temperature=0.6)
    wanted = world.mean(0, lambda y: world.logp(0, y) - world.logp(1, y))
    assert (world.weights(0) @ seen.kl).item() == pytest.approx(wanted, abs=1e-12)


def test_observations_count_nothing_and_are_read(pair, world):
    """An environment's token, mask 0 and attention 1, has no KL of its own, and conditions what follows."""
    samples = world.samples()
    keep = samples.completion_mask.clone()
    keep[:, 1] = 0
    changed = Samples(**{**vars(samples), "completion_mask": keep})
    seen = measure(*pair, changed)
    for i, y in enumerate(world.completions):
        rows = [world.rows[y[:t]] for t in range(len(y)) if t != 1]
        kl = math.fsum(math.exp(p) * (p - q) for row in rows for p, q in zip(*row, strict=True))
        assert seen.kl[i].item() == pytest.approx(kl, abs=1e-12)
        assert seen.length[i] == len(rows)


# --- bounded memory ----------------------------------------------------------------------------------------


def test_parts_change_nothing_and_bound_what_is_held(pair, world, monkeypatch):
    whole, held = measure(*pair, world.samples(), k=1), []

    def watched(model, samples, **options):
        held.append(len(samples.tokens))
        return original(model, samples, **options)

    original = measuring.completion_logits
    monkeypatch.setattr(measuring, "completion_logits", watched)
    for batch in (1, 7):
        held.clear()
        parts = measure(*pair, world.samples(), k=1, batch=batch)
        assert max(held) == batch
        for a, b in zip(whole, parts, strict=True):
            assert torch.allclose(a, b, atol=1e-12)
    held.clear()
    monkeypatch.setattr(measuring, "_ENTRIES", 5 * LENGTH * 4)
    measure(*pair, world.samples())
    assert max(held) == 5


@pytest.mark.parametrize("batch", [0, -1, True, 2.0])
def test_a_batch_that_is_none(pair, world, batch, as_installed):
    with pytest.raises(ValueError, match=r"batch is .*, expected a whole number of at least 1"):
        measure(*pair, world.samples(), batch=batch)


# --- the standard error ------------------------------------------------------------------------------------


def test_the_standard_error_of_two_draws_is_unbiased(pair, world):
    """Over all pairs of completions: its expected square is the variance of their mean."""
    x, weights = measure(*pair, world.samples()).kl, world.weights(0)
    variance = (weights @ (x - weights @ x).square()).item()
    assert variance > 0.01
    index = torch.tensor([7, 7] if world.ends else [0, 1])
    mean = math.fsum(
        (weights[i] * weights[j]).item() * standard_error(x[[i, j]], index) ** 2
        for i, j in itertools.product(range(len(x)), repeat=2)
    )
    assert mean == pytest.approx(variance / 2, rel=1e-10)


def test_completions_of_one_prompt_are_one_cluster():
    """Two prompts drawn from two, two completions of each drawn from two: all 1024 outcomes."""
    prompts = {0: [(0.3, 1.0), (0.7, 2.0)], 1: [(0.6, 4.0), (0.4, 9.0)]}
    one = [
        (0.5 * p * q, (x, y))
        for given in prompts.values()
        for (p, x), (q, y) in itertools.product(given, given)
    ]
    index = torch.tensor([5, 5, 3, 3])
    outcomes = [
        (p * q, torch.tensor([*a, *b], dtype=torch.float64)) for (p, a), (q, b) in itertools.product(one, one)
    ]
    mean = math.fsum(p * x.mean().item() for p, x in outcomes)
    variance = math.fsum(p * (x.mean().item() - mean) ** 2 for p, x in outcomes)
    found = math.fsum(p * standard_error(x, index) ** 2 for p, x in outcomes)
    assert found == pytest.approx(variance, rel=1e-12)
    independent = math.fsum(p * standard_error(x, torch.arange(4)) ** 2 for p, x in outcomes)
    assert independent < 0.7 * variance  # what ignoring the clusters would have said


def test_a_single_completion_has_no_standard_error():
    assert math.isnan(standard_error(torch.tensor([1.0]), torch.tensor([0])))


def test_a_summary_by_hand():
    seen = Measured(*(torch.tensor(x) for x in ([1.0, 2.0, 6.0], [3.0, 3.0, 6.0], [1.0, 2.0, 3.0])), None)
    found = summarize(seen, torch.tensor([0, 1, 2]))
    assert found._asdict() == pytest.approx(
        {
            "kl": 3.0,
            "se": statistics.stdev([1, 2, 6]) / 3**0.5,
            "per_token": 1.5,
            "length": 2.0,
            "entropy": 4.0,
        }
    )


# --- from samples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["reverse", "forward"])
@pytest.mark.parametrize("ends", [False, True])
def test_sequence_kl_of_what_was_sampled(pair, direction, ends):
    task, examples = task_of("a", ends=ends), [Example("a", "a"), Example("aa", "a"), Example("aaa", "a")]

    def start():
        return torch.Generator().manual_seed(11)

    found = sequence_kl(*pair, task, examples, n=4, generator=start(), direction=direction, batch=5)
    who = 0 if direction == "reverse" else 1
    samples = generate(pair[who], task, examples, n=4, generator=start())
    per_prompt = {}
    for i in range(12):
        length = int(samples.completion_mask[i].sum())
        y = samples.tokens[i, :length].tolist()
        prompt = [BOS, *[A] * len(samples.examples[i].prompt)]
        kl = 0.0
        for t in range(length):
            ours, theirs = (next_token(pair[j], prompt, y[:t]) for j in (who, 1 - who))
            kl += math.fsum(math.exp(p) * (p - q) for p, q in zip(ours, theirs, strict=True))
        per_prompt.setdefault(samples.examples[i].prompt, []).append((kl, length))
    means = [statistics.fmean(kl for kl, _ in of) for of in per_prompt.values()]
    every = [x for of in per_prompt.values() for x in of]
    assert found.kl == pytest.approx(statistics.fmean(means), abs=1e-12)
    assert found.se == pytest.approx(statistics.stdev(means) / 3**0.5, abs=1e-12)
    assert found.per_token == pytest.approx(sum(kl for kl, _ in every) / sum(n for _, n in every), abs=1e-12)
    assert found.length == pytest.approx(statistics.fmean(n for _, n in every))
    if ends:
        assert found.length < LENGTH
