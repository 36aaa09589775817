"""What to log: numbers whose mean is the divergence, and among those the least noisy.

Of K1, K3 and their mean that one is the least noisy whose lambda (0, 1, 1/2) is nearest to
lambda* = -Cov(k1, w) / Var(w), because the variance is a parabola in lambda with its lowest point there.
While no w = pi_ref/pi exceeds 3.5, lambda* is above 1/2 and K3 less noisy than K1. The mean of the two is
never the noisiest of the three, so it is what to log where lambda* is not known. It is no more than that:
close to the reference it has tens of times the variance of K3, and where the policy has abandoned a token
tens of times that of K1.

For the forward KL, w log w - (w - 1) has the mean of w log w (K5), is never negative, and is less noisy
while no pi/pi_ref exceeds 3.5. Samples of an older policy mu get the ratio pi/mu: of the token for the KL
in the states that were sampled, of all tokens so far for that of whole answers.
"""

from __future__ import annotations

from kl_companion.recommendations.records import Recommendation

_CHAPTER = "chapter-measuring-kl"
_D = "d = ref_logp - logp\n"
_RHO = "rho = (logp - behavior_logp).exp()\n"
_RHO_SO_FAR = "rho = ((logp - behavior_logp) * mask).cumsum(-1).exp()\n"

LOGGED: tuple[Recommendation, ...] = (
    Recommendation(
        "log-exact",
        place="log",
        want="token",
        samples="policy",
        name="the exact KL",
        objective="token_reverse_kl",
        chapter=_CHAPTER,
        arguments='"exact_kl"',
        when="the whole distributions are at hand",
        why="no noise from sampling the token",
    ),
    Recommendation(
        "log-near",
        place="log",
        want="token",
        samples="policy",
        name="K3",
        objective="token_reverse_kl",
        chapter=_CHAPTER,
        lines=_D + "kl = d.expm1() - d",
        arguments='"k3"',
        when="sampled tokens, close to the reference (λ* above ¾)",
        why="unbiased, never negative, and the least noisy there",
    ),
    Recommendation(
        "log-between",
        place="log",
        want="token",
        samples="policy",
        name="K1 + ½ (w − 1), the mean of K1 and K3",
        objective="token_reverse_kl",
        chapter=_CHAPTER,
        lines=_D + "kl = 0.5 * d.expm1() - d",
        arguments='"k_lambda(0.5)"',
        when="sampled tokens, λ* between ¼ and ¾, or not known",
        why="unbiased, and never the noisiest of the three",
    ),
    Recommendation(
        "log-far",
        place="log",
        want="token",
        samples="policy",
        name="K1",
        objective="token_reverse_kl",
        chapter=_CHAPTER,
        lines="kl = logp - ref_logp",
        arguments='"k1"',
        when="sampled tokens, some likely under the reference and almost never sampled (λ* below ¼)",
        why="unbiased; the large w of such a token enters as its logarithm only",
    ),
    Recommendation(
        "log-token-older",
        place="log",
        want="token",
        samples="older",
        name="K3 times the ratio of the token",
        objective="token_reverse_kl",
        chapter="chapter-off-policy",
        lines=_RHO + _D + "kl = rho * (d.expm1() - d)",
        arguments='"k3", importance="token"',
        when="sampled tokens of an older policy; the KL in the states that it visited",
        why="unbiased, never negative",
    ),
    Recommendation(
        "log-token-older-far",
        place="log",
        want="token",
        samples="older",
        name="K1 times the ratio of the token",
        objective="token_reverse_kl",
        chapter="chapter-off-policy",
        lines=_RHO + "kl = rho * (logp - ref_logp)",
        arguments='"k1", importance="token"',
        when="the same, with tokens that are likely under the reference and almost never sampled",
        why="unbiased; the large w of such a token enters as its logarithm only",
    ),
    Recommendation(
        "log-sequence-older",
        place="log",
        want="sequence",
        samples="older",
        name="K3 times the ratio of all tokens so far",
        objective="sequence_reverse_kl",
        chapter="chapter-off-policy",
        lines=_RHO_SO_FAR + _D + "kl = rho * (d.expm1() - d)",
        arguments='"k3", importance="prefix"',
        when="sampled tokens of an older policy; the KL of the policy's whole answers",
        why="unbiased, never negative; its noise grows with the length",
    ),
    Recommendation(
        "log-forward-exact",
        place="log",
        want="forward",
        samples="policy",
        name="the exact forward KL",
        objective="token_forward_kl",
        chapter=_CHAPTER,
        arguments='"exact_forward_kl"',
        when="forward KL, the whole distributions are at hand",
        why="no noise from sampling the token",
    ),
    Recommendation(
        "log-forward",
        place="log",
        want="forward",
        samples="policy",
        name="Kf++ of the forward KL",
        objective="token_forward_kl",
        chapter=_CHAPTER,
        lines=_D + "kl = d * d.exp() - d.expm1()",
        arguments='"kf_plus_plus(forward_kl)"',
        when="forward KL, sampled tokens",
        why="unbiased, never negative; K5 has the same mean and more noise",
    ),
    Recommendation(
        "log-forward-older",
        place="log",
        want="forward",
        samples="older",
        name="Kf++ of the forward KL times the ratio of the token",
        objective="token_forward_kl",
        chapter="chapter-off-policy",
        lines=_RHO + _D + "kl = rho * (d * d.exp() - d.expm1())",
        arguments='"kf_plus_plus(forward_kl)", importance="token"',
        when="forward KL, sampled tokens of an older policy",
        why="unbiased, never negative",
    ),
)
