"""What the card says under "In practice" happens, for every objective and both signs, by a small step."""

import re

import pytest
import torch

from kl_companion import audit, prefix_tree
from kl_companion.auditing.fit.findings import Condition, Finding
from kl_companion.auditing.judgment.card import card
from kl_companion.auditing.judgment.summary import effects
from kl_companion.auditing.worlds.objectives import FORWARD_TO_SAMPLER, OBJECTIVES, field, objectives
from kl_companion.auditing.worlds.truncations import cut_objectives

NAMES = dict.fromkeys(
    [*objectives(off_policy=True), FORWARD_TO_SAMPLER, *(n for k in (0, 1, 2) for n in cut_objectives(k))]
)
CONDITION = Condition(True, True, 1.0)


def finding(name, sign):
    return Finding(CONDITION, ({name: sign},), 0.0, False, dict, lambda: 0.0, ({name: ""},))


def place(*, at_reference=False):
    p = prefix_tree(5, 2, seed=4, eos=True, off_policy=True, scale=2.0)
    return p._replace(logits=p.ref_logits.clone()) if at_reference else p


def numbers(p, logits, name):
    """What sentences speak of, from lists of answers, the visits and samples held fixed."""
    mask, rewards = p.completion_mask, p.rewards
    lengths = mask.sum(-1)
    logp, ref = p.token_logp(logits), p.token_logp(p.ref_logits)
    mu = p.token_logp(p.behavior_logits).sum(-1).exp()
    whole, each = logp.sum(-1), (logp * mask)
    log_w = (ref - logp) * mask
    of_objective = OBJECTIVES[name].scalar(p.rollout(logits))
    centered = rewards - (mu * rewards).sum()
    rewarded = torch.where(mask.bool(), rewards[:, None], 0.0)
    return {
        r"pushed away from the reference by": of_objective,
        r"pushed away from the one that sampled|held near the one that sampled": of_objective,
        r"holds the policy near|pushes the policy away": (mu * whole).sum(),
        r"old samples themselves are made": (mu * whole).sum(),
        r"Answers become": (whole.exp() * lengths).sum(),
        r"(raised|lowered) by their reward without": (mu * (rewarded * each).sum(-1)).sum(),
        r"(raised|lowered) by reward over": (mu * (rewarded * each).sum(-1) / lengths).sum(),
        r"(raised|lowered) by their reward above": (mu * centered * whole).sum(),
        r"(raised|lowered) by \(reward - mean\)": (mu * centered * whole / lengths).sum(),
        r"Tokens that were drawn .*dropped": -(mu * (log_w.exp() * mask).sum(-1)).sum(),
        r"Answers that were drawn .*dropped": -(mu * log_w.sum(-1).exp()).sum(),
        r"log-ratio of tokens that were drawn": (mu * (log_w**2).sum(-1)).sum(),
        r"log-ratio of answers that were drawn": (mu * log_w.sum(-1) ** 2).sum(),
        r"log-ratios of answers that were drawn": (mu * log_w.sum(-1) ** 2).sum()
        - (mu * log_w.sum(-1)).sum() ** 2,
        r"The log-ratio is pushed away": (mu * (log_w**2).sum(-1) / lengths).sum(),
        r"Near a reverse KL": (mu * (log_w**2).sum(-1) / lengths).sum(),
        r"has dropped are dropped further; each": -(mu * (log_w.exp() * mask).sum(-1) / lengths).sum(),
        r"Near a forward KL": -(mu * (log_w.exp() * mask).sum(-1) / lengths).sum(),
        r"mean log-ratio of answers to the reference is raised": -(
            whole.exp() * log_w.sum(-1) / lengths
        ).sum(),
        r"high rewards become rarer|above the mean become rarer|punished less": (
            whole.exp() * (centered if "centered" in name else rewards) / lengths
        ).sum(),
        r"moves probability": of_objective if name.endswith("mass") else head_mass(p, logits, name),
    }


def head_mass(p, logits, name):
    found = re.search(r"(policy|reference)_top_(\d)", name)
    if found is None:
        return torch.zeros(())
    rows = (p.logits if found[1] == "policy" else p.ref_logits).topk(int(found[2]), -1).indices
    return logits.log_softmax(-1).gather(-1, rows).exp().sum()


GROWS = (
    r"pushed away|made more likely|become longer|are raised by|brought back|zero, however likely they are\.|"
    r"is raised|punished less|moves probability to|driven apart"
)
FALLS = (
    r"held near the one|made less likely|become shorter|lowered|dropped further|pulled to zero|become rarer|"
    r"moves probability away|are made equal"
)
NEAR = r"Near a reverse KL"  # a distance that falls


def direction(sentence):
    if re.search(NEAR, sentence):
        return -1
    if re.search(r"Near a forward KL", sentence):
        return 1
    if re.search(r"pushed away", sentence):
        return 1
    return 1 if re.search(GROWS, sentence) else -1 if re.search(FALLS, sentence) else 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_a_term_is_what_a_step_on_it_does(name, sign):
    for sentence in effects(finding(name, sign)):
        p = place(at_reference="Even at the reference" in sentence)
        step = -sign * field(OBJECTIVES[name], p)
        if step.norm() < 1e-9:
            continue
        theta = p.logits.clone().requires_grad_()
        for pattern, x in numbers(p, theta, name).items():
            if re.search(pattern, sentence) and direction(sentence):
                (slope,) = torch.autograd.grad(x, theta, retain_graph=True)
                assert direction(sentence) * (slope * step).sum() > 0, (sentence, pattern)


@pytest.mark.parametrize("name", NAMES)
def test_no_sentence_is_said_of_both_signs(name):
    assert not set(effects(finding(name, 1.0))) & set(effects(finding(name, -1.0)))


def forward_kl_to_the_sampler(logp, old_logp, mask):
    return -((logp - old_logp) * mask).sum(-1).mean()


@pytest.mark.parametrize(("factor", "likely"), [(1.0, "more"), (0.02, "more"), (-1.0, "less")])
def test_stale_samples_are_made_more_likely_by_minus_their_log_likelihood(factor, likely):
    def loss(logp, old_logp, mask):
        return factor * forward_kl_to_the_sampler(logp, old_logp, mask)

    text = " ".join(card(audit(loss, scale=1.0, off_policy=True), height=None).split())
    assert f"The old samples themselves are made {likely} likely, whatever" in text


def test_effects_of_several_terms_are_said_of_each_by_itself():
    def loss(logp, ref_logp, mask):
        log_w = ref_logp - logp
        return ((0.5 * log_w**2 - (log_w.exp() - 1 - log_w)) * mask).sum(-1).mean()

    text = " ".join(str(audit(loss, scale=1.0, off_policy=False)).split())
    assert "In practice, each term by itself: Tokens that the policy over-weights" in text
    assert "The policy is pushed away from the reference by forward KL, next token." in text
