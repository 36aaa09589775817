"""KL as a loss and as a penalty: numbers and gradients by hand, choices that do not go together refused."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kl_companion.estimators import ESTIMATORS
from kl_companion.losses import kl_loss, kl_reward, kl_terms, policy_gradient_loss
from tests.oracles import tokens as oracle
from tests.support import rollouts
from tests.support.by_hand import LOGP, MASK, MU, NAN, rollout, slope


def test_token_level_k2_by_hand():
    ro = rollout()
    loss = kl_loss(ro, "k2", beta=0.1, importance=None)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(0.1 * ((0.125 + 0.5) + (0 + 0.5 + 0.5)) / 2, rel=1e-14)
    assert slope(loss, ro) == pytest.approx([0.1 * x / 2 for x in (0.5, -1, 0, 1, -1)], rel=1e-14)


def test_k2_is_the_default_with_beta_one_summed_over_tokens():
    assert kl_loss(rollout()).item() == kl_loss(rollout(), "k2", beta=1.0, level="token", how="sum").item()


def test_sequence_level_applies_the_estimator_to_the_sum():
    ro = rollout()
    loss = kl_loss(ro, "k2", level="sequence", importance=None)
    assert loss.item() == pytest.approx(((0.5 - 1) ** 2 / 2 + 0.0) / 2, rel=1e-14)  # the second sums to zero
    assert slope(loss, ro) == pytest.approx([-0.25, -0.25, 0, 0, 0], abs=1e-15)
    w = math.exp(0.5)  # of the first sequence; the second has w = 1
    loss = kl_loss(rollout(), "k3", level="sequence", importance=None)
    assert loss.item() == pytest.approx((w - 1 - 0.5) / 2, rel=1e-13)


@pytest.mark.parametrize(
    ("how", "length", "wanted"),
    [
        ("sum", None, (0.625 + 1.0) / 2),
        ("sequence_mean", None, (0.625 / 2 + 1.0 / 3) / 2),
        ("token_mean", None, 1.625 / 5),
        ("constant", 4, (0.625 / 4 + 1.0 / 4) / 2),
    ],
)
def test_aggregations(how, length, wanted):
    loss = kl_loss(rollout(), "k2", how=how, length=length, importance=None)
    assert loss.item() == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize("scope", ["token", "prefix", "sequence"])
def test_importance_weights_multiply_each_token_and_are_detached(scope):
    ro = rollout()
    loss = kl_loss(ro, "k2", importance=scope)
    log_rho = [[-0.2, 0.2], [0.0, 0.5, -0.5]]
    rho = [oracle.weights(row, [0.0] * len(row), scope) for row in log_rho]
    k2, k1 = [[0.125, 0.5], [0, 0.5, 0.5]], [[0.5, -1], [0, 1, -1]]
    total = sum(r * k for a, b in zip(rho, k2, strict=True) for r, k in zip(a, b, strict=True))
    assert loss.item() == pytest.approx(total / 2, rel=1e-13)
    wanted = [r * k / 2 for a, b in zip(rho, k1, strict=True) for r, k in zip(a, b, strict=True)]
    assert slope(loss, ro) == pytest.approx(wanted, rel=1e-13, abs=1e-15)


def test_importance_of_whole_sequences():
    mu = torch.tensor([[NAN, -0.5, -1.5], [-0.5, -0.25, -3.0]], dtype=torch.float64)  # log rho = -1 and 0
    loss = kl_loss(rollout(behavior_logp=mu), "k1", level="sequence", importance="sequence")
    assert loss.item() == pytest.approx((math.exp(-1) * -0.5 + 0.0) / 2, rel=1e-13)


def test_credit_is_the_detached_future_times_log_pi():
    ro = rollout()
    # k1 to go: (1/2 - 1, -1) and (0, 0, -1)
    loss = kl_loss(ro, "k1", credit=1.0, importance=None)
    assert loss.item() == pytest.approx((-0.5 * -1.0 + -1 * -2.0 + 0 + 0 + -1 * -3.0) / 2, rel=1e-14)
    assert slope(loss, ro) == pytest.approx([-0.25, -0.5, 0, 0, -0.5], abs=1e-15)
    ro = rollout()
    half = kl_loss(ro, "k1", credit=0.5, importance=None)  # (1/2 - 1/2, -1) and (0 + 1/2 - 1/4, 1 - 1/2, -1)
    assert slope(half, ro) == pytest.approx([0.0, -0.5, 0.125, 0.25, -0.5], abs=1e-15)
    ro = rollout()
    own = kl_loss(ro, "k1", credit=0.0, importance=None)  # each token's own: the gradient of token-level k2
    assert slope(own, ro) == pytest.approx(slope(kl_loss(ro, "k2", importance=None), ro), abs=1e-15)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("estimator", ["k1", ESTIMATORS["k1"], lambda logp, ref_logp: logp - ref_logp])
def test_estimators_by_name_by_entry_and_by_function(estimator, level):
    loss = kl_loss(rollout(), estimator, level=level, importance=None)
    assert loss.item() == pytest.approx(-0.25, rel=1e-14)
    wanted = [[0, 0.5, -1.0], [0, 1.0, -1.0]] if level == "token" else [-0.5, 0.0]
    assert kl_reward(rollout(), estimator, level=level, credit=None).tolist() == wanted


LOG_RHO = [[-0.2, 0.2], [0.0, 0.5, -0.5]]
K1 = [[0.5, -1.0], [0.0, 1.0, -1.0]]


def within(scope, s, t):
    return {"token": s == t, "prefix": s <= t, "sequence": True}[scope]


@pytest.mark.parametrize("clip", [None, (0.9, 1.1)])
@pytest.mark.parametrize("scope", ["token", "prefix", "sequence"])
def test_an_attached_ratio_adds_the_estimate_times_the_score_of_its_scope(scope, clip):
    ro, detached = rollout(), rollout()
    options = {"importance": scope, "clip": clip}
    loss = kl_loss(ro, "k3", ratio="attached", **options)
    other = kl_loss(detached, "k3", ratio="detached", **options)
    total, wanted, without = 0.0, [], []
    for log_rho, k1 in zip(LOG_RHO, K1, strict=True):
        rho = oracle.weights(log_rho, [0.0] * len(log_rho), scope)
        k3 = [math.exp(-x) - 1 + x for x in k1]
        free = [clip is None or clip[0] < r < clip[1] for r in rho]
        cut = rho if clip is None else [min(max(r, clip[0]), clip[1]) for r in rho]
        total += sum(r * k for r, k in zip(cut, k3, strict=True))
        for s in range(len(k1)):
            own = cut[s] * (1 - math.exp(-k1[s]))
            ahead = [rho[t] * k3[t] for t in range(len(k1)) if within(scope, s, t) and free[t]]
            without.append(own / 2)
            wanted.append((own + math.fsum(ahead)) / 2)
    assert loss.item() == pytest.approx(total / 2, rel=1e-13)
    assert other.item() == loss.item()
    assert slope(loss, ro) == pytest.approx(wanted, rel=1e-12, abs=1e-15)
    assert slope(other, detached) == pytest.approx(without, rel=1e-12, abs=1e-15)


def test_on_policy_an_attached_ratio_is_the_score_ratio():
    """rho k3 with a literal 1 would be k3; kept in the graph it is k3++."""
    ro, wanted = rollout(behavior_logp=None), rollout(behavior_logp=None)
    loss = kl_loss(ro, "k3", importance="token", ratio="attached")
    other = kl_loss(wanted, "k3_plus_plus")
    assert loss.item() == pytest.approx(other.item(), rel=1e-14)
    found = slope(loss, ro)
    assert found == pytest.approx(slope(other, wanted), rel=1e-13, abs=1e-15)
    plain = rollout(behavior_logp=None)
    literal = slope(kl_loss(plain, "k3", importance="token"), plain)
    assert literal == pytest.approx(slope(kl_loss(plain, "k3", importance=None), plain), rel=1e-14)
    assert literal != pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("ratio", ["detached", "attached"])
def test_the_ratio_of_whole_sequences(ratio):
    mu = torch.tensor([[NAN, -0.5, -1.5], [-0.5, -0.25, -2.0]], dtype=torch.float64)  # log rho = -1, -1
    ro = rollout(behavior_logp=mu)
    rho, k2 = math.exp(-1), [0.125, 0.0]
    loss = kl_loss(ro, "k2", level="sequence", importance="sequence", ratio=ratio)
    assert loss.item() == pytest.approx(rho * sum(k2) / 2, rel=1e-13)
    weight = [rho * (x + (k if ratio == "attached" else 0)) / 2 for x, k in zip([-0.5, 0], k2, strict=True)]
    assert slope(loss, ro) == pytest.approx([weight[0]] * 2 + [weight[1]] * 3, rel=1e-13, abs=1e-15)
    held = kl_loss(ro, "k2", level="sequence", importance="sequence", ratio=ratio, clip=(0.5, 2.0))
    assert held.item() == pytest.approx(0.5 * sum(k2) / 2, rel=1e-13)
    assert slope(held, ro) == pytest.approx([-0.125] * 2 + [0.0] * 3, rel=1e-13, abs=1e-15)


TERMS = [
    {},
    {"how": "sequence_mean"},
    {"how": "constant", "length": 4.0},
    {"how": "constant", "length": 0.5},
    {"importance": "prefix", "ratio": "attached", "clip": (0.8, 1.2), "how": "sequence_mean"},
    {"credit": 0.5, "importance": "token"},
    {"level": "sequence"},
    {"level": "sequence", "importance": "sequence", "ratio": "attached"},
]


@pytest.mark.parametrize("options", TERMS)
def test_the_loss_is_beta_times_the_mean_of_the_terms(options):
    ro, same = rollout(), rollout()
    terms, loss = kl_terms(ro, "k3", **options), kl_loss(same, "k3", beta=0.3, **options)
    assert terms.shape == (2,)
    assert 0.3 * terms.mean().item() == pytest.approx(loss.item(), rel=1e-14)
    assert slope(0.3 * terms.mean(), ro) == pytest.approx(slope(loss, same), rel=1e-13, abs=1e-16)
    for i in range(2):  # no term sees the other sequence
        (g,) = torch.autograd.grad(kl_terms(ro, "k3", **options)[i], ro.logp)
        assert g[1 - i].abs().max() == 0


def test_terms_by_hand():
    def terms(*names, **options):
        return kl_terms(rollout(), *names, importance=None, **options).tolist()

    assert terms() == pytest.approx([0.625, 1.0], rel=1e-14)  # k2, summed
    assert terms("k1") == pytest.approx([-0.5, 0.0], abs=1e-15)
    assert terms(how="sequence_mean") == pytest.approx([0.625 / 2, 1 / 3], rel=1e-14)
    assert terms(how="constant", length=5) == pytest.approx([0.125, 0.2], rel=1e-14)
    assert terms(level="sequence") == pytest.approx([0.125, 0.0], abs=1e-15)


@pytest.mark.parametrize("function", [kl_loss, kl_terms])
def test_missing_support_is_refused_or_left_out(function):
    mu = torch.tensor(MU, dtype=torch.float64)
    mu[0, 2] = -1e30
    with pytest.raises(ValueError, match=r"behavior_logp\[0, 2\] is -1e\+30: a probability of 0"):
        function(rollout(behavior_logp=mu), importance="token")
    ro = rollout(behavior_logp=mu)
    found = function(ro, "k2", importance="token", ratio="attached", missing="ignore")
    first = math.exp(-0.2) * 0.125
    rest = math.exp(0.5) * 0.5 + math.exp(-0.5) * 0.5
    assert found.sum().item() == pytest.approx((first + rest) / (2 if function is kl_loss else 1), rel=1e-13)
    assert slope(found.sum(), ro)[1] == 0.0


def test_a_penalty_is_detached_and_zero_outside_the_mask():
    per_token = kl_reward(rollout(), "k2", beta=2.0, level="token", credit=None)
    assert per_token.tolist() == [[0.0, 0.25, 1.0], [0.0, 1.0, 1.0]]
    whole = kl_reward(rollout(), "k2", beta=2.0)
    assert whole.tolist() == [1.25, 2.0]
    assert not per_token.requires_grad
    assert not whole.requires_grad


@pytest.mark.parametrize(
    ("advantages", "wanted"),
    [([2.0, -3.0], [-1, -1, 1.5, 1.5, 1.5]), ([[NAN, 2, 4], [6, 8, 10]], [-1, -2, -3, -4, -5])],
)
def test_policy_gradient_of_a_sequence_and_of_a_token(advantages, wanted):
    ro = rollout()
    a = torch.tensor(advantages, dtype=torch.float64).requires_grad_()
    loss = policy_gradient_loss(ro, a)
    assert slope(loss, ro) == pytest.approx(wanted, rel=1e-14)
    assert torch.autograd.grad(policy_gradient_loss(ro, a), a, allow_unused=True) == (None,)
    mean = policy_gradient_loss(ro, a, how="token_mean")
    assert slope(mean, ro) == pytest.approx([x * 2 / 5 for x in wanted], rel=1e-14)
    constant = policy_gradient_loss(ro, a, how="constant", length=10)
    assert slope(constant, ro) == pytest.approx([x / 10 for x in wanted], rel=1e-14)


def test_the_value_of_the_policy_gradient_loss():
    loss = policy_gradient_loss(rollout(), torch.tensor([2.0, -1.0], dtype=torch.float64))
    assert loss.item() == pytest.approx((-2 * -3.0 + 1 * -3.75) / 2, rel=1e-14)


@settings(max_examples=40)
@given(
    st.sampled_from(["k1", "k2", "k3", "k3_plus_plus", "k4"]),
    st.floats(-3, 3),
    st.lists(st.floats(-5, -0.1), min_size=8, max_size=8),
)
def test_reward_and_loss_hold_the_same_value(name, beta, numbers):
    logp, ref_logp = torch.tensor(numbers, dtype=torch.float64).reshape(2, 2, 2)
    ro = rollouts.rollout(logp, ref_logp, torch.tensor([[1, 1], [0, 1]]))
    loss = kl_loss(ro, name, beta=beta).item()
    assert kl_reward(ro, name, beta=beta).mean().item() == pytest.approx(loss, rel=1e-12, abs=1e-12)
    per_token = kl_reward(ro, name, beta=beta, level="token", credit=None).sum().item() / 2
    assert per_token == pytest.approx(loss, rel=1e-12, abs=1e-12)


def test_what_was_changed_in_place_is_checked_again():
    ro = rollout(logp=torch.tensor(LOGP, dtype=torch.float64), completion_mask=MASK.clone())
    kl_loss(ro)
    ro.logp[1, 1] = NAN
    for function in (kl_loss, kl_terms, lambda x: kl_reward(x, beta=1.0)):
        with pytest.raises(ValueError, match=r"logp is NaN at \[1, 1\]"):
            function(ro)
    ro.logp[1, 1] = -0.25
    assert kl_loss(ro).item() == kl_loss(rollout()).item()
    ro.completion_mask[0] = 0
    with pytest.raises(ValueError, match=r"completion_mask row \[0\] has no token"):
        kl_loss(ro)
