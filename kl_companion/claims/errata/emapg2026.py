"""Corrections of "EMA Policy Gradient" (emapg2026): the body and appendices A to G.

Those of appendices H to K, and of the list of data sets, are in `emapg2026_policies`.
"""

from __future__ import annotations

from kl_companion.claims.errata.erratum import Erratum

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
        consequence="slip",
        printed=(
            "Abstract, section 5.3 with eqs (25)-(27), the last line of algorithms 1 and 2, table 1 with "
            "the check marks of both top-k rows, the caption of figure 2, and G.2: an exact head on a set "
            "S of tokens, plus K4 (reverse KL) or K5 (forward KL) where the sample falls outside S, is "
            "unbiased in value and gradient, for every k and every S."
        ),
        why=(
            r"With l = log(\pi/\pi_ref) and the score s, the reverse head has the gradient \sum_S \pi (l + "
            r"1) s, and the K4 tail the mean of \pi l s summed outside S: together the KL's gradient plus "
            r"\sum_S \pi s = \nabla \pi(S). K5's log r adds the gradient of 1 - \pi(S), so the forward "
            r"form is off by -\nabla \pi(S). Both are zero for the empty set and the whole vocabulary "
            r"alone. Where the clip of \pi/\mu in the algorithms binds, it can bias the value too."
        ),
        charitable=(
            "The values are unbiased where no weight is clipped. K4 and K5 on their own are right, and so "
            "are k = 0 and k = V, where the slip cannot show. Appendix H.3 proves the construction with "
            "another tail, and that form is unbiased for every S. With a head that holds nearly all of "
            "the mass the bias is small; close to the anchor it is large next to the gradient of the KL."
        ),
    ),
    Erratum(
        title="The step size stands before one term only",
        rows=("EMA-intro-update",),
        consequence="slip",
        printed=(
            r"Section 1, first display: the update adds \alpha A \nabla log \pi to \theta and subtracts "
            r"\beta times the gradient of the KL, without \alpha."
        ),
        why=(
            r"A step of ascent on E[R] - \beta KL has \alpha before both terms. As printed the update "
            r"rests at the optimum of another coefficient, \beta/\alpha, so that the step size would "
            "decide how strong the anchor is."
        ),
        charitable=(
            r"A misplaced bracket: lines 22 and 23 of algorithm 3 and section 4 have \alpha before both. "
            r"With \beta read as the product of both the display is right."
        ),
    ),
    Erratum(
        title="The estimate of the sequence KL has the other sign",
        rows=("EMA-eq10",),
        consequence="slip",
        printed=r"Section 5.1, eq (10): the estimate of the KL of sequences is -log(\pi(y|x)/\pi_ref(y|x)).",
        why=r"Its mean under \pi is minus the KL, hence negative unless the two policies are equal.",
        charitable=(
            "Eq (11) carries a second minus sign, so that the gradient of eqs (11) and (12), which is "
            "what the section uses, is right."
        ),
    ),
    Erratum(
        title="Sampled KL overtakes the printed top-k form",
        rows=("EMA-fig4",),
        consequence="slip",
        printed=(
            "Figure 4, caption: in all regimes top-k KL has a lower gradient error than sampled KL; "
            "truncated KL is beaten beyond a critical sample size only."
        ),
        why=(
            r"The printed form has a bias, the gradient of \pi(S), which no sampling removes, while the "
            "error of sampled KL goes to zero with the number of samples: within the figure's own sweep "
            "sampled KL has the lower error in part of the cells with many samples."
        ),
        charitable=(
            "With few samples the caption holds for the printed form as well: in our run of the figure's "
            "grid only large samples decide against it. With head and tail from one normalized f it holds "
            "in every cell of that grid."
        ),
    ),
    Erratum(
        title="One answer per prompt has no advantage",
        rows=("EMA-alg3+group",),
        consequence="slip",
        printed=(
            "Appendix A, algorithm 3, lines 5 and 12: one answer is sampled per prompt, and the advantage of "
            "the details below is its reward less the mean reward of the prompt's answers."
        ),
        why=(
            r"With one answer V is its own reward: A is 0, std(x) is 0/0, and nothing but the KL moves "
            r"\theta."
        ),
        charitable=(
            "The algorithm is an outline: line 12 leaves open how A is computed, and the details sample N "
            "answers per prompt, with which the loop is right. So it is with a single answer and a V that "
            "does not hold its reward, such as a critic's."
        ),
    ),
    Erratum(
        title="The tail of the reverse form is subtracted",
        rows=("EMA-appA-sign",),
        consequence="slip",
        printed=(
            "Appendix A, details of Top-k KL: the sampled part of the reverse form is r "
            r"sg(log(\pi_ref/\pi)), added to the head with its weight."
        ),
        why=(
            "This is minus K4. The mean of the form is the head minus the rest of the KL instead of their "
            "sum."
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
            "Appendix A, details of the base algorithm: the rollouts of a prompt are y ~ log "
            r"\pi_old(.|x)."
        ),
        why="Log-probabilities are not positive and do not add up to 1: nothing can be sampled from them.",
        charitable="A log too many: line 5 of algorithm 3 samples from the policy.",
    ),
    Erratum(
        title="The mask of a token has an index that is not defined",
        rows=("EMA-appA-mask",),
        consequence="slip",
        printed=(
            "Appendix A, details of the base algorithm: the mask M_n of token n is 0 where the ratio s_l "
            "leaves the bound on the side of the advantage."
        ),
        why=(
            "l is no index of the display. PPO's clipping, of which the mask is said to be an equivalent "
            "form, goes by the ratio of the same token; with the ratio of any fixed token the gradient is "
            "another."
        ),
        charitable=(
            "An l for an n. With s_n the mask has the gradient of PPO's objective, as is said beside it."
        ),
    ),
)
