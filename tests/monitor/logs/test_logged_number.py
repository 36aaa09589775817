"""A logged number is named by what it equals on the sampled tokens, before anything is called wrong."""

import pytest
import torch

from kl_companion.monitor import KLMonitor, read_run, run_verdicts
from tests.support.data import data

BETA = 0.04
CASES = data(__file__)


def by_tokens(x, mask):
    return (x * mask).sum() / mask.sum()


def by_answers(x, mask):
    return ((x * mask).sum(-1) / mask.sum(-1)).mean()


def by_sum(x, mask):
    return (x * mask).sum(-1).mean()


def verdicts(folder, number, estimator=None, steps=6):
    """The findings on a run that logs a number of policy, reference, sampler and mask."""
    g = torch.Generator().manual_seed(0)
    monitor = KLMonitor(folder, estimator=estimator, every=1, beta=BETA)
    mask = torch.ones(8, 16)
    mask[0, 5:] = mask[3, 9:] = 0
    for step in range(steps):
        logits = torch.randn(8, 16, 50, generator=g, dtype=torch.float64)
        ref, old = (logits + 0.3 * torch.randn(8, 16, 50, generator=g, dtype=torch.float64) for _ in "ab")
        tokens = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=g).view(8, 16)
        sampled = [x.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1) for x in (logits, ref, old)]
        logged = number(*sampled, mask).float().item()
        monitor.observe(logits, ref, tokens, mask, step=step, logged=logged, behavior_logp=sampled[2])
    return run_verdicts(read_run(folder))


def k3(p, q):
    return (q - p).exp() - 1 - (q - p)


@pytest.mark.parametrize("name", CASES)
def test_a_number_is_named_by_what_it_equals(tmp_path, name):
    number, estimator, level, topic, says = CASES[name]
    found = verdicts(tmp_path, eval(f"lambda p, q, o, m: {number}", globals()), estimator)
    (named,) = [x for x in found if x.topic in ("turned_sign", "another_number", "logged")]
    assert (named.level, named.topic) == (level, topic)
    assert says in named.says
    assert {"not_its_noise", "never_negative", "negative_estimator"} & {x.topic for x in found} == set()
    if level == "wrong":
        assert found[0] == named


def test_a_number_that_equals_nothing_is_not_named(tmp_path):
    found = verdicts(tmp_path, lambda p, q, _, m: 1.7 * by_tokens(k3(p, q), m), "k3")
    assert {"turned_sign", "another_number"} & {x.topic for x in found} == set()


def test_a_number_that_equals_something_in_two_rows_of_six_is_not_named(tmp_path):
    rows = iter(range(99))
    found = verdicts(tmp_path, lambda p, q, _, m: by_tokens(q - p, m) * (1 if next(rows) < 2 else 1.5))
    assert {"turned_sign", "another_number"} & {x.topic for x in found} == set()
