"""Settings that are the same loss: formulas and functions of different frameworks, beside one another.

On three batches: ``far`` has log-ratios of which some are clamped, ``near`` none, and ``fresh`` is like
``near`` with the policy's own samples.
"""

import pytest
import torch

from kl_companion import Rollout, kl_loss, prefix_tree
from kl_companion.auditing.exact import exactly
from kl_companion.frameworks import setting

SAME = {
    "far": """
        skyrl.loss_k3                 verl.loss_k3_seq_mean_token_mean
        roll.loss                     verl.loss_k3_seq_mean_token_mean
        unsloth.grpo_uncorrected      verl.loss_k3
        torchtune.grpo                liger.grpo
        open_instruct.kl_estimator_1  verl.loss_k2
        slime.loss_k3                 trl.grpo_uncorrected_grpo
        slime.loss_k3_unbiased        trl.grpo_grpo
        areal.reward_k3               openrlhf.reward_k3
        tinker.distillation_kl_discount_1  openrlhf.reward_k1
        ema_pg.full_reverse           trl.gkd_reverse
        ema_pg.full_forward           liger.jsd_forward
        easyr1.loss_low_var_kl        verl.loss_k3
        easyr1.loss_low_var_kl_seq    verl.loss_k3_seq_mean_token_mean
        easyr1.loss_kl                verl.loss_k1
        easyr1.loss_mse               verl.loss_k2
        easyr1.loss_abs               verl.loss_abs
        easyr1.reward_kl              rlinf.reward_k1
        easyr1.reward_low_var_kl      rlinf.reward_low_var_kl
        easyr1.reward_mse             rlinf.reward_k2
        easyr1.reward_abs             rlinf.reward_abs
        xtuner.loss_low_var_kl        verl.loss_k3
        xtuner.loss_kl                verl.loss_k1
        xtuner.loss_mse               verl.loss_k2
        xtuner.loss_abs               verl.loss_abs
        rlinf.megatron_loss_low_var_kl  verl.loss_k3
        rlinf.fsdp_loss_k2            verl.loss_k2
        ms_swift.grpo                 verl.loss_k3_seq_mean_token_mean
        ms_swift.grpo_dapo            verl.loss_k3
        ms_swift.gkd_reverse          trl.gkd_reverse
        ms_swift.gkd_jensen_shannon   trl.gkd_jensen_shannon
        axolotl.async_grpo            trl.grpo_uncorrected
        axolotl.async_grpo_corrected  trl.grpo
        axolotl.kd_reverse_top_2_normalized  ms_swift.gkd_reverse_top_2
        miles.loss_k1_unbiased        slime.loss_k1_unbiased
        miles.loss_k2                 verl.loss_k2_seq_mean_token_mean
        miles.loss_k3                 trl.grpo_uncorrected_grpo
        miles.loss_k3_unbiased        trl.grpo_grpo
        miles.loss_low_var_kl         verl.loss_k3_seq_mean_token_mean
        miles.loss_low_var_kl_unbiased  slime.loss_low_var_kl_unbiased
        miles.loss_k1_per_token       verl.loss_k1
        miles.reward_reinforce_plus_plus  openrlhf.reward_k1
        miles.opd                     slime.opd
        rllm.kl_beta_verl             verl.loss_k3
        rllm.distill                  tinker.distillation_kl_discount_0
        rllm.distill_discount_1       openrlhf.reward_k1
        oat.loss                      liger.grpo
        oat.loss_grpo                 trl.grpo_uncorrected_grpo
        oat.reward                    openrlhf.reward_k1
        rpg.loss_low_var_kl           verl.loss_k3
        rpg.loss_mse                  verl.loss_k2
        rpg.reward_kl                 openrlhf.reward_k1
    """,
    "near": """
        unsloth.grpo                  trl.grpo
        nemo_rl.loss_k3_generation_ratio  trl.grpo
        megatron.grpo                 liger.grpo
        megatron.top_1_ghost          trl.iw_opd_forward_top_1_tail
        open_opd.token_reverse_kl     torchrl.reward
        torchrl.kl_to_ref             verl.loss_k3_seq_mean_token_sum_norm
        torchrl.distillation_reverse  verl.loss_k3_seq_mean_token_mean
        torchrl.distillation_reverse_sums  verl.loss_k3
        torchrl.sft_kl_to_ref         liger.grpo
        torchrl.reward_trajectory_sum  openrlhf.reward_k1
        torchrl.reward                tinker.distillation_kl_discount_0
        tunix.grpo_low_var_kl         trl.grpo_uncorrected_grpo
        tunix.grpo_low_var_kl_token_mean  trl.grpo_uncorrected_bnpo
        tunix.grpo_low_var_kl_sequence_mean_token_scale  trl.grpo_uncorrected_dr_grpo
        tunix.grpo_low_var_kl_seq_mean_token_sum  trl.grpo_uncorrected
        tunix.grpo_mse_kl             verl.loss_k2_seq_mean_token_mean
        tunix.grpo_mse_kl_seq_mean_token_sum  verl.loss_k2
        tunix.grpo_kl                 slime.loss_k1
        tunix.grpo_kl_seq_mean_token_sum  verl.loss_k1
        tunix.ppo_kl                  openrlhf.reward_k1
        tunix.ppo_mse_kl              openrlhf.reward_k2
    """,
    "fresh": """
        open_opd.opsd_jsd             trl.sdpo_full_jensen_shannon
        open_opd.opsd_reverse_kl      trl.sdpo_full_reverse
        open_opd.opsd_forward_kl      trl.sdpo_full_forward
        open_opd.opsd_topk_tail_kl    trl.sdft_reverse_top_1_tail
        open_opd.loss_full_vocab_topk_reverse_kl_listed  trl.iw_opd_reverse_top_1_tail
    """,
}
# in value these two differ: the head is renormalized with a stopped gradient
SAME_GRADIENT = ("open_opd.loss_topk_reverse_kl_intersect_sg_norm_listed", "trl.iw_opd_reverse_top_2_no_tail")
PAIRS = [(*line.split(), where) for where, lines in SAME.items() for line in lines.strip().splitlines()]


