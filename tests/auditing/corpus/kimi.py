"""In the form of squared sequence losses: Kimi k1.5's mirror descent, VarGrad, pairs of summed log-probs."""

from tests.support.corpus import Hand


def mirror_descent_loss(logps, ref_logps, rewards, tau=0.1):
    advantages = rewards - rewards.mean()
    return ((advantages - tau * (logps - ref_logps)) ** 2).mean()


def vargrad_loss(logprobs, ref_logprobs, rewards, mask, beta=0.1):
    log_ratio = ((logprobs - ref_logprobs) * mask).sum(-1)
    gap = rewards - beta * log_ratio
    return 0.5 * gap.var(unbiased=False)


def squared_sequence_kl(policy_logps, reference_logps):
    return 0.5 * (policy_logps - reference_logps).pow(2).mean()


def sequence_k3(policy_logps, reference_logps):
    log_ratio = reference_logps - policy_logps
    return (log_ratio.exp() - 1 - log_ratio).mean()


def reinforce_of_sums(seq_logps, ref_seq_logps, rewards, lengths, beta=0.1):
    kl = (seq_logps - ref_seq_logps).detach() / lengths
    return -((rewards - beta * kl) * seq_logps).mean()


VERDICTS = {
    "mirror_descent_loss": Hand(
        map={"logps": "sequence_logp", "ref_logps": "ref_sequence_logp"},
        fresh={"expected_reward": -0.2, "sequence_reverse_kl": 0.02},
        stale={
            "behavior_reward": -0.2,
            "behavior_sequence_squared_log_ratio": 0.02,
            "behavior_log_likelihood": None,
        },
        why="-2 tau (r - tau log pi/ref) score, log-probs summed per answer. Stale: E_mu, and the "
        "baseline stays.",
    ),
    "vargrad_loss": Hand(
        fresh={"expected_reward": -0.1, "sequence_reverse_kl": 0.01},
        stale={
            "behavior_reward": -0.1,
            "behavior_sequence_squared_log_ratio": 0.01,
            "behavior_log_likelihood": None,
        },
        why="-beta (gap - its mean) score: the mean is a baseline, which stays where samples are stale.",
    ),
    "squared_sequence_kl": Hand(
        map={"policy_logps": "sequence_logp", "reference_logps": "ref_sequence_logp"},
        fresh={"sequence_reverse_kl": 1.0},
        stale={"behavior_sequence_squared_log_ratio": 1.0},
        why="K2 of sequences differentiated.",
    ),
    "sequence_k3": Hand(
        map={"policy_logps": "sequence_logp", "reference_logps": "ref_sequence_logp"},
        fresh={"sequence_forward_kl": 1.0},
        stale={"behavior_log_likelihood": 1.0, "behavior_sequence_reference_ratio": 1.0},
        why="K3 of sequences differentiated.",
    ),
    "reinforce_of_sums": Hand(
        fresh={"expected_reward": -1.0, "sequence_mean_reverse_kl": 0.1, "expected_inverse_length": -0.1},
        stale=None,
        why="the gradient of E[(log pi/ref) / T] is E[K1/T score] + E[score/T]; the reward leaves the second "
        "out.",
    ),
}
