"""An estimator under another name is the same function of every sample, value and gradient."""

import torch

from kl_companion.auditing.fit.recognition import recognize
from kl_companion.auditing.worlds.plan import reads_heads, single_tokens


def test_half_of_k2_is_recognized_and_a_detached_one_is_not():
    found = single_tokens(lambda r: (0.25 * (r.logp - r.ref_logp) ** 2).sum())
    assert recognize(found) == ("k2", 0.5)
    assert not reads_heads(None, found)
    weighted = single_tokens(lambda r: ((r.logp - r.ref_logp).detach() * r.logp).sum())
    assert recognize(weighted) is None  # the gradient of k2, and another value


def test_a_loss_of_whole_distributions_is_of_no_single_token():
    found = single_tokens(lambda r: torch.kl_div(r.logp_all, r.ref_logp_all, log_target=True).sum())
    assert found is None
    assert reads_heads(None, found)
    assert recognize(found) is None
