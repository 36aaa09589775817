"""What to put into the loss or the reward, with samples of an older policy.

Between terms of one gradient the ratio decides: it is detached. Terms that need the ratio in the graph are
right too, until a clip takes the gradient through the ratio away. K2 needs it not: the gradient of a detached
ratio times K2 is the whole gradient, and a clip of the ratio leaves the weight -log w as it is.
"""

from __future__ import annotations

from kl_companion.recommendations.records import AVERAGED, K2, K3, TOTAL, Recommendation, Term

# any f: w f(1/w) as the value, f'(1/w) as the weight of the score; both are expressions in w
ANY_DIVERGENCE = (
    "w, rho = (ref_logp - logp).exp().detach(), (logp - behavior_logp).exp().detach()\n"
    "kl = rho * ({value} + ({weight}) * (logp - logp.detach()))"
)
_RHO = "rho = (logp - behavior_logp).exp().detach()\n"
_RHO_OF_ANSWER = "rho = ((logp - behavior_logp) * mask).sum(-1).exp().detach()\n"
_IN_GRAPH = "rho = (logp - behavior_logp).exp()\n"
_WITH_RATIO = (
    "advantages = advantages - beta * kl\n"
    "rho = (logp - behavior_logp).exp()\n"
    "loss = -(rho * advantages * mask).sum(-1).mean()"
)

