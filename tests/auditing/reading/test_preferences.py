"""Losses of preference pairs: which form they have by experiment, and what is said instead of a verdict."""

import json

import pytest
import torch
import torch.nn.functional as F

from kl_companion import audit, audit_update
from kl_companion.auditing.reading.preferences import PreferenceLoss
from kl_companion.cli import main


def dpo(
    policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps, beta=0.1
):
    h = policy_chosen_logps - policy_rejected_logps - (reference_chosen_logps - reference_rejected_logps)
    return -F.logsigmoid(beta * h).mean(), (beta * h).detach()


def smoothed(
    chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.2, label_smoothing=0.1
):
    h = beta * (chosen_logps - rejected_logps - (ref_chosen_logps - ref_rejected_logps))
    return (-(1 - label_smoothing) * F.logsigmoid(h) - label_smoothing * F.logsigmoid(-h)).mean()


def with_sft(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.3, alpha=0.5):
    h = chosen_logps - rejected_logps - (ref_chosen_logps - ref_rejected_logps)
    return -F.logsigmoid(beta * h).mean() - alpha * chosen_logps.mean()


def named_otherwise(logp_winner, logp_loser, ref_logp_winner, ref_logp_loser, tau=0.2):
    h = logp_winner - logp_loser - (ref_logp_winner - ref_logp_loser)
    return ((h - 1 / (2 * tau)) ** 2).mean()


def slic(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=2.0):
    return (1 - beta * (chosen_logps - rejected_logps - ref_chosen_logps + ref_rejected_logps)).relu().mean()


def simpo(chosen_logps, rejected_logps, beta=2.0, gamma=0.5):
    return -F.logsigmoid(beta * (chosen_logps - rejected_logps) - gamma).mean()


def cpo(chosen_logps, rejected_logps, beta=0.1):
    return -F.logsigmoid(beta * (chosen_logps - rejected_logps)).mean() - chosen_logps.mean()


def orpo(chosen_logps, rejected_logps, beta=0.1):
    odds = (chosen_logps - rejected_logps) - (
        torch.log1p(-chosen_logps.exp()) - torch.log1p(-rejected_logps.exp())
    )
    return -chosen_logps.mean() - beta * F.logsigmoid(odds).mean()


def kto(policy_logps, reference_logps, KL_policy_logps, KL_reference_logps, labels, beta=0.1):
    kl = (KL_policy_logps - KL_reference_logps).mean().detach().clamp(min=0)
    x = policy_logps - reference_logps
    return torch.where(labels.bool(), 1 - F.sigmoid(beta * (x - kl)), 1 - F.sigmoid(beta * (kl - x))).mean()


def kto_in_graph(policy_logps, reference_logps, policy_KL_logps, reference_KL_logps, labels):
    kl = (policy_KL_logps - reference_KL_logps).mean()
    return (1 - F.sigmoid(policy_logps - reference_logps - kl)).mean()


def reward_model(chosen_rewards, rejected_rewards):
    return -F.logsigmoid(chosen_rewards - rejected_rewards).mean()


def cubed(chosen_logps, rejected_logps, beta=0.1):
    return beta * ((chosen_logps - rejected_logps) ** 3).mean()


def halves(policy_logps, reference_logps, beta=0.1):
    chosen, rejected = (policy_logps - reference_logps).chunk(2)
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


class Trainer:
    def __init__(self, model):
        raise RuntimeError("no model here")

    def dpo_loss(self, chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps):
        return dpo(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, self.args.beta)[0]


SHIFTS = "the kl only shifts the sigmoid, is detached and regularizes nothing"
SFT = "negative log-likelihood of the chosen answers (SFT)"


@pytest.mark.parametrize(
    ("loss", "form", "beta", "terms", "kl"),
    [
        (dpo, "DPO", "beta", [], ""),
        (smoothed, "DPO", "beta", [], ""),
        (with_sft, "DPO", "beta", [f"0.5 x {SFT}"], ""),
        (Trainer.dpo_loss, "DPO", "args.beta", [], ""),
        (named_otherwise, "IPO", "tau", [], ""),
        (slic, "SLiC, a hinge", "beta", [], ""),
        (simpo, "SimPO or CPO", "beta", [], ""),
        (cpo, "SimPO or CPO", "beta", [f"1 x {SFT}"], ""),
        (orpo, "ORPO", "beta", [SFT], ""),
        (kto, "KTO", "beta", [], SHIFTS),
        (kto_in_graph, "KTO", "", [], "the kl shifts the sigmoid, and its gradient is part of the loss"),
        (reward_model, "a reward model's", "", [], ""),
        (cubed, "", "beta", [], ""),
        (halves, "", "beta", [], ""),
    ],
)
def test_a_preference_loss_is_answered_by_its_derivatives(loss, form, beta, terms, kl):
    with pytest.raises(PreferenceLoss) as caught:
        audit(loss)
    found = {k: caught.value.data[k] for k in ("form", "beta", "terms", "kl")}
    assert found == {"form": form, "beta": beta, "terms": terms, "kl": kl}
    said = " ".join(str(caught.value).split())
    assert f"is a preference loss{f' ({form})' * bool(form)}: {kl}" in said
    assert "; not audited." in said
    assert max(map(len, str(caught.value).splitlines())) <= 100


def test_an_update_is_answered_too():
    with pytest.raises(PreferenceLoss):
        audit_update(dpo)


@pytest.mark.parametrize(("more", "status"), [([], 0), (["--want", "reverse_kl"], 1), (["--json"], 0)])
def test_the_command_line_answers(more, status, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\ndef f(chosen_logps, rejected_logps):\n"
        "    return -torch.nn.functional.logsigmoid(chosen_logps - rejected_logps).mean()\n"
    )
    assert main(["audit", f"{file}:f", "--quiet", *more]) == status
    out = capsys.readouterr().out
    assert json.loads(out)["audited"] is False if "--json" in more else "not audited" in out


def test_a_token_that_was_chosen_by_sampling_is_no_pair():
    def k2(chosen_logps, ref_chosen_logps, rejected_mask):
        return 0.5 * (chosen_logps - ref_chosen_logps) ** 2 * rejected_mask

    roles = {"chosen_logps": "logp", "ref_chosen_logps": "ref_logp", "rejected_mask": "completion_mask"}
    assert audit(k2, roles=roles, off_policy=False, scale=1.0).matches == {"token_reverse_kl": 1.0}
