"""A refusal ends with a line that was tried and runs, or with a function to write."""

import shlex

import pytest
import torch
import torch.nn.functional as F

from kl_companion.auditing.reading.repairs import readable
from kl_companion.auditing.reading.request import AuditRequest
from kl_companion.auditing.reading.sources import pair, value_of


def weighted(logp, ref_logp, mask, weights):
    return (0.5 * (logp - ref_logp) ** 2 * mask * weights).sum(-1).mean()


def scaled(current_logprobs, policy_logprobs_array, reference_logprobs, loss_masks_array, loss_scale):
    r = torch.exp(current_logprobs - policy_logprobs_array).detach()
    return (r * 0.5 * (current_logprobs - reference_logprobs) ** 2 * loss_masks_array).sum() / loss_scale


def unsaid(logp, cached_logps, A):
    return -((logp - cached_logps).exp() * A[:, None]).sum(-1).mean()


def chooses(logp, ref_logp, config):
    if config.kl_type == "abs":
        kl = (logp - ref_logp).abs()
    elif config.kl_type in ("k2", "mse"):
        kl = 0.5 * (logp - ref_logp) ** 2
    else:
        raise ValueError(config.kl_type)
    return kl * (2 if config.use_double else 1) * config.kl_coef


def optional(logp, ref_logp, token_weights=None):
    return 0.5 * (logp - ref_logp) ** 2 * token_weights


def of_a_sampler(logp, sampler_logprobs, reward, weights):
    kl = (sampler_logprobs - logp.detach()) * weights
    gain = reward[:, None] + 0.01 * (kl.sum() / weights.sum() - kl)
    return -((logp - sampler_logprobs).exp() * gain * weights).sum()


def letters(x_logps, y_logps):
    return (x_logps - y_logps) ** 2 / 2


def penalty(logp, ref_logp, kind):
    if kind in ("low_var_kl", "k3"):
        return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1
    raise NotImplementedError


def of_a_batch(data, config):
    ratio = torch.exp(data["log_prob"] - data["old_log_probs"])
    gain = -data["advantages"] * ratio
    if config.use_kl_loss:
        kl = penalty(data["log_prob"], data["ref_log_prob"], config.kl_loss_type)
        gain = gain + config.kl_loss_coef * kl
    return (gain * data["response_mask"]).sum() / data["response_mask"].sum()


def of_answers(logp, ref_logp, rewards):
    return ((logp - ref_logp).reshape(len(rewards)) * rewards).mean()


def of_padding(logp, ref_logp, pad_mask):
    return ((logp - ref_logp) ** 2).masked_fill(pad_mask, 0.0).sum() / (~pad_mask).sum()


def of_ignored(logp, ref_logp, ignore_mask):
    return ((logp - ref_logp) ** 2 * (1 - ignore_mask)).sum()


def of_answers_padded(logp, ref_logp, padding_mask):
    return ((logp - ref_logp) ** 2 * padding_mask).sum() / padding_mask.sum()


def mutual(p, q):
    return F.kl_div(F.log_softmax(p, dim=-1), F.softmax(q, dim=-1), reduction="none").sum(-1).mean()


def of_two_networks(student_out, teacher_out, lam):
    return lam * (teacher_out * (teacher_out.log() - student_out.log())).sum(-1).mean()


def passes_on(student_preds, teacher_preds):
    return softened(student_preds, teacher_preds).mean()


def softened(student_preds, teacher_preds):
    return F.kl_div((student_preds / 2.0).log_softmax(-1), (teacher_preds / 2.0).softmax(-1), reduction="sum")


def of_a_key(batch):
    return ((batch["logps"] - batch["refs"]) ** 2 * batch["mask"]).sum()


@pytest.mark.parametrize(
    ("loss", "line"),
    [
        (mutual, "--map p=logits --map q=ref_logits"),
        (of_two_networks, "--map student_out=probs --map teacher_out=ref_probs"),
        (passes_on, "--map student_preds=logits --map teacher_preds=ref_logits"),
        (of_a_key, "--map refs=ref_logp"),
        (of_padding, "--map pad_mask=outside_mask"),
        (of_ignored, "--map ignore_mask=outside_mask"),
        (of_answers_padded, "--map padding_mask=completion_mask"),
        (weighted, "--set weights=1"),
        (scaled, "--set loss_scale=1"),
        (unsaid, "--map cached_logps=ref_logp --map A=rewards"),
        (chooses, "--set config.kl_type=abs --set config.use_double=False"),
        (optional, "--set token_weights=1"),
        (of_a_sampler, "--map weights=completion_mask"),
        (letters, "--map x_logps=logp --map y_logps=ref_logp"),
        (of_a_batch, "--set config.use_kl_loss=True --set config.kl_loss_type=k3"),
        (of_answers, "--map logp=sequence_logp --map ref_logp=ref_sequence_logp"),
    ],
)
def test_the_line_that_is_offered_runs(loss, line):
    told = []
    with pytest.raises(ValueError, match="Tried, and runs: ") as caught:
        readable(AuditRequest(loss, progress=told.append))
    assert str(caught.value).splitlines()[-1].startswith(f"Tried, and runs: {line} (")
    assert told[-1].startswith(f"As it is, it does not run: trying {line} (")
    typed = shlex.split(line)
    given = {"--map": {}, "--set": {}}
    for option, text in zip(typed[::2], typed[1::2], strict=True):
        name, value = pair(text, option)
        given[option][name] = value if option == "--map" else value_of(value)
    assert readable(AuditRequest(loss, roles=given["--map"], options=given["--set"])).reading is not None


def test_where_nothing_runs_there_is_a_function_to_write():
    def hopeless(logp, z):
        return torch.linalg.inv(logp) + z.nothing

    with pytest.raises(ValueError, match="likely lines makes it run") as caught:
        readable(AuditRequest(hopeless))
    assert "    def audited(logp, ref_logp, completion_mask):" in str(caught.value)
    assert "hopeless(logp=logp, z=...)" in str(caught.value)


def test_the_roles_are_not_listed_beside_a_line_that_runs():
    with pytest.raises(ValueError, match="weights: no word") as caught:
        readable(AuditRequest(weighted))
    assert "All roles" not in str(caught.value)


def test_what_a_module_has_not_is_refused_by_the_first_try():
    calls = []

    def old(logp, ref_logp):
        calls.append(1)
        return torch.linalg.of_another_release(logp - ref_logp)

    with pytest.raises(ValueError, match=r"calls what torch.linalg .* has here$"):
        readable(AuditRequest(old))
    assert len(calls) == 1
