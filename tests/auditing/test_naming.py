"""Names of real trainers, what is refused, and what two names together leave open."""

import re

import pytest

from kl_companion.auditing.heads import HEADS
from kl_companion.auditing.naming import ROLES, Read, Unread, read_name, read_names, refusal

# {framework: {role: names}}: parameters and keys of their losses
NAMES = {
    "trl": {
        "logp": "per_token_logps log_probs logprobs token_logprobs student_log_probs",
        "ref_logp": "ref_per_token_logps ref_logps teacher_log_probs teacher_actual_logprobs"
        " teacher_target_logps teacher_logps_chunk",
        "behavior_logp": "old_per_token_logps old_logps sampling_per_token_logps rollout_logprobs"
        " old_log_probs",
        "logits": "logits student_logits",
        "ref_logits": "teacher_logits",
        "probs": "probs",
        "completion_mask": "completion_mask attention_mask mask assistant_masks valid_mask",
        "rewards": "rewards advantages reward advantage environment_reward",
        "tokens": "completion_ids completion_ids_list tokens token_ids generated_tokens completion_tokens",
        "input_ids": "input_ids student_input_ids sequences concatenated_input_ids",
        "prompt_ids": "prompt_ids prompt_input_ids prompt_ids_list prompt_tokens",
        "labels": "labels shift_labels target_ids student_labels",
        "importance_ratio": "importance_sampling_ratio ratio",
        "num_tokens": "num_items_in_batch num_tokens",
        "max_length": "max_completion_length max_new_tokens max_tokens max_length",
        "group_size": "num_generations",
        "prompt_index": "group_id prompt_index index",
        "batch": "inputs batch data samples generation_batch",
    },
    "verl": {
        "logp": "log_prob log_probs logprob log_p",
        "ref_logp": "ref_log_prob ref_logprob teacher_logprobs",
        "behavior_logp": "old_log_prob old_log_probs rollout_log_probs rollout_log_prob",
        "logits": "student_logits logits",
        "completion_mask": "response_mask loss_mask attention_mask non_padding_mask",
        "rewards": "token_level_rewards token_level_scores advantages returns scores rm_scores",
        "tokens": "responses completion_ids",
        "input_ids": "input_ids concat_input_ids",
        "prompt_index": "uid uids index",
        "importance_ratio": "rollout_is_weights raw_rollout_is_weights",
        "num_tokens": "batch_num_tokens",
        "batch_size": "global_batch_size",
        "max_length": "max_response_length",
        "batch": "data micro_batch mini_batch batch",
    },
    "openrlhf": {
        "logp": "log_probs per_token_logps action_log_probs",
        "ref_logp": "log_probs_base base_action_log_probs",
        "behavior_logp": "old_log_probs log_probs_old rollout_log_probs",
        "completion_mask": "action_mask loss_mask mask",
        "rewards": "advantages returns reward rewards score",
        "input_ids": "sequences input_ids",
        "num_tokens": "num_action_tokens batch_num_tokens",
        "batch_size": "num_samples",
        "max_length": "max_new_tokens generate_max_len",
        "group_size": "n_samples_per_prompt",
        "batch": "experience experiences",
    },
    "liger": {
        "logp": "log_probs log_prob_chunk per_token_logps selected_log_probs LOG_P",
        "ref_logp": "ref_log_prob_chunk ref_per_token_logps ref_logp REF_LOGP ref_per_token_logps_chunk",
        "behavior_logp": "old_per_token_logps old_logp OLD_LOGP old_per_token_logps_chunk",
        "logits": "logits logits_chunk student_logits",
        "ref_logits": "teacher_logits",
        "probs": "student_prob",
        "ref_probs": "teacher_prob",
        "completion_mask": "attention_mask attention_mask_chunk completion_mask COMPLETION_MASK",
        "rewards": "advantages advantages_chunk ADVANTAGES",
        "tokens": "selected_token_ids selected_token_ids_chunk completion_ids",
        "labels": "labels targets shift_labels",
        "importance_ratio": "vllm_is_ratio vllm_is_ratio_chunk importance_ratio VLLM_IS_RATIO",
        "num_tokens": "num_items_in_batch n_tokens total_tokens",
    },
    "nemo_rl": {
        "logp": "curr_logprobs logprobs",
        "ref_logp": "reference_policy_logprobs logprobs_reference",
        "behavior_logp": "prev_logprobs generation_logprobs",
        "logits": "next_token_logits",
        "completion_mask": "token_mask loss_multiplier",
        "num_tokens": "global_valid_toks",
        "batch_size": "global_valid_seqs",
        "tokens": "next_tokens",
        "rewards": "advantages total_reward",
    },
    "prime_rl": {
        "logp": "trainer_logprobs",
        "behavior_logp": "inference_logprobs",
        "ref_logp": "teacher_logprobs ref_logprobs",
        "completion_mask": "loss_mask",
        "rewards": "advantages",
    },
    "areal": {
        "logp": "logp logprobs",
        "behavior_logp": "prox_logp proximal_logprobs old_logprobs old_logp recomputed_logp behave_logp",
        "ref_logp": "ref_logp teacher_logp",
        "completion_mask": "loss_mask",
    },
    "slime": {
        "logp": "log_probs local_log_probs",
        "behavior_logp": "rollout_log_probs old_log_probs",
        "ref_logp": "ref_log_probs log_probs_base teacher_log_probs",
        "completion_mask": "loss_masks",
        "importance_ratio": "importance_ratio",
        "batch": "rollout_data",
    },
    "skyrl": {
        "logp": "log_probs action_log_probs",
        "behavior_logp": "old_action_log_probs rollout_action_logprobs rollout_logprobs",
        "ref_logp": "base_action_log_probs log_probs_base",
        "completion_mask": "response_mask response_masks",
        "batch": "training_input experience",
    },
    "roll": {
        "behavior_logp": "infer_log_probs infer_logprobs old_log_probs",
        "ref_logp": "ref_log_probs",
        "rewards": "response_level_rewards token_level_rewards",
        "completion_mask": "final_response_mask",
        "tokens": "output_ids response_id",
    },
    "open_instruct": {
        "logp": "local_logprobs new_logprobs",
        "behavior_logp": "vllm_logprobs old_logprobs",
        "ref_logp": "ref_logprobs",
        "completion_mask": "response_masks",
        "input_ids": "query_responses",
    },
    "torchtune": {
        "logp": "pi_logprobs logprobs",
        "behavior_logp": "pi_old_logprobs",
        "ref_logp": "ref_logprobs pi_ref_logprobs",
        "completion_mask": "masks",
        "input_ids": "query_responses",
        "rewards": "scores advantages",
    },
    "tinker": {
        "logp": "training_logprobs",
        "behavior_logp": "sampling_logprobs",
        "ref_logp": "base_logprobs",
        "labels": "target_tokens target_tokens_T",
        "rewards": "advantages advantages_T",
        "completion_mask": "mask mask_T",
        "input_ids": "input_tokens_T",
    },
    "unsloth": {
        "logits": "new_logits",
        "ref_logits": "ref_logits",
        "behavior_logits": "old_logits",
        "behavior_logp": "sampling_per_token_logps",
        "tokens": "completion_input_ids",
    },
    "tunix": {
        "logp": "per_token_logps",
        "ref_logp": "ref_per_token_logps",
        "behavior_logp": "old_per_token_logps",
        "importance_ratio": "is_ratio",
        "batch": "train_example",
    },
    "written by hand": {
        "logp": "logpCurrent logp_new new_logps cur_log_probs studentLogProbs lp my_logps log_pi log_pi_theta"
        " logπ log_policy model_logprobs logp_t logps_tensor actor_logp online_log_likelihoods policy_logp",
        "ref_logp": "refLogProbs logprobs_ref ref_model_logprobs log_pi_ref lp_ref initial_policy_log_probs"
        " sft_logps frozen_model_logp logRef base_model_logps",
        "behavior_logp": "oldLogProbs logp_old log_pi_old log_mu behavior_policy_logps logμ sampler_lps"
        " old_actor_log_probs sglang_logprobs engine_logprobs previousLogProb mu_log_probability",
        "logp_all": "full_logprobs logprobs_all all_logps logp_full log_softmax vocab_log_probs",
        "ref_logp_all": "ref_logp_all ref_full_logprobs teacher_log_softmax",
        "behavior_logp_all": "old_all_logprobs",
        "sequence_logp": "sequence_logprobs seq_logps logp_sum total_logp answer_log_probs",
        "ref_sequence_logp": "ref_seq_logps ref_sequence_logprobs sum_ref_logps",
        "behavior_sequence_logp": "old_sequence_logps",
        "behavior_probs": "old_probabilities",
        "rewards": "A_hat adv advs outcome_rewards",
        "importance_ratio": "importance_weights is_weights rho prob_ratio",
        "prompt_index": "groups group_ids problem_id prompt_idx prompt_id",
        "tokens": "actions action_ids sampled_ids completions response_ids",
        "num_tokens": "normalizer loss_denominator",
        "lengths": "response_length completion_lengths seq_lens",
        "sample_mask": "sample_mask",
        "outputs": "outputs model_output student_outputs",
        "ref_outputs": "ref_output teacher_outputs",
        "batch": "mb minibatch data_proto episodes trajectories sample rollouts",
        "rollout": "rollout",
    },
}
PAIRS = [(f, n, r) for f, roles in NAMES.items() for r, names in roles.items() for n in names.split()]


