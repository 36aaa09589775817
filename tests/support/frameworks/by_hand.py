"""Two tokens of a vocabulary of two, whose numbers can be checked with a pocket calculator.

First token: policy 0.5, reference 0.25, sampler 0.4. Second: 0.2, 0.8, 0.25. So pi/mu is 1.25 and 0.8.
"""

import torch

from kl_companion import Rollout

POLICY, REFERENCE, SAMPLER = (0.5, 0.2), (0.25, 0.8), (0.4, 0.25)
# losses on the two tokens: k1 = log 2, -log 4; k3 = 1/2 - 1 + log 2, 4 - 1 - log 4; pi/mu = 5/4, 4/5
BY_HAND = {
    "trl.grpo": 1.532399,  # 5/4 k3 + 4/5 k3
    "trl.grpo_uncorrected": 1.806853,
    "trl.grpo_uncorrected_grpo": 0.903426,
    "trl.grpo_sequence_ratio": 1.806853,  # the ratio of the sequence is 5/4 x 4/5 = 1
    "trl.rloo": -0.693147,  # log 0.4/0.25 + log 0.25/0.8, times a ratio of 1
    "trl.gkd_reverse": 0.975618,  # (log 2 + log 2/3) / 2 + (0.8 - 0.2) log 4
    "trl.distillation_reverse": 0.975618,
    "trl.iw_opd_reverse_top_0_tail": 0.975618,
    "trl.sdpo": 0.592179,  # (-5/4 log 2 log 2 + 4/5 log 4 log 5) / 2
    "trl.sdpo_full_reverse": 0.422611,  # the two KLs with 5/4 and 4/5 before them, halved
    "liger.jsd_reverse": 0.975618,
    "liger.grpo": 1.806853,
    "liger.grpo_corrected": 1.532399,
    "verl.loss_k1": -0.693147,
    "verl.loss_k2": 1.201133,  # (log 2)^2 / 2 + (log 4)^2 / 2
    "verl.loss_k3": 1.806853,
    "verl.loss_k3_plus": 1.806853,
    "verl.loss_abs": 2.079442,
    "verl.loss_k3_seq_mean_token_mean": 0.903426,
    "verl.loss_k3_seq_mean_token_sum_norm": 0.903426,
    "verl.distillation_k3": 1.806853,
    "openrlhf.loss_k3_unbiased": 1.806853,
    "openrlhf.loss_k1": -0.693147,
    "openrlhf.reward_k1": -1.796955,  # 5/4 (log 1.6 - log 3.2) - 4/5 log 3.2
    "nemo_rl.loss_k3_generation_ratio": 1.532399,
    "nemo_rl.distillation_mixed_top_1": 0.466571,  # heads 0.75 and 0.8: (1/4 log 3/2 + 3/5 log 4) / 2
    "open_instruct.kl_estimator_3": -0.242601,  # 5/4 log 2 - 4/5 log 4
    "slime.loss_k2_unbiased": 0.534504,
    "prime_rl.reference_kl": -0.242501,  # 5/4 log 2 - 4/5 log 4 + 0.001 (2 (log 5/4)^2)
    "areal.distillation_joint": -0.693147,
    "areal.reward_k3": 2.244295,  # k3 of 0.4/0.25 and 0.25/0.8: 0.095004 and 1.036849, the second twice
    "roll.loss": 0.903426,
    "skyrl.loss_abs": 1.039721,
    "ema_pg.k5": 5.198604,  # -1/2 log 2 + 4 log 4
    "torchtune.grpo": 1.806853,
    "unsloth.grpo": 1.532399,
    "tinker.distillation_kl_discount_1": -1.796955,
    "tinker.kl_discount_1": -0.653262,  # less their mean -log(2)/2: 0, 4/5 (log(2)/2 - log 3.2)
    "torchforge.grpo": 0.903426,
    "torchtune.ppo": -1.796955,
    "skyrl.reward_k3": 2.244295,
    "torchrl.kl_to_ref": 0.903426,
    "torchrl.kl_to_inference": 0.025,  # (4/5 - 1 + log 5/4 + 5/4 - 1 - log 5/4) / 2
    "torchrl.reward": -0.343016,  # 5/4 log 1.6 - 4/5 log 3.2
    "torchrl.reward_trajectory_sum": -1.796955,
    "torchrl.distillation_forward": 0.471574,  # (2 - 1 - log 2 + 1/4 - 1 + log 4) / 2
    "torchrl.sft_kl_to_ref": 1.806853,
    "megatron.grpo": 1.806853,
    "megatron.top_1_ghost": 0.962589,  # 1/4 log 1/2 + 3/4 log 3/2, and 3/5 log 4
    "megatron.top_1_no_tail": 1.413134,  # 3/4 log 3/2 + 4/5 log 4
    "rpg.loss_rkl": 1.039721,  # 2 log 2 - 1/4 log 4
    "rpg.loss_ufkl": 0.943147,  # 2 - log 2 - 1, 1/4 + log 4 - 1
    "rpg.loss_urkl": 0.789721,  # 2 (log 2 - 1) + 1, 1/4 (-log 4 - 1) + 1
    "rpg.loss_js": 0.173287,  # (2 log 2 + log 2 - 1/4 log 4 - log 4) / 2
    "rpg.reward_rkl_old": 3.3,  # every token is charged with 1, the first with both: 5/4 x 2 + 4/5
    "open_opd.token_reverse_kl": -0.343016,
    "open_opd.loss_topk_reverse_kl_notail_listed": 0.906303,  # heads 0.5 and 0.8: 1/2 log 2/3 + 4/5 log 4
    "open_opd.opsd_jsd": 0.113283,  # JS of 1/2 and 1/4 is 0.033822, of 1/5 and 4/5 0.192745
    "open_opd.opsd_decoded_kl": 0.346574,  # (log 4 - log 2) / 2
    "rlinf.fsdp_loss_low_var_kl": 0.943147,  # pi/ref in the place of ref/pi: 2 - 1 - log 2, 1/4 - 1 + log 4
    "rlinf.megatron_loss_low_var_kl": 1.806853,
    "rlinf.fsdp_loss_k1": 0.693147,  # log 1/2 + log 4: the sign is that of a likelihood that is raised
    "ms_swift.grpo": 0.903426,
    "ms_swift.opd_dapo": -0.343016,  # 5/4 log 1.6 - 4/5 log 3.2
    "ms_swift.kl_in_reward": -0.693147,  # -(6/5 + 4/5) / 2 (log 3.2 - log 1.6): 5/4 is clipped to 6/5
    "ms_swift.gkd_reverse_top_2": 0.975618,  # the head is the whole vocabulary
    "easyr1.loss_low_var_kl": 1.806853,
    "easyr1.reward_kl": -1.796955,
    "xtuner.loss_low_var_kl": 1.806853,
    "xtuner.loss_abs": 2.079442,
    "axolotl.async_grpo": 1.806853,
    "axolotl.async_grpo_corrected": 1.532399,
    "axolotl.kd_forward_top_2": 0.962589,  # (log 1/2 + 3 log 3/2) / 4 + (4/5 - 1/5) log 4
    "tunix.grpo_kl": -0.346574,  # (log 2 - log 4) / 2
    "tunix.ppo_low_var_kl": 2.244295,  # as areal.reward_k3
    "tunix.logit_strategy_temperature_1": 0.481294,  # (3/4 log 3/2 - 1/4 log 2 + 3/5 log 4) / 2
    "miles.loss_k1_unbiased": -0.121301,  # (5/4 log 2 - 4/5 log 4) / 2
    "miles.opd_top_2": 0.628067,  # 5/4 (0.4 log 1.6 + 0.6 log 0.8) + 4/5 (0.75 log 3.75 - 0.25 log 3.2)
    "rllm.distill": -0.343016,  # 5/4 log 1.6 - 4/5 log 3.2
    "oat.loss_grpo": 0.903426,
}


def rollout(dtype=torch.float64, off_policy=True, policy=POLICY, reference=REFERENCE, sampler=SAMPLER):
    def logits(probabilities):
        p = torch.tensor([probabilities], dtype=dtype)
        return torch.stack([p.log(), (1 - p).log()], -1)

    return Rollout.from_logits(
        torch.zeros(1, len(policy), dtype=torch.long),
        torch.ones(1, len(policy), dtype=dtype),
        logits(policy).requires_grad_(),
        logits(reference),
        behavior_logits=logits(sampler) if off_policy else None,
    )
