"""In the form of squared sequence losses: Kimi k1.5's mirror descent, VarGrad, pairs of summed log-probs."""


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