@pytest.mark.parametrize(("framework", "name", "role"), PAIRS)
def test_names_of_trainers(framework, name, role):
    read = read_name(name)
    assert isinstance(read, Read), read
    assert (read.name, read.role) == (name, role)


def test_there_are_enough_pairs_and_no_two_of_a_framework_are_one():
    assert len({n for _, n, _ in PAIRS}) >= 150
    assert len({(f, n) for f, n, _ in PAIRS}) == len(PAIRS)


@pytest.mark.parametrize("role", [r for r in ROLES if "log_" not in r])
def test_a_role_is_its_own_name(role):
    read = read_name(role)
    assert isinstance(read, Read), read
    assert read.role == role
    assert "vocabulary" not in read.note


REFUSED = {
    # whose, or which of two
    "target_logp": ("logp ref_logp behavior_logp", "target"),
    "sampled_logprobs": ("logp ref_logp behavior_logp", "by whom"),
    "teacher_old_logps": ("logp ref_logp behavior_logp", "two owners"),
    "student_teacher_logps": ("logp ref_logp behavior_logp", "two owners"),
    "logq": ("logp ref_logp behavior_logp", "beside a p"),
    "log_ratio": ("log_ratio log_importance_ratio", "which two"),
    "logr": ("log_ratio log_importance_ratio", "which two"),
    "logprobs_diff": ("log_ratio log_importance_ratio", "which two"),
    "log_ratio_per_token": ("log_ratio log_importance_ratio", "which two"),
    "log_importance_weights": ("log_importance_ratio", "which two"),
    "p": ("probs ref_probs behavior_probs", "one letter"),
    "x": ("", "one letter"),
    # masks that may be the other way round
    "padding_masks": ("completion_mask", "left out"),
    "pad_mask": ("completion_mask", "left out"),
    "prompt_mask": ("completion_mask", "left out"),
    "ignore_mask": ("completion_mask", "left out"),
    # what the audit has no role for
    "policy_chosen_logps": ("logp", "preference pair"),
    "reference_rejected_logps": ("ref_logp", "preference pair"),
    "mean_ref_logps": ("ref_logp", "mean"),
    "token_probs": ("probs ref_probs behavior_probs", "sampled token only"),
    "teacher_attention_mask": ("", "reference"),
    "ref_ratio": ("", "reference"),
    "logits_to_keep": ("", "not words"),
    "process_group": ("", "process"),
    "token_index": ("", "token"),
    "reward_std": ("", "std"),
    "position_ids": ("", "no word"),
    "return_outputs": ("", ""),
    "dataset": ("", "no word"),
    "model": ("", "no word"),
    "": ("", "no word"),
    "lm_head_weight": ("", "no word"),
    # misspelled, or with a word too many: the same quantity, and the same owner
    "student_logprobs_x": ("logp", "x is not a word"),
    "old_lgp": ("behavior_logp", "no word"),
    "refernce_logp": ("ref_logp", "refernce"),
    "xyz_logprobs": ("logp ref_logp behavior_logp", "xyz"),
    "ref_logitz": ("ref_logits", "no word"),
    "ref": ("ref_logp ref_logp_all ref_sequence_logp ref_logits ref_probs ref_outputs", "no word"),
    "student_x": ("logp logp_all sequence_logp logits probs outputs", "no word"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_guessed(name):
    suggestions, why = REFUSED[name]
    unread = read_name(name)
    assert isinstance(unread, Unread), unread
    assert unread.suggestions == tuple(suggestions.split())
    assert why in unread.why


def roles(*names, **mapped):
    reads, unread = read_names(names, mapped)
    return {r.name: r.role for r in reads}, [u.name for u in unread]


def test_the_inputs_of_a_whole_loss():
    names = ["old_log_prob", "log_prob", "advantages", "response_mask", "rollout_is_weights", "config"]
    expected = ["behavior_logp", "logp", "rewards", "completion_mask", "importance_ratio"]
    assert roles(*names) == (dict(zip(names, expected, strict=False)), ["config"])


def test_what_is_said_to_the_reader():
    assert read_name("new_logps") == Read("new_logps", "logp", "log-probs of the current policy")
    assert read_name("ref_logps").said == "log-probs of the reference"
    assert "current policy's" in read_name("logps").note
    assert "whole vocabulary" in read_name("full_logps").note
    assert "not as logits" in read_name("scores").note
    said = [read_name(n).said for n in ("rewards", "advantages", "A_hat", "returns", "scores")]
    assert said == ["rewards", "advantages", "advantages", "returns", "rewards"]


@pytest.mark.parametrize(
    "names",
    [
        ("logprobs", "policy_logprobs"),
        ("teacher_logprobs", "ref_logprobs"),
        ("advantages", "rewards"),
        ("ratio", "rho"),
        ("data", "batch"),
        ("new_logits", "logits"),
    ],
)
def test_two_of_one_role_are_left_open(names):
    assert roles(*names) == ({}, list(names))
    _, unread = read_names(names)
    assert all(other in u.why for u in unread for other in names)
    # one that is mapped elsewhere leaves the other
    if names[0] == "logprobs":
        assert roles(*names, logprobs="behavior_logp")[0] == {
            "logprobs": "behavior_logp",
            "policy_logprobs": "logp",
        }
        assert unread[0].suggestions == ("logp", "ref_logp", "behavior_logp")
        assert unread[1].suggestions == ("logp",)


@pytest.mark.parametrize(
    "names", [("prev_logprobs", "generation_logprobs"), ("old_log_probs", "rollout_log_probs")]
)
def test_several_may_have_sampled(names):
    reads, unread = read_names([*names, "mask", "completion_mask"])
    assert not unread
    assert [r.role for r in reads] == ["behavior_logp"] * 2 + ["completion_mask"] * 2
    assert names[1] in reads[0].note
    assert names[0] in reads[1].note


@pytest.mark.parametrize(("p", "q"), [("logp", "logq"), ("log_p", "log_q"), ("lp", "lq"), ("LOG_P", "LOG_Q")])
def test_p_and_q_together(p, q):
    reads, unread = read_names([q, p])
    assert not unread
    assert {r.name: r.role for r in reads} == {p: "logp", q: "ref_logp"}
    assert all("Schulman" in r.note for r in reads)
    assert roles(q, "policy_logp") == ({"policy_logp": "logp"}, [q])
    assert roles("p", "q") == ({}, ["p", "q"])
    assert roles(p, q, "ref_logp")[1] == [q, "ref_logp"]


def test_a_map_decides():
    assert roles("target_logp", "log_ratio", target_logp="ref_logp", log_ratio="log_ratio") == (
        {"target_logp": "ref_logp", "log_ratio": "log_ratio"},
        [],
    )
    assert roles("x", "y", x="logp", y="logp") == ({"x": "logp", "y": "logp"}, [])
    assert roles("logp", "x", x="logp") == ({"x": "logp"}, ["logp"])


@pytest.mark.parametrize(
    ("mapped", "match"),
    [
        ({"x": "old_logp"}, r"x is mapped to 'old_logp', expected a role: behavior_logp$"),
        ({"x": "refernce_logp"}, r"expected a role: ref_logp"),
        ({"x": "nonsense"}, r"unknown role that x is mapped to: 'nonsense'\. .*Known: "),
        ({"logpp": "logp"}, r"unknown parameter in the map: 'logpp'. Did you mean 'logp'"),
    ],
)
def test_a_wrong_map_is_refused(mapped, match):
    with pytest.raises(ValueError, match=match):
        read_names(["x", "logp"], mapped)


def test_the_refusal_says_what_to_write():
    _, unread = read_names(["student_logprobs_x", "old_lgp", "ref_logp"])
    message = str(refusal("my_loss", unread))
    assert message.startswith("my_loss has")
    assert "--map student_logprobs_x=logp --map old_lgp=behavior_logp" in message
    assert 'map={"student_logprobs_x": "logp", "old_lgp": "behavior_logp"}' in message
    assert [r for r in ROLES if re.search(rf"^  {r}: ", message, re.M)] == ["logp", "behavior_logp"]
    every = str(refusal("my_loss", [read_name("x")]))
    assert "--map x=ROLE" in every
    assert "--map target_logp=ROLE" in str(refusal("my_loss", [read_name("target_logp")]))
    listed = every.partition("All roles:")[2]
    plain = [r.removeprefix("ref_").removeprefix("behavior_") for r in ROLES if r not in HEADS]
    assert all(re.search(rf"\b{r}\b", listed) for r in plain)
    assert all(re.search(rf"\b{r}\b", listed) for r in HEADS if "_at_" in r and "_logp_" in r)
    assert {"ref_topk_logp", "topk_mask"} <= HEADS.keys() & set(re.findall(r"\w+", listed))
    assert max(map(len, every.splitlines())) <= 100
