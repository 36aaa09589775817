"""What the defaults of frameworks for RL minimize, by hand: where lengths vary, in large batches.

Four entries: on-policy at small log-ratios, on-policy at large ones, off-policy at small, off-policy at
large; one stands for all four. 0 is nothing, - is none of the named objectives; `LETTERS` has the letters.
/T is divided by the mean length of an answer, /P by the longest length, to which answers are padded.
All other settings are in the table `framework_audit` alone.

A token's log-ratio of sampler and reference in the place of the reward, weighted by the policy's ratio to
the sampler: sum_a pi_a (log mu_a - log ref_a) = KL(pi || ref) - KL(pi || mu), so the gradient is R - RM. The
forward KL to the sampler has the gradient of minus its log-likelihood (FM = -BL): the divergence is named.
prime-rl adds kl_tau = 0.001 times the squared log-ratio to the sampler, which is 0.002 of the half square QM.
"""

LETTERS = {
    "R": "token_reverse_kl",
    "F": "token_forward_kl",
    "S": "sequence_reverse_kl",
    "SQ": "summed_squared_log_ratio",
    "IL": "expected_inverse_length",
    "BQ": "behavior_squared_log_ratio",
    "BW": "behavior_reference_ratio",
    "BL": "behavior_log_likelihood",
    "MW": "sampled_mean_reference_ratio",
    "ML": "sampled_mean_log_likelihood",
    "X2": "token_pearson",
    "LR": "sequence_mean_reverse_kl",
    "RM": "token_reverse_kl_to_sampler",
    "FM": "forward_kl_to_sampler",
    "QM": "token_squared_log_ratio_to_sampler",
}

EXPECTED = {
    "trl.grpo": "R",
    "trl.rloo": "S | S | - | -",
    "verl.loss_k3": "F | - | BL + BW | -",
    "verl.reward_k1": "S | S | - | -",
    "openrlhf.reward_k1": "S | S | - | -",
    "openrlhf.loss_k1": "0 | 0 | BL | BL",
    "liger.grpo": "F | F | BL + BW | BL + BW",
    "areal.reward_k1": "S | S | - | -",
    "axolotl.async_grpo": "F | F | BL + BW | BL + BW",
    "easyr1.reward_kl": "S | S | - | -",
    "easyr1.loss_low_var_kl": "F | - | BL + BW | -",
    "ema_pg.full_reverse": "R",
    "megatron.grpo": "F | F | BL + BW | BL + BW",
    "miles.loss_k1": "IL | IL | ML | ML",
    "ms_swift.grpo": "IL + MW | - | ML + MW | -",
    "ms_swift.kl_in_reward": "LR - IL | LR - IL | - | -",
    "nemo_rl.loss_k3": "R | - | BQ | -",
    "nemo_rl.reward_k3_gae": "S - F | - | - | -",
    "nemo_rl.reward_k3_reinforce_plus_plus": "R - F | - | - | -",
    "oat.loss": "F | F | BL + BW | BL + BW",
    "oat.loss_grpo": "IL + MW | IL + MW | ML + MW | ML + MW",
    "open_instruct.kl_estimator_2": "F | F | BL + BW | BL + BW",
    "open_opd.token_reverse_kl": "R | R | R - RM | R - RM",
    "prime_rl.reference_kl": "R | R | R + 0.002 QM | -",
    "rlinf.fsdp_loss_low_var_kl": "0.5 X2 | - | - | -",
    "rlinf.megatron_loss_low_var_kl": "F | - | BL + BW | -",
    "rlinf.reward_k2": "SQ - R | SQ - R | - | -",
    "rllm.kl_beta_verl": "F | - | BL + BW | -",
    "roll.loss": "IL + MW | - | ML + MW | -",
    "roll.reward_kl": "S | S | - | -",
    "rpg.loss_fkl_old": "0 | 0 | FM | FM",
    "rpg.loss_rkl_old": "0 | 0 | RM | -",
    "rpg.loss_ufkl_old": "0 | 0 | FM | FM",
    "rpg.loss_urkl_old": "0 | 0 | RM | -",
    "rpg.reward_rkl_old": "-",
    "rpg.loss_low_var_kl": "F | - | BL + BW | -",
    "skyrl.loss_k3": "IL + MW | - | ML + MW | -",
    "skyrl.reward_k3": "S - F | - | - | -",
    "slime.loss_k1": "IL | IL | ML | ML",
    "tinker.kl_discount_0": "R | R | R - RM | R - RM",
    "torchforge.grpo": "IL + MW | IL + MW | ML + MW | ML + MW",
    "torchrl.kl_to_ref": "F/P | F/P | BL/P + BW/P | BL/P + BW/P",
    "torchrl.reward": "R | R | R - RM | R - RM",
    "torchtune.grpo": "F | F | BL + BW | BL + BW",
    "torchtune.ppo": "S | S | - | -",
    "tunix.grpo_kl": "IL | IL | ML | ML",
    "tunix.grpo_kl_sequence_mean_token_scale": "0 | 0 | BL/P | BL/P",
    "tunix.ppo_low_var_kl": "S - F | S - F | - | -",
    "unsloth.grpo": "R | - | R | -",
    "xtuner.loss_low_var_kl": "F | - | BL + BW | -",
}
