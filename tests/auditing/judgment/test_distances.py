"""Angle and length of a gradient beside the one that was meant, from gradients written prefix by prefix."""

import math

import pytest
import torch

from kl_companion import audit
from kl_companion.auditing.judgment.card import card
from kl_companion.auditing.judgment.distances import SIZES, distances, order, world
from kl_companion.auditing.judgment.sentences import times
from kl_companion.auditing.reading.subject import as_loss
from tests.oracles import worlds
from tests.support.data import data
from tests.support.objectives import world_of

DATA = data(__file__)


def gradients(kl, *names):
    p = world(SIZES[kl]).problem
    found = []
    for name in names:
        theta = p.logits.clone().requires_grad_()
        worlds.token_level(world_of(p), theta, p.ref_logits, p.logits, name).backward()
        found.append(theta.grad.flatten())
    return found


@pytest.mark.parametrize("kl", SIZES)
def test_the_kl_per_token_is_reached(kl):
    made = world(SIZES[kl])
    listed, p = world_of(made.problem), made.problem
    total = worlds.token_level(listed, p.logits, p.ref_logits, p.logits, "reverse_kl").item()
    assert total / worlds.over_leaves(listed, p.logits, len) == pytest.approx(kl, abs=1e-9)
    assert not p.rewards.any()
    assert torch.equal(p.logits, world(SIZES[0.1]).problem.logits)  # only the reference moves


@pytest.mark.parametrize("name", ["k2", "k4", "exact_kl"])
def test_the_loss_that_was_meant_is_at_no_distance(name):
    for found in distances(as_loss(name), "token_reverse_kl"):
        assert found.degrees < 1e-4
        assert found.percent == pytest.approx(100)


@pytest.mark.parametrize("beta", [1.0, 0.1, -0.02, 1e-9, 1e6])
def test_k3_is_as_far_from_the_reverse_kl_as_the_forward_kl_times_its_coefficient(beta):
    found = distances(lambda ro: beta * as_loss("k3")(ro), "token_reverse_kl")
    assert [d.kl for d in found] == list(SIZES)
    for d in found:
        mine, theirs = gradients(d.kl, "forward_kl", "reverse_kl")
        cosine = math.copysign(1, beta) * (mine @ theirs / mine.norm() / theirs.norm()).item()
        assert d.degrees == pytest.approx(math.degrees(math.acos(cosine)), abs=1e-6)
        assert d.percent == pytest.approx(100 * abs(beta) * (mine.norm() / theirs.norm()).item())
    assert (found[0].degrees < found[1].degrees < found[2].degrees) is (beta > 0)


def test_lengths_are_beside_the_coefficient_and_the_unit_that_were_asked_for():
    k3 = as_loss("k3")
    for unit, factor in (("tokens", None), ("positions", 2.0)):
        (plain, *_), (other, *_) = (
            distances(k3, "token_reverse_kl", **options)
            for options in ({}, {"coefficient": 0.5, "unit": unit})
        )
        p = world(SIZES[0.01]).problem
        mean = worlds.over_leaves(world_of(p), p.logits, len)
        assert other.percent == pytest.approx(plain.percent / 0.5 * (factor or float(mean)))
    assert math.isnan(distances(k3, "token_reverse_kl", unit="batch")[0].percent)


@pytest.mark.parametrize(
    "loss",
    [
        lambda ro: (ro.logp - ro.ref_logp).mul(ro.completion_mask).sum(-1).mean(),  # moves nothing
        lambda ro: -(ro.logp * ro.completion_mask).sum(-1).mul(ro.rewards).mean(),  # nothing but rewards
        lambda ro: (ro.logp / ro.rewards.std() * ro.rewards[:, None]).sum(-1).mean(),  # NaN without rewards
    ],
)
def test_no_gradient_no_distance(loss):
    assert distances(loss, "token_reverse_kl") == ()


def test_an_audit_compares_what_is_not_as_meant():
    far = audit("k3", scale=1.0, off_policy=False)
    assert (far.compared, len(far.distances)) == ("token_reverse_kl", 3)
    assert audit("k2", scale=1.0, off_policy=False).distances == ()
    assert audit("k3", scale=1.0, off_policy=False, level="sequence").compared == "sequence_reverse_kl"
    assert audit("k3", scale=1.0, off_policy=False, want="token_pearson").compared == "token_pearson"


def beside_an_entropy(ro):
    return as_loss("exact_kl")(ro) + (ro.logp_all.exp() * ro.logp_all).sum(-1).sum() / len(ro.tokens)


def of_second_order(logp, ref_logp, mask, beta=0.05):
    log_w = ref_logp - logp
    k2, k3 = 0.5 * log_w**2, log_w.exp() - 1 - log_w
    return beta * ((k2 - k3) * mask).sum(-1).mean()  # reverse minus forward: no gradient of first order


@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
def test_lengths_are_true_of_fields_that_vanish_fast_or_not_at_all(size):
    for d in distances(lambda ro: size * as_loss(of_second_order)(ro), "token_reverse_kl"):
        reverse, forward = gradients(d.kl, "reverse_kl", "forward_kl")
        length = ((reverse - forward).norm() / reverse.norm()).item()
        assert d.percent == pytest.approx(100 * size * 0.05 * length, rel=1e-6)
    for d in distances(lambda ro: size * beside_an_entropy(ro), "token_reverse_kl"):
        assert d.percent > 100 * size
        assert d.degrees > 1