OFF_POLICY: tuple[Recommendation, ...] = (
    Recommendation(
        "loss-token-older",
        place="loss",
        want="token",
        samples="older",
        name="K2 times the detached ratio",
        objective="token_reverse_kl",
        chapter="chapter-off-policy",
        lines=_RHO + "kl = rho * 0.5 * (logp - ref_logp) ** 2",
        arguments='"k2", importance="token"',
        with_logits="exact_kl",
        alternatives=(
            Term(
                "K3++ times the detached ratio",
                "token_reverse_kl",
                arguments='"k3_plus_plus", importance="token"',
                note="its value can be logged as well",
            ),
            Term(
                "the top-k form of Bregman with the detached ratio on what is sampled",
                "token_reverse_kl",
                arguments='"top_k_reverse_kl(2)", importance="token"',
                note="exact on the k likeliest tokens",
            ),
            Term(
                "K3 with its ratio in the graph",
                "token_reverse_kl",
                arguments='"k3", importance="token", ratio="attached"',
                note="wrong as soon as the ratio is clipped",
            ),
        ),
        pitfalls=(
            Term(
                "K2 without the ratio",
                "behavior_squared_log_ratio",
                lines=K2,
                arguments='"k2", importance=None',
            ),
            Term(
                "with the ratio in the graph",
                "token_squared_log_ratio",
                lines=_IN_GRAPH + "kl = rho * 0.5 * (logp - ref_logp) ** 2",
                arguments='"k2", importance="token", ratio="attached"',
            ),
            Term(
                "K4 with the ratio in the graph",
                "2 token_reverse_kl",
                arguments='"k4", importance="token", ratio="attached"',
            ),
        ),
        why="a clip of the detached ratio keeps the weight -log w of every sample",
    ),
    Recommendation(
        "loss-sequence-older",
        place="loss",
        want="sequence",
        samples="older",
        name="K2 of the whole answer times its detached ratio",
        objective="sequence_reverse_kl",
        chapter="chapter-off-policy",
        lines=_RHO_OF_ANSWER + TOTAL + "kl = rho * 0.5 * total**2",
        use=AVERAGED,
        arguments='"k2", level="sequence", importance="sequence"',
        alternatives=(
            Term(
                "K3 with the ratio of all tokens so far in the graph",
                "sequence_reverse_kl",
                arguments='"k3", importance="prefix", ratio="attached"',
                note="less noise; wrong as soon as the ratio is clipped",
            ),
        ),
        pitfalls=(
            Term(
                "without the ratio",
                "behavior_sequence_squared_log_ratio",
                lines=TOTAL + "kl = 0.5 * total**2",
                arguments='"k2", level="sequence", importance=None',
            ),
        ),
        why="a clip of the detached ratio keeps the weight -log w of every answer",
    ),
    Recommendation(
        "loss-forward-older",
        place="loss",
        want="forward",
        samples="older",
        name="K3 times the detached ratio",
        objective="token_forward_kl",
        chapter="chapter-off-policy",
        lines=_RHO + "d = ref_logp - logp\nkl = rho * (d.expm1() - d)",
        arguments='"k3", importance="token"',
        with_logits="exact_forward_kl",
        alternatives=(
            Term(
                "Kf++ of the forward KL times the detached ratio",
                "token_forward_kl",
                arguments='"kf_plus_plus(forward_kl)", importance="token"',
                note="its value can be logged as well",
            ),
        ),
        pitfalls=(
            Term(
                "with the ratio in the graph",
                "token_reverse_kl",
                lines=_IN_GRAPH + "d = ref_logp - logp\nkl = rho * (d.exp() - 1 - d)",
                arguments='"k3", importance="token", ratio="attached"',
            ),
            Term(
                "without it",
                "behavior_log_likelihood + behavior_reference_ratio",
                lines=K3,
                arguments='"k3", importance=None',
            ),
        ),
        why="a clip of the detached ratio keeps the weight 1 - w of every sample",
    ),
    Recommendation(
        "reward-token-older",
        place="reward",
        want="token",
        samples="older",
        name="K1 of the policy, charged to its own token",
        objective="token_reverse_kl",
        chapter="chapter-off-policy",
        lines="kl = (logp - ref_logp).detach()",
        use=_WITH_RATIO,
        pitfalls=(
            Term(
                "K1 of the sampler",
                "other",
                lines="kl = (behavior_logp - ref_logp).detach()",
                use="advantages = advantages - beta * kl",
            ),
        ),
        why="the penalty is that of the policy which is trained, at every step",
    ),
    Recommendation(
        "reward-sequence-older",
        place="reward",
        want="sequence",
        samples="older",
        name="K1, summed over the answer, with the answer's ratio",
        objective="sequence_reverse_kl",
        chapter="chapter-off-policy",
        lines="kl = ((logp - ref_logp) * mask).sum(-1).detach()",
        use="rho = ((logp - behavior_logp) * mask).sum(-1).exp()\n"
        "loss = -(rho * (advantages[:, 0] - beta * kl)).mean()",
        pitfalls=(
            Term(
                "the sum with ratios of single tokens",
                "other",
                lines="kl = ((logp - ref_logp) * mask).sum(-1, keepdim=True).detach()",
                use="advantages = advantages - beta * kl",
            ),
        ),
        why="only the ratio of the whole answer makes old answers those of the policy",
    ),
    Recommendation(
        "reward-forward-older",
        place="reward",
        want="forward",
        samples="older",
        name="1 − w with the reference ratio w, charged to its own token",
        objective="token_forward_kl",
        chapter="chapter-weights",
        lines="kl = 1 - (ref_logp - logp).exp().detach()",
        use=_WITH_RATIO,
        why="minus w has the same expected gradient, and noise where the policies agree",
    ),
    Recommendation(
        "loss-any-older",
        place="loss",
        want="more",
        samples="older",
        name="Kf++ times the detached ratio",
        objective="token_jensen_shannon",
        chapter="chapter-f-divergences",
        arguments='"kf_plus_plus(jensen_shannon)", importance="token"',
        when="another divergence $f$ of every token",
    ),
    Recommendation(
        "loss-sequence-forward-older",
        place="loss",
        want="more",
        samples="older",
        name="K3 of the whole answer times its detached ratio",
        objective="sequence_forward_kl",
        chapter="chapter-off-policy",
        lines=_RHO_OF_ANSWER + "d = ((ref_logp - logp) * mask).sum(-1)\nkl = rho * (d.expm1() - d)",
        arguments='"k3", level="sequence", importance="sequence"',
        use=AVERAGED,
        when="forward KL of whole answers",
    ),
    Recommendation(
        "loss-own-states-older",
        place="loss",
        want="more",
        samples="older",
        name="K2 times the detached ratio of all tokens so far",
        objective="policy_token_reverse_kl",
        chapter="chapter-off-policy",
        arguments='"k2", importance="prefix"',
        when="reverse KL of every token, in the policy's own states",
    ),
)
