"""What a reader may hand in, and what is refused at the door."""

import pytest
import torch

from kl_companion import audit


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(ValueError, match=r"--map refernce_logp=ref_logp on the command line"):
        audit(lambda logp, refernce_logp: logp, off_policy=False, scale=1.0)


def test_a_function_of_a_rollout_and_one_of_its_fields_agree():
    by_field = audit(lambda logp, ref_logp: (logp - ref_logp) ** 2, off_policy=False, scale=1.0)
    whole = audit(
        lambda ro: (((ro.logp - ro.ref_logp) ** 2) * ro.completion_mask).sum(-1).mean(),
        off_policy=False,
        scale=1.0,
    )
    assert by_field.matches == whole.matches == {"token_reverse_kl": 2.0}


def test_per_token_functions_can_be_placed_in_the_reward_and_seen_as_sequences():
    def k1(logp, ref_logp):
        return logp - ref_logp

    assert audit(k1, placement="reward", off_policy=False, scale=1.0).matches == {"sequence_reverse_kl": 1.0}

    def squared(logp, ref_logp):
        return (logp - ref_logp) ** 2 / 2

    assert audit(squared, level="sequence", off_policy=False, scale=1.0).matches == {
        "sequence_reverse_kl": 1.0
    }


def test_optional_parameters_are_filled_by_name():
    def mine(logp, ref_logp, completion_mask=None, beta=0.5):
        assert completion_mask is not None
        return beta * ((logp - ref_logp) ** 2 / 2 * completion_mask).sum(-1).mean()

    assert audit(mine, off_policy=False, scale=1.0).matches == {"token_reverse_kl": 0.5}


def test_the_names_that_trainers_use_are_understood():
    def trl(per_token_logps, ref_per_token_logps, old_per_token_logps, mask):
        rho = (per_token_logps - old_per_token_logps).exp()
        log_w = ref_per_token_logps - per_token_logps
        return (rho * (log_w.expm1() - log_w) * mask).sum(-1).mean()

    assert audit(trl, off_policy=True, scale=1.0).matches == {"token_reverse_kl": 1.0}

    def verl(logprobs, ref_logprobs):
        return (logprobs - ref_logprobs) ** 2 / 2

    assert audit(verl, off_policy=False, scale=1.0).matches == {"token_reverse_kl": 1.0}


def test_a_whole_trainer_loss_with_advantages_and_a_clip_is_taken_apart():
    def grpo(logp, ref_logp, old_log_probs, advantages, mask):
        rho = (logp - old_log_probs).exp()
        gain = torch.min(rho * advantages[:, None], rho.clamp(0.8, 1.2) * advantages[:, None])
        log_w = ref_logp - logp
        return ((0.02 * (log_w.expm1() - log_w) - gain) * mask).sum(-1).mean()

    found = audit(grpo, off_policy=False, want="reverse_kl")
    assert all(c.matches == ({"token_forward_kl": 0.02, "expected_reward": -1.0},) for c in found.findings)
    assert not found.met
    changes = [x for x in found.remedy.splitlines() if x[:2] == "+ "]
    assert changes == [  # rho is a name of the reader's, and the indentation is that of the reader's file
        "+         rho_ = (logp - old_log_probs).exp().detach()",
        "+         kl = rho_ * 0.5 * (logp - ref_logp) ** 2",
        "+         return ((0.02 * kl - gain) * mask).sum(-1).mean()",
    ]
