"""What to put into the loss or the reward, with samples of the policy itself.

Between terms of one gradient the weight decides: it should be zero where policy and reference agree,
because a constant is nothing but noise there.
"""

from __future__ import annotations

from kl_companion.recommendations.records import (
    AVERAGED,
    CHARGED_K3,
    K1,
    K2,
    K3,
    SUMMED,
    TOTAL,
    Recommendation,
    Term,
)

ON_POLICY: tuple[Recommendation, ...] = (
    Recommendation(
        "loss-token-policy",
        place="loss",
        want="token",
        samples="policy",
        name="K2",
        objective="token_reverse_kl",
        chapter="chapter-two-parts-of-a-gradient",
        lines=K2,
        arguments='"k2"',
        with_logits="exact_kl",
        alternatives=(
            Term(
                "K3++",
                "token_reverse_kl",
                arguments='"k3_plus_plus"',
                note="its value can be logged as well (it is that of K3)",
            ),
            Term(
                "K4",
                "token_reverse_kl",
                arguments='"k4"',
                note="its value can be logged as well (it is that of K1)",
            ),
            Term(
                "the top-k form of Bregman",
                "token_reverse_kl",
                arguments='"top_k_reverse_kl(2)"',
                note="exact on the k likeliest tokens",
            ),
        ),
        pitfalls=(
            Term("K1", "zero", lines=K1, arguments='"k1"'),
            Term("K3", "token_forward_kl", lines=K3, arguments='"k3"'),
            Term(
                "the published top-k form",
                "token_reverse_kl + token_top_1_mass",
                arguments='"top_k_reverse_kl(1, published)"',
            ),
        ),
        why="the weight of a sample is -log w, which is zero where the policies agree",
    ),
    Recommendation(
        "loss-sequence-policy",
        place="loss",
        want="sequence",
        samples="policy",
        name="K2 of the whole answer",
        objective="sequence_reverse_kl",
        chapter="chapter-token-or-sequence",
        lines=TOTAL + "kl = 0.5 * total**2",
        use=AVERAGED,
        arguments='"k2", level="sequence"',
        alternatives=(
            Term(
                "K1 charged to the tokens before it",
                "sequence_reverse_kl",
                arguments='"k1", credit=1.0',
                note="less noise in long answers",
            ),
        ),
        pitfalls=(
            Term(
                "a sum of K2 over tokens",
                "token_reverse_kl",
                lines=K2,
                use=SUMMED,
            ),
        ),
        why="sample by sample it has the gradient of K1, summed and subtracted from the reward",
    ),
    Recommendation(
        "loss-forward-policy",
        place="loss",
        want="forward",
        samples="policy",
        name="K3",
        objective="token_forward_kl",
        chapter="chapter-two-parts-of-a-gradient",
        lines="d = ref_logp - logp\nkl = d.expm1() - d",
        arguments='"k3"',
        with_logits="exact_forward_kl",
        alternatives=(
            Term(
                "Kf++ of the forward KL",
                "token_forward_kl",
                arguments='"kf_plus_plus(forward_kl)"',
                note="its value can be logged as well",
            ),
            Term(
                "K5",
                "token_forward_kl",
                arguments='"k5"',
                note="its value can be logged as well, but is noisier",
            ),
        ),
        pitfalls=(
            Term(
                "K3 with a detached exponential",
                "zero",
                lines="d = ref_logp - logp\nkl = d.exp().detach() - 1 - d",
            ),
            Term(
                "the published top-k form",
                "token_forward_kl - token_reference_top_1_mass",
                arguments='"top_k_forward_kl(1, published)"',
            ),
        ),
        why="the weight of a sample is 1 - w, which is zero where the policies agree",
    ),
    Recommendation(
        "reward-token-policy",
        place="reward",
        want="token",
        samples="policy",
        name="K1, charged to its own token",
        objective="token_reverse_kl",
        chapter="chapter-loss-or-reward",
        lines="kl = (logp - ref_logp).detach()",
        arguments='"k1", level="token", credit=0.0',
        pitfalls=(CHARGED_K3,),
        why="the value is what counts in the reward, and K1 has the value -log w",
    ),
    Recommendation(
        "reward-sequence-policy",
        place="reward",
        want="sequence",
        samples="policy",
        name="K1, summed over the answer",
        objective="sequence_reverse_kl",
        chapter="chapter-loss-or-reward",
        lines="kl = ((logp - ref_logp) * mask).sum(-1, keepdim=True).detach()",
        arguments='"k1"',
        alternatives=(Term("K4", "sequence_reverse_kl", arguments='"k4"', note="it has the value of K1"),),
        pitfalls=(
            Term(
                "K3, summed",
                "sequence_reverse_kl - token_forward_kl",
                lines="d = ref_logp - logp\nkl = ((d.exp() - 1 - d) * mask).sum(-1, keepdim=True).detach()",
                arguments='"k3"',
            ),
        ),
        why="summed over an answer K1 is the log-ratio of the answer",
    ),
    Recommendation(
        "reward-forward-policy",
        place="reward",
        want="forward",
        samples="policy",
        name="1 − w with the reference ratio w, charged to its own token",
        objective="token_forward_kl",
        chapter="chapter-weights",
        lines="kl = 1 - (ref_logp - logp).exp().detach()",
        pitfalls=(CHARGED_K3,),
        why="minus w has the same expected gradient, and noise where the policies agree",
    ),
    Recommendation(
        "loss-any-policy",
        place="loss",
        want="more",
        samples="policy",
        name="Kf++",
        objective="token_jensen_shannon",
        chapter="chapter-f-divergences",
        arguments='"kf_plus_plus(jensen_shannon)"',
        when="another divergence $f$ of every token",
    ),
)

# a mean over each answer, whatever was wanted; on-policy, where answers end by themselves
LENGTHS: tuple[Term, ...] = (
    Term("K1", "expected_inverse_length", arguments='"k1", how="sequence_mean"'),
    Term("K2", "sampled_mean_squared_log_ratio", arguments='"k2", how="sequence_mean"'),
    Term(
        "K3",
        "expected_inverse_length + sampled_mean_reference_ratio",
        arguments='"k3", how="sequence_mean"',
    ),
)