def rloo_k3(logps, old_logps, ref_logps, rewards, completion_mask, beta=0.05):
    r = ref_logps - old_logps
    rewards = rewards - beta * ((torch.exp(r) - r - 1) * completion_mask).sum(-1)
    adv = rewards - (rewards.sum() - rewards) / (len(rewards) - 1)
    return -(torch.exp(((logps - old_logps) * completion_mask).sum(1)) * adv).mean()


def js_reward(logp, ref_logp, rewards, mask, beta=0.05):
    """Of a Jensen-Shannon cost in the reward: no gradient of first order."""
    cost = -(0.5 * (1 + (ref_logp - logp).exp())).log().detach() + 0.5 * (ref_logp - logp).detach()
    return -((logp * mask).sum(-1) * (rewards - beta * (cost * mask).sum(-1))).mean()


REDUCTIONS = {
    "answers": lambda x, mask: (x * mask).sum(-1).mean(),
    "tokens": lambda x, mask: (x * mask).sum() / mask.sum(),
    "padded": lambda x, mask: (x * mask).sum() / mask.numel(),
    "summed": lambda x, mask: (x * mask).sum(),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("beta", [1e-6, 0.05, -0.05, 1e6])
def test_the_power_with_which_a_field_vanishes(beta, reduction):
    def of(each):
        def loss(ro):
            log_w = ro.ref_logp - ro.logp
            k2, k3 = 0.5 * log_w**2, log_w.exp() - 1 - log_w
            return REDUCTIONS[reduction](beta * each(log_w, k2, k3), ro.completion_mask)

        return order(loss)

    assert of(lambda w, k2, k3: k2) == pytest.approx(1, abs=0.01)
    assert of(lambda w, k2, k3: k3) == pytest.approx(1, abs=0.05)
    assert of(lambda w, k2, k3: k2 - k3) == pytest.approx(2, abs=0.05)
    assert of(lambda w, k2, k3: w.abs() ** 1.5) == pytest.approx(0.5, abs=0.05)
    assert math.isnan(of(lambda w, k2, k3: w))  # nothing is left of it on average


@pytest.mark.parametrize("beta", [1e-6, 0.05, -2.0, 1e6])
@pytest.mark.parametrize("loss", [rloo_k3, js_reward])
def test_a_field_of_second_order_is_said_to_do_almost_nothing_near_the_reference(loss, beta):
    found = audit(loss, scale=1.0, off_policy=False, want="reverse_kl", options={"beta": beta})
    text = " ".join(card(found, height=None).split())
    assert "Near the reference it is of second order: it does almost nothing there." in text
    assert "no KL term acts" not in text  # however small it is
    assert found.order == pytest.approx(2, abs=0.05)
    near, _, far = found.distances
    assert near.percent < 20
    assert near.percent < far.percent / 3
    if loss is rloo_k3:  # by hand: 0.0065 beside 0.05 at 0.01 nats
        assert "at a KL per token of 0.01, turned by" in text
        assert "and 0.130 times as long" in text


def test_a_divergence_is_not_said_to_be_of_another_order():
    for name in ("k3", "k5"):
        assert "order" not in card(audit(name, scale=1.0, off_policy=False, want="reverse_kl"), height=None)


@pytest.mark.parametrize("beta", [1.0, 0.05, 3e-4, 20.0])
def test_the_card_says_the_coefficient_and_the_length_beside_it(beta):
    found = audit(of_second_order, scale=1.0, off_policy=False, want="reverse_kl", options={"beta": beta})
    (d, *_) = found.distances
    reverse, forward = gradients(d.kl, "reverse_kl", "forward_kl")
    length = ((reverse - forward).norm() / reverse.norm()).item()
    assert d.percent == pytest.approx(100 * length, rel=1e-6)
    text = " ".join(str(found).split())
    said = "" if beta == 1 else f"{beta:.4g} x "
    assert f"Compared with the gradient of {said}reverse KL, next token" in text
    assert f"and {length:.3f} times as long" in text or f"and {length:.2f} times as long" in text
    assert (found.to_dict()["coefficient"], found.to_dict()["unit"]) == (beta, "")


def test_a_number_in_the_formula_is_part_of_the_length():
    def tenth(logp, ref_logp, mask):
        log_w = ref_logp - logp
        return 0.1 * ((log_w.exp() - 1 - log_w) * mask).sum(-1).mean()

    mine, theirs = gradients(0.01, "forward_kl", "reverse_kl")
    found = audit(tenth, scale=1.0, off_policy=False)
    assert found.distances[0].percent == pytest.approx(10 * (mine.norm() / theirs.norm()).item())
    assert "turned by 5° and 0.106 times as long" in " ".join(str(found).split())


def test_an_entropy_is_not_compared_with_a_kl():
    def loss(ro):
        entropy = -(ro.logp_all.exp() * ro.logp_all).sum(-1)
        return ((0.01 * entropy - ro.logp * ro.rewards[:, None]) * ro.completion_mask).sum(-1).mean()

    found = audit(loss, scale=1.0, off_policy=False)
    assert found.headline == "no KL term"
    assert found.distances == ()
    assert "Compared with" not in card(found, height=None)


def test_no_distance_of_small_groups():
    assert audit("k3", scale=1.0, off_policy=False, group_size=2).distances == ()


@pytest.mark.parametrize(("ratio", "text"), DATA["how_a_length_is_printed"])
def test_how_a_length_is_printed(ratio, text):
    assert times(ratio) == text
