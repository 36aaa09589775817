"""What a clip does with single tokens: bounds as losses write them, sides by the sign of the advantage."""

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.judgment.inputs import CLIP, WRONG_CLIP, inputs
from kl_companion.auditing.reading.subject import as_subject


def masked_mean(x, mask):
    return (x * mask).sum() / mask.sum()


def ppo(logp, old_logp, advantages, mask, low=0.2, high=0.28):
    ratio, a = torch.exp(logp - old_logp), advantages[:, None]
    return masked_mean(torch.max(-a * ratio, -a * ratio.clamp(1 - low, 1 + high)), mask)


def centered(logp, old_logp, ref_logp, rewards, mask):  # a KL in the reward, and the usual normalization
    charged = rewards - 0.05 * ((old_logp - ref_logp) * mask).sum(-1)
    a = ((charged - charged.mean()) / charged.std())[:, None]
    ratio = torch.exp(logp - old_logp)
    return masked_mean(-torch.min(a * ratio, a * ratio.clamp(0.8, 1.2)), mask)


def beside_k1(logp, old_logp, ref_logp, advantages, mask):  # whose gradient does not vanish at the reference
    ratio, a = torch.exp(logp - old_logp), advantages[:, None]
    pg = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2))
    return masked_mean(pg + 0.1 * (logp - ref_logp), mask)


def wrong_for_bad(logp, old_logp, advantages, mask):
    ratio, a = torch.exp(logp - old_logp), advantages[:, None]
    clipped = ratio.clamp(0.8, 1.2)
    return masked_mean(
        -torch.where(a > 0, torch.min(ratio * a, clipped * a), torch.max(ratio * a, clipped * a)), mask
    )


def wrong_for_both(logp, old_logp, advantages, mask):
    ratio, a = torch.exp(logp - old_logp), advantages[:, None]
    return masked_mean(torch.min(-a * ratio, -a * ratio.clamp(0.8, 1.2)), mask)


def dual(logp, old_logp, advantages, mask, c=3.0):
    ratio, a = torch.exp(logp - old_logp), advantages[:, None]
    loss = torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2))
    return masked_mean(torch.where(a < 0, torch.min(loss, -a * c), loss), mask)


def clamped(logp, old_logp, advantages, mask):
    return masked_mean(-torch.exp(logp - old_logp).clamp(0.8, 1.2) * advantages[:, None], mask)


def masked_out(logp, old_logp, advantages, mask):
    ratio = torch.exp(logp - old_logp)
    kept = ((ratio > 0.5) & (ratio < 5)).double()
    return masked_mean(-ratio * kept * advantages[:, None], mask)


def cispo(logp, old_logp, advantages, mask):
    weight = torch.exp(logp - old_logp).clamp(0.5, 1.28).detach()
    return masked_mean(-weight * advantages[:, None] * logp, mask)


def truncated(logp, old_logp, rollout_logp, advantages, mask):
    ratio, a = torch.exp(logp - old_logp), advantages[:, None]
    weight = torch.exp(old_logp - rollout_logp).clamp(max=2.0).detach()
    return masked_mean(weight * torch.max(-a * ratio, -a * ratio.clamp(0.8, 1.2)), mask)


def gspo(logp, old_logp, advantages, mask):
    mean = ((logp - old_logp) * mask).sum(-1) / mask.sum(-1)
    ratio, a = (logp - logp.detach() + mean.detach()[:, None]).exp(), advantages[:, None]
    return masked_mean(torch.max(-a * ratio, -a * ratio.clamp(1 - 3e-4, 1 + 4e-4)), mask)


def by_difference(logp, old_logp, advantages, mask):  # of probabilities: no bound of the ratio
    moved, a = logp.exp() - old_logp.exp(), advantages[:, None]
    dropped = torch.where(a > 0, moved > 0.2, moved < -0.2)
    return masked_mean(-torch.exp(logp - old_logp) * a * ~dropped, mask)