def batch(where):
    scale, seed = (6.0, 2) if where == "far" else (1.0, 0)
    problem = prefix_tree(3, 3, seed=seed, eos=True, off_policy=where != "fresh", scale=scale)
    chosen = torch.tensor([0, 3, 5, 9, 12] if where == "far" else [0, 5, 9])
    return problem.rollout(problem.logits.clone().requires_grad_(), chosen)


def value_and_slope(loss, where):
    r = batch(where)
    value = loss(r)
    return value.item(), torch.autograd.grad(value, r.logits)[0]


@pytest.mark.parametrize(("one", "other", "where"), PAIRS)
def test_two_settings_that_are_one_loss(one, other, where):
    (a, x), (b, y) = (value_and_slope(exactly(setting(name).loss), where) for name in (one, other))
    assert a == pytest.approx(b, rel=1e-9)
    assert (x - y).abs().max() < 1e-9
    assert y.abs().max() > 1e-3


def test_two_settings_of_one_gradient():
    (_, x), (_, y) = (value_and_slope(exactly(setting(name).loss), "fresh") for name in SAME_GRADIENT)
    assert (x - y).abs().max() < 1e-9 < y.abs().max()


def test_a_mean_of_absolute_log_ratios_is_half_of_their_sum_where_answers_have_two_tokens():
    problem, found = prefix_tree(3, 2, seed=2, off_policy=True), []
    for name in ("skyrl.loss_abs", "verl.loss_abs"):
        r = problem.rollout(problem.logits.clone().requires_grad_(), torch.tensor([0, 4, 8]))
        value = exactly(setting(name).loss)(r)
        found.append((value.item(), torch.autograd.grad(value, r.logits)[0]))
    (a, x), (b, y) = found
    assert 2 * a == pytest.approx(b, rel=1e-9)
    assert (2 * x - y).abs().max() < 1e-9


OURS = {
    "trl.grpo": {"estimator": "k3", "importance": "token", "ratio": "attached"},
    "trl.grpo_uncorrected": {"estimator": "k3"},
    "trl.grpo_uncorrected_grpo": {"estimator": "k3", "how": "sequence_mean"},
    "trl.grpo_uncorrected_bnpo": {"estimator": "k3", "how": "token_mean"},
    "trl.grpo_uncorrected_dr_grpo": {"estimator": "k3", "how": "constant", "length": 3},
    "verl.loss_k2": {"estimator": "k2"},
    "verl.loss_k3_plus": {"estimator": "k3_plus_plus"},
    "verl.loss_k2_seq_mean_token_mean": {"estimator": "k2", "how": "sequence_mean"},
    "openrlhf.loss_k3_unbiased": {"estimator": "k3_plus_plus"},
    "liger.grpo_corrected": {"estimator": "k3", "importance": "token", "ratio": "attached"},
}


@pytest.mark.parametrize("name", OURS)
def test_an_installed_function_is_one_of_ours(name):
    """What an unweighted estimator has on-policy is compared on-policy."""
    where = "near" if "importance" in OURS[name] else "fresh"

    def ours(rollout: Rollout) -> torch.Tensor:
        return kl_loss(rollout, **OURS[name])

    (a, x), (b, y) = value_and_slope(ours, where), value_and_slope(exactly(setting(name).loss), where)
    assert a == pytest.approx(b, rel=1e-12)
    assert (x - y).abs().max() < 1e-12
