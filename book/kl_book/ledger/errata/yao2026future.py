"""Corrections of "Future-KL Regularized GRPO" (yao2026future)."""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

FRPO = (
    Erratum(
        title="After the advantages is not the only place for the KL",
        rows=("FRPO-C4.2-only", "FRPO-4.2-merge"),
        consequence="result",
        printed=(
            "Section 4.2, corollary 4.2 and the sentence after it: to add the regularizer after the "
            "advantages is the only placement that is consistent with both signals, and the two cannot be "
            "merged into one reward without distorting one of them."
        ),
        why=(
            r"Half the square of an answer's summed log-ratio, differentiated in the loss, has the gradient "
            r"of the sequence KL as well. And $r - \beta \sqrt{p(1-p)} D$, standardized, has the direction "
            "of the decoupled update: reward and KL keep their proportion, times one factor per prompt."
        ),
        charitable=(
            r"With one constant $\beta$ for all prompts, and if the loss may only differentiate single "
            "tokens, the placement after the advantages is the one that is left."
        ),
    ),
    Erratum(
        title="The proposition does not predict a collapse",
        rows=("FRPO-5.1-explains",),
        consequence="result",
        printed=(
            "Section 5.1 (and 3.2): proposition 3.2 explains, and predicts, the collapse of the runs with "
            "the KL in the reward."
        ),
        why=(
            r"In the limit of large groups, of which the proposition speaks, that update is the gradient of "
            r"$\E[r] - \beta\,\mathrm{KL}$ divided by a positive number: each small step raises this "
            "objective, at every policy but the best one."
        ),
        charitable=(
            "The update does differ from that of the source's objective. In finite groups with equal rewards "
            "the standardized advantage consists of log-ratios alone, of unit size for every coefficient; "
            "runs with groups of 5 may have met that."
        ),
    ),
    Erratum(
        title="The printed loss divides by the length of an answer, the proposition does not",
        rows=("FRPO-P3.1-objective",),
        consequence="result",
        printed=(
            "Section 3.2, proposition 3.1, for the loss of eq (3.1): the population gradient of GRPO with "
            r"rewards 0 and 1 is that of $2 \arcsin \sqrt p$."
        ),
        why=(
            r"Eq (3.1) has $1/|o_i|$ before the sum over the tokens of an answer. Where lengths differ the "
            "expected update then has another direction. The proof uses the score of the whole answer."
        ),
        charitable="It is right for the sum over tokens, and for answers of one length.",
    ),
    Erratum(
        title="An importance weight that is differentiated does create the later term",
        rows=("FRPO-4.3-iw",),
        consequence="result",
        printed=(
            "Section 4.3: importance weighting corrects the sampling distribution and does not create the "
            "missing future term."
        ),
        why=(
            r"The derivative of the ratio of a whole answer is that ratio times the score of all its tokens. "
            r"The loss $\rho \sum_t k_3$ with such a ratio has the whole gradient of the sequence KL, on- "
            "and off-policy."
        ),
        charitable=(
            "It is right for a ratio that carries no gradient. A ratio of single tokens, as PPO has it, adds "
            "no later term either, and does not correct the prefixes."
        ),
    ),
    Erratum(
        title="Log-ratios of the rollout get no off-policy correction",
        rows=("FRPO-4.3-rho",),
        consequence="result",
        printed=(
            r"Section 4.3, with appendix E: inside the advantage the KL is multiplied by $\rho$, which gives "
            "it the same first-order off-policy correction as the reward; its log-ratios may be those of the "
            "rollout."
        ),
        why=(
            r"A reward does not depend on the policy, a log-ratio does. With log-ratios of the rollout the "
            r"update lacks $\beta$ times the gradient of $\KL{\pi}{\pi_{old}}$, which is of first order in "
            "the distance from the sampler."
        ),
        charitable="It is right if the log-ratios are recomputed under the current policy at every step.",
    ),
    Erratum(
        title="Fresh log-probabilities do not mend old samples",
        rows=("FRPO-4.3-value-off",),
        consequence="result",
        printed=(
            "Section 4.3: with older samples the value of proposition 3.3 is no longer on-policy unless "
            "importance weighting or fresh log-probabilities are used."
        ),
        why=(
            r"Log-probabilities of the current policy on tokens of an older one still average over the older "
            "one's choices. Importance weights correct that, fresh log-probabilities do not."
        ),
        charitable="It is right if fresh means that new tokens are sampled with their log-probabilities.",
    ),
    Erratum(
        title="The number of tokens left in the sampled answer is no baseline",
        rows=("FRPO-6.2.2-baseline",),
        consequence="result",
        printed=(
            r"Section 6.2.2: $(T - i) D$, with the tokens that are left in this answer, is the baseline of "
            "the future $k_3$."
        ),
        why=(
            "By the source's theorem 4.1 a baseline must not depend on the current action. Whether the "
            "answer goes on is decided by the current and the later tokens, so that this baseline pays for "
            "length."
        ),
        charitable=(
            "It is right for answers of one length, and with the expected number of tokens left in its "
            "place. The source calls it naive and coarse."
        ),
    ),
    Erratum(
        title="Standardized with the KL inside, rewards are divided by another deviation",
        rows=("FRPO-P3.2-objective", "FRPO-4.1-rescaled", "FRPO-D1-sketch", "FRPO-D1-misweight"),
        consequence="derivation",
        printed=(
            "Section 3.2, proposition 3.2: the update follows a prompt-level objective. Section 4.1 and "
            r"appendix D.1: what is put into the reward is scaled, by exactly $\ell'(p) = 1/\sqrt{p(1-p)}$."
        ),
        why=(
            r"The scale is one over the deviation of $r - \beta D$, as appendix D.1 says a line before. This "
            "number changes with the policy in directions other than that of the update, whose derivatives "
            "are therefore not symmetric: no function has it as its gradient."
        ),
        charitable=(
            r"At $\beta = 0$ the two deviations are one. The direction is that of $\E[r] - \beta\, "
            r"\mathrm{KL}$, which may be called its objective."
        ),
    ),
    Erratum(
        title="Whether the utility is affine decides nothing",
        rows=("FRPO-C1-linear", "FRPO-P3.2-affine"),
        consequence="derivation",
        printed=(
            "Section 3.2, proposition 3.2, and contribution 1: the update with the KL in the reward reduces "
            r"to that of $\ell(\E[r]) - \beta \E[\mathrm{KL}]$ only when $\ell$ is affine."
        ),
        why=(
            "With two answers of which one is right, the KL is a function of the pass rate, and the update "
            r"is the gradient of such an objective for a bent $\ell$. With more answers it is not, for an "
            r"affine $\ell$ either, unless the deviation of the shaped reward is 1."
        ),
        charitable=(
            r"Meant is that $\ell$ must be what normalization makes of the reward. Without normalization "
            r"$\ell(p) = p$, and the update is right."
        ),
    ),
    Erratum(
        title="The discrepancy of the two updates can vanish",
        rows=("FRPO-P3.2-nonvanishing",),
        consequence="derivation",
        printed=(
            "Section 3.2, proposition 3.2: under the arcsine utility the discrepancy is non-vanishing "
            "whenever the KL varies within the group."
        ),
        why=(
            r"With two answers it is 0 where $\beta$ times the difference of their log-ratios is 2 divided "
            "by the deviation of the rewards."
        ),
        charitable=(
            "It is right wherever the gradients of the pass rate and of the KL are not parallel, which is "
            "the rule with more than two answers."
        ),
    ),
    Erratum(
        title="What a local penalty lacks begins with the token itself",
        rows=("FRPO-4.1-future", "FRPO-4.1-bandit"),
        consequence="derivation",
        printed=(
            r"Section 4.1: the sum over $j \ge i$ is the gradient through the distribution of future states, "
            "and in bandit problems the two terms collapse."
        ),
        why=(
            r"The effect on later prefixes is the sum over $j > i$. The term $f(u_i)$ belongs to the choice "
            "of the token itself; it is there in a bandit too, where the derivative of the sampled penalty "
            "alone is not the gradient."
        ),
        charitable=(
            r"What a local penalty misses is the sum over $j \ge i$, as printed. Section 4.3 says $j > i$ "
            "where it speaks of later trajectories."
        ),
    ),
    Erratum(
        title="A penalty of one sign does not push the policy one way",
        rows=("FRPO-6.2.2-samedirection",),
        consequence="derivation",
        printed=(
            "Section 6.2.2: as $k_3$ is never negative, the future KL term is always a penalty and pushes "
            "the policy towards the same direction."
        ),
        why=(
            "What all tokens at a prefix pay alike has mean zero against the score. The later $k_3$ and the "
            "later $k_1$ have the same expected update."
        ),
        charitable=(
            "The weight of a single sample is never raised by it, and its noise is another one. The variant "
            "of appendix E, which also replaces the token's own log-ratio, has another expected update."
        ),
    ),
)