def dropped_beside_k1(logp, old_logp, ref_logp, advantages, mask):
    weight = torch.exp(logp.detach() - old_logp)
    kept = torch.where(weight <= 5, weight, 0.0)
    return masked_mean(0.005 * (logp - ref_logp) - kept * logp * advantages[:, None], mask)


def capped_after_normalizing(logp, old_logp, rewards, mask):  # no gradient to subtract: NaN for equal rewards
    advantage = (rewards - rewards.mean()) / rewards.std()
    weight = torch.exp(logp - old_logp).clamp(max=2).detach()
    return masked_mean(-weight * advantage[:, None] * logp, mask)


def good_only(logp, old_logp, advantages, mask):
    ratio, a = torch.exp(logp - old_logp), advantages[:, None]
    return masked_mean(-torch.where(a > 0, a * ratio.clamp(max=1.2), a * ratio), mask)


def guarded(logp, old_logp, advantages, mask):
    return masked_mean(-(logp - old_logp).clamp(-20, 20).exp() * advantages[:, None], mask)


def unclipped(logp, ref_logp, rewards, mask):
    return masked_mean(-logp * rewards[:, None] + 0.1 * (logp - ref_logp) ** 2, mask)


PPO = "Clip at 0.8 and 1.2: good answers stop above 1.2, bad ones below 0.8."


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (ppo, ["Clip at 0.8 and 1.28: good answers stop above 1.28, bad ones below 0.8."]),
        (centered, [PPO]),
        (beside_k1, [PPO]),
        (dual, ["Clip at 0.8, 1.2 and 3: good answers stop above 1.2, bad ones below 0.8 and above 3."]),
        (clamped, ["Clip at 0.8 and 1.2: good and bad answers stop below 0.8 and above 1.2."]),
        (masked_out, ["Clip at 0.5 and 5: good and bad answers stop below 0.5 and above 5."]),
        (dropped_beside_k1, ["Clip at 5: good and bad answers stop above 5."]),
        (capped_after_normalizing, ["The ratio to old_logp is a weight of at most 2: no token stops."]),
        (good_only, ["Clip at 1.2: good answers stop above 1.2, bad ones never."]),
        (cispo, ["The ratio to old_logp is a weight of at least 0.5 and at most 1.28: no token stops."]),
        (
            truncated,
            [
                f"Clip of the ratio to old_logp{PPO[4:]}",
                "The ratio to rollout_logp is a weight of at most 2: no token stops.",
            ],
        ),
        (
            gspo,
            ["Clip per answer at 0.9997 and 1.0004: good answers stop above 1.0004, bad ones below 0.9997."],
        ),
        (
            by_difference,
            [
                "Clip at a bound that is none of the ratio alone: good answers stop above it, bad ones below "
                "it."
            ],
        ),
        (
            wrong_for_bad,
            [
                "Check the clip, which is on the wrong side: bad answers stop above 1.2 and are pushed down "
                "without bound below."
            ],
        ),
        (
            wrong_for_both,
            [
                "Check the clip, which is on the wrong side: good answers stop below 0.8 and are raised "
                "without bound above; bad answers stop above 1.2 and are pushed down without bound below."
            ],
        ),
        (guarded, []),
        (unclipped, []),
    ],
)
def test_what_stops_where(loss, said):
    subject = as_subject(loss)
    found = [
        x for x in inputs(subject.moved, subject.reading, subject.head) if x.effect in (CLIP, WRONG_CLIP)
    ]
    assert [x.detail for x in found] == said
    assert [x.effect == WRONG_CLIP for x in found] == ["wrong side" in text for text in said]


def test_a_wrong_clip_comes_first_on_the_card():
    verdict = audit(wrong_for_bad, scale=1.0, off_policy=False)
    lines = str(verdict).split("\n\n")
    assert lines[1].startswith("Check the clip, which is on the wrong side: bad answers stop above 1.2")
    assert PPO not in str(verdict)
    assert PPO.replace("1.2", "1.28") in str(audit(ppo, scale=1.0, off_policy=False))
