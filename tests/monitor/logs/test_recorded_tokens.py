"""A token that the policy cannot have sampled is named before the estimator, and a likely one never is."""

import math

import pytest
import torch

from kl_companion.monitor import KLMonitor, read_run, run_verdicts

VOCAB = 50


def run(
    folder, *, planted=None, ref_of_planted=1e-4, factor=1.0, steps=6, estimator="k3", seed=0, every=False
):
    """A run whose logged number is ``factor`` times exactly that estimator of its tokens.

    Args:
        planted: Probability under the policy of one token in the first step (or in every one), not sampled.
        ref_of_planted: The same under the reference.
    """
    g = torch.Generator().manual_seed(seed)
    monitor = KLMonitor(folder, estimator=estimator, every=1)
    for step in range(steps):
        logits = torch.randn(8, 16, VOCAB, generator=g, dtype=torch.float64)
        ref_logits = logits + 0.3 * torch.randn(8, 16, VOCAB, generator=g, dtype=torch.float64)
        tokens = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1, generator=g).view(8, 16)
        if planted is not None and (every or step == 0):
            for x, p in ((logits, planted), (ref_logits, ref_of_planted)):
                rest = x[0, 3].clone()
                rest[7] = -math.inf
                x[0, 3] = rest.log_softmax(-1) + math.log1p(-p)
                x[0, 3, 7] = math.log(p)
            tokens[0, 3] = 7
        logp, ref = (
            x.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1) for x in (logits, ref_logits)
        )
        u = ref - logp
        value = {"k1": -u, "k2": u**2 / 2, "k3": u.exp() - 1 - u}[estimator]
        mask = torch.ones(8, 16)
        monitor.observe(logits, ref_logits, tokens, mask, step=step, logged=factor * value.mean().item())
    return run_verdicts(read_run(folder))


def topics(verdicts):
    return [v.topic for v in verdicts]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize(
    ("planted", "ref_of_planted"),
    [(3e-12, 1e-4), (3e-12, 1e-3), (1e-13, 1e-9), (1e-10, 1e-3), (1e-16, 1e-15)],
)
def test_a_token_that_was_not_sampled_is_named_and_the_estimator_is_not_called_wrong(
    tmp_path, planted, ref_of_planted, every, estimator
):
    assert math.log(ref_of_planted / planted) < 20  # not by its log-ratio
    first, *others = run(
        tmp_path, planted=planted, ref_of_planted=ref_of_planted, every=every, estimator=estimator
    )
    assert (first.level, first.topic) == ("wrong", "impossible_token")
    assert '"7"' in first.says
    assert "it is no sample of this policy" in first.why
    assert "at most one of 1,000 runs" in first.why
    assert "not_its_noise" not in topics(others)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_a_rare_token_that_can_be_sampled_is_not_named(tmp_path, estimator):
    for i, p in enumerate((1e-3, 1e-5, 1e-6)):
        found = run(tmp_path / str(i), planted=p, ref_of_planted=4 * p, estimator=estimator)
        assert "impossible_token" not in topics(found)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
@pytest.mark.parametrize("factor", [5.0, 0.1])
def test_a_number_that_is_not_its_estimator_is_still_called_so(tmp_path, factor, estimator):
    for i, planted in enumerate((None, 3e-12)):
        found = run(tmp_path / str(i), planted=planted, factor=factor, estimator=estimator)
        assert "not_its_noise" in topics(found)
        assert ("impossible_token" in topics(found)) is (planted is not None)
        if planted is not None:  # it comes first
            assert topics(found).index("impossible_token") < topics(found).index("not_its_noise")


@pytest.mark.parametrize("seed", range(5))
def test_a_run_of_samples_has_neither(tmp_path, seed):
    found = topics(run(tmp_path, seed=100 * seed))
    assert "impossible_token" not in found
    assert "not_its_noise" not in found
