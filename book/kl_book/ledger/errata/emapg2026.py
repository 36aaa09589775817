"""Corrections of "EMA Policy Gradient" (emapg2026): the body and appendices A to G.

Those of appendices H to K, and of the list of data sets, are in `emapg2026_policies`.
"""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

EMAPG = (
    Erratum(
        title="The gradient of the top-k estimators is biased",
        rows=(
            "EMA-abstract-topk",
            "EMA-tab1-TopkR",
            "EMA-tab1-TopkF",
            "EMA-tab1-TopkF+overall",
            "EMA-eq25-26",
            "EMA-eq27",
            "EMA-alg1",
            "EMA-alg2",
            "EMA-5.3-anyset",
            "EMA-fig2",
            "EMA-G2-unbiased",
        ),
        consequence="result",
        printed=(
            "Abstract, section 5.3 with eqs (25)-(27), the last line of algorithms 1 and 2, the check marks "
            "of both top-k rows of table 1, the caption of figure 2, and G.2: an exact sum over a set $S$ of "
            "tokens, plus K4 (reverse KL) or K5 (forward KL) where the sample falls outside $S$, is unbiased "
            "in value and gradient, for every $k$ and every $S$."
        ),
        why=(
            r"With $\ell = \log(\pi/\pref)$ and the score $s$ the exact sum of the reverse form has the "
            r"gradient $\sum_S \pi(\ell + 1)s$, and the sampled rest the mean of $\pi\ell s$ summed outside "
            "$S$. The 1 averages to zero over the whole vocabulary only, and is in one part and not in the "
            r"other: $\sum_S \pi s = \nabla\pi(S)$ is left over. K5's $\log r$ leaves $-\nabla\pi(S)$ in the "
            r"forward form. So the expected gradient is not zero at $\pi = \pref$. For $k = 0$ and $k = V$ "
            r"it "
            "is right, which hides the bias from a test at both ends."
        ),
        charitable=(
            "The values are unbiased where no weight is clipped. K4 and K5 on their own are right. Appendix "
            "H.3 proves the construction with another sampled rest, and that form is unbiased for every $S$. "
            "Where $S$ holds nearly all of the mass, as with a confident model and $k$ = 32, the bias is "
            "small. The two parts may also have different forms, as long as the constants in their "
            "coefficients of $s$ agree."
        ),
    ),
    Erratum(
        title="Sampled KL and truncated KL can overtake the printed top-k form",
        rows=("EMA-fig4", "EMA-G2-critical"),
        consequence="result",
        printed=(
            "Figure 4, caption, and appendix G.2: in all regimes top-k KL has a lower gradient error than "
            "sampled KL, and for each $K$ there is a critical sample size from which on it beats truncated "
            "KL."
        ),
        why=(
            r"The printed form has a bias, $\nabla\pi(S)$, which no sampling removes, while the error of "
            "sampled KL goes to zero with the number of samples: within the figure's own sweep sampled KL "
            "has the lower error in part of the cells with many samples. Where that bias is larger than that "
            "of the truncated form, no number of samples is enough."
        ),
        charitable=(
            "With few samples the caption holds for the printed form as well. With a summed and a sampled "
            "part that belong together (K3 and K3++) both statements hold in every cell of that grid."
        ),
    ),
    Erratum(
        title="J is averaged over the tokens of an answer, the KL is summed",
        rows=("EMA-appA-norm",),
        consequence="result",
        printed=(
            r"Appendix A, details: $J$ has the factor $1/L$, $\hat{KL}$ is summed over the $L$ tokens of an "
            r"answer, and line 22 of algorithm 3 joins them as $-J + \beta\hat{KL}$, with $\beta$ = 0.001."
        ),
        why=(
            r"The gradient is then $1/L$ times that of $-\E[R] + \beta L\,$KL: the coefficient of eq (1) is "
            "multiplied by the length of the answer."
        ),
        charitable=(
            "Line 16 of algorithm 3 has $J$ as a sum, without $1/L$, and with it the coefficient is right. "
            "So it is where code averages both over the tokens and answers have one length. Which of them "
            "was run cannot be read from the paper; a coefficient that was tuned with either is a good one "
            "for it."
        ),
    ),
    Erratum(
        title="For algorithm 3 the condition of stability is sufficient, not exact",
        rows=("EMA-lem4.2-exact",),
        consequence="derivation",
        printed=(
            "Section 4, summary: the three regimes that eq (9) separates are called the exact conditions of "
            "stability of EMA-PG's training dynamics, under assumption (7)."
        ),
        why=(
            "Eqs (2) to (6) average the old policy into the anchor after every step. Section 1 and line 26 "
            "of "
            r"algorithm 3 take the new policy, after $T$ gradient steps ($T_{ema}$ iterations of $\Lambda$ "
            r"steps). A cycle then multiplies the lag of a mode by $\eta(1 - a)^T$, "
            r"$a = \alpha\beta\lambda$, where eq (8) has $\eta - a$ for a step."
        ),
        charitable=(
            "Lemmas 4.1 and 4.2 are right for the dynamics that they state, which are those of section 4. "
            "For algorithm 3 eq (9) is on the safe side."
        ),
    ),
    Erratum(
        title="A top-k part does not always lower the variance",
        rows=("EMA-5.3-lowervar", "EMA-6-distillation"),
        consequence="derivation",
        printed=(
            "Section 5.3: the top-k estimator has a lower variance than sampled KL. Section 6: like "
            "distillation, it gives a dense signal and a gradient of lower variance."
        ),
        why=(
            "The exact sum takes the noise of its tokens away, and brings in another: whether the sample "
            "falls outside $S$. Where all samples of sampled KL nearly agree, as with two tokens of "
            "probability one half, this costs more than it saves."
        ),
        charitable=(
            "The section speaks of large vocabularies. In the setting of appendix G the gradient is less "
            "noisy for every $K$ and every task. That the signal is dense is right."
        ),
    ),
    Erratum(
        title="The step size stands before one term only",
        rows=("EMA-intro-update",),
        consequence="slip",
        printed=(
            r"Section 1, first display: the update adds $\alpha A\nabla\log\pi$ to $\theta$ and subtracts "
            r"$\beta$ times the gradient of the KL, without $\alpha$."
        ),
        why=(
            r"A step of ascent on $\E[R] - \beta\,$KL has $\alpha$ before both terms. As printed the update "
            r"rests at the optimum of another coefficient, $\beta/\alpha$, so that the step size would "
            r"decide "
            "how strong the anchor is."
        ),
        charitable=(
            r"A misplaced bracket: lines 22 and 23 of algorithm 3 and section 4 have $\alpha$ before both. "
            r"With $\beta$ read as the product of both the display is right."
        ),
    ),
    Erratum(
        title="The estimate of the sequence KL has the other sign",
        rows=("EMA-eq10",),
        consequence="slip",
        printed=r"Section 5.1, eq (10): the estimate of the KL of sequences is $-\log(\pi(y|x)/\pref(y|x))$.",
        why=r"Its mean under $\pi$ is minus the KL, hence negative unless the two policies are equal.",
        charitable=(
            "Eq (11) carries a second minus sign, so that the gradient of eqs (11) and (12), which is what "
            "the section uses, is right. As it is printed, eq (10) is the term to add to a reward."
        ),
    ),
    Erratum(
        title="The sampled rest of the reverse form is subtracted",
        rows=("EMA-appA-sign",),
        consequence="slip",
        printed=(
            "Appendix A, details of Top-k KL: the sampled part of the reverse form is "
            r"$r\,\sg(\log(\pref/\pi))$, added to the exact sum with its weight."
        ),
        why=(
            "This is minus K4. The mean of the form is the exact sum minus the rest of the KL, not plus it."
        ),
        charitable=(
            "Eq (23) and algorithm 1 have the right sign: two letters were exchanged in writing the "
            "expression out."
        ),
    ),
    Erratum(
        title="Rollouts are samples of the policy, not of its logarithm",
        rows=("EMA-appA-ysample",),
        consequence="slip",
        printed=(
            "Appendix A, details of the base algorithm: the rollouts of a prompt are "
            r"$y \sim \log\pi_{old}(\cdot|x)$."
        ),
        why="Log-probabilities are not positive and do not add up to 1: nothing can be sampled from them.",
        charitable="A log too many: line 5 of algorithm 3 samples from the policy.",
    ),
    Erratum(
        title="The mask of a token has an index that is not defined",
        rows=("EMA-appA-mask",),
        consequence="slip",
        printed=(
            "Appendix A, details of the base algorithm: the mask $M_n$ of token $n$ is 0 where the ratio "
            "$s_l$ leaves the bound on the side of the advantage."
        ),
        why=(
            "$l$ is no index of the display. PPO's clipping, of which the mask is said to be an equivalent "
            "form, goes by the ratio of the same token; with the ratio of any fixed token the gradient is "
            "another."
        ),
        charitable=(
            "An $l$ for an $n$. With $s_n$ the mask has the gradient of PPO's objective, as is said beside "
            "it."
        ),
    ),
)
