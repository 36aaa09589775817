"""Corrections of "On the Design of KL-Regularized Policy Gradient Algorithms" (zhang2025design)."""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

RPG: tuple[Erratum, ...] = (
    Erratum(
        title="The discount factor of each step is missing",
        rows=("RPG-2-reinforce",),
        consequence="derivation",
        printed=(
            r"Section 2: for $J = \E[\sum_t \gamma^t r_t]$ the gradient is the mean of the sum of $G_t "
            r"\nabla \log \pi_\theta(a_t|s_t)$, with $G_t = \sum_{k \ge t} \gamma^{k-t} r_k$."
        ),
        why=(
            r"$G_t$ is discounted from step $t$ on, and $J$ from the first step on. The term of step $t$ "
            r"needs the factor $\gamma^t$."
        ),
        charitable=(
            r"With $\gamma = 1$, as in runs with language models, nothing is missing. Many implementations "
            "for other tasks leave the factor out on purpose; they then follow no gradient of $J$."
        ),
    ),
    Erratum(
        title="A policy cannot match a total mass",
        rows=("RPG-rem3.3-mass",),
        consequence="derivation",
        printed=(
            r"Section 3.1, remark 3.3: the term $-\beta(w - 1)$ guides $\pi_\theta$ to match not only the "
            r"shape of $\pi_{old}$ but also its overall mass $Z_{old}$."
        ),
        why=(
            r"$\pi_\theta$ is a policy, over which section 3 averages, and has mass 1 at every $\theta$. The "
            r"part $-\beta w$ has mean zero against the score, and the rest pulls towards the shape with the "
            r"strength $\beta Z_{old}$."
        ),
        charitable=r"It is right if $\pi_\theta$ is a density whose total mass is free.",
    ),
    Erratum(
        title="Zero-forcing is the name of the other direction",
        rows=("RPG-2.1-zero-forcing",),
        consequence="slip",
        printed=(
            r"Section 2.1, twice: $\KL{\pref}{\pi_\theta}$, which makes the policy cover the support of the "
            "reference, is called zero-forcing."
        ),
        why=(
            r"$\KL{\pref}{\pi_\theta}$ grows without bound where the policy is 0 and the reference is not: "
            r"it avoids zeros. $\KL{\pi_\theta}{\pref}$ does so where the reference is 0 and the policy is "
            "not, and forces the policy to 0 there."
        ),
        charitable="The behavior beside the name is the right one: the policy covers the support.",
    ),
    Erratum(
        title="A loss that differentiates its advantage has no forward KL",
        rows=("RPG-3.3-matches", "RPG-alg1"),
        consequence="result",
        printed=(
            "Section 3.3 and algorithm 1: the advantage $A$ of each of the four divergences, put into $-wA$ "
            "and its clip, matches the gradients of section 3; the gradient flows through $w$ and $A$."
        ),
        why=(
            r"For a forward KL $-wA$ contains the KL as $\beta(w - 1)$ (UFKL) or $-\beta$ (FKL). The "
            r"derivative of $w$ has mean 0 over the old policy, so that the expected update is that of the "
            "reward alone."
        ),
        charitable=(
            "It is right for URKL and RKL while no ratio is clipped, and for all four with $A$ held fixed, "
            "as appendix G.2 has it."
        ),
    ),
    Erratum(
        title="A clip does not keep the direction of the gradient",
        rows=("RPG-4.1-direction",),
        consequence="result",
        printed=(
            "Sections 1 and 4.1: RPG-Style Clip preserves the RPG gradients, and the correct gradient "
            "direction derived from the KL-regularized objective."
        ),
        why=(
            "Clipped samples count with another weight or not at all, the others as before: the expected "
            "update has another direction."
        ),
        charitable=(
            "Each sample keeps the sign of its contribution, and nothing changes while no ratio is clipped. "
            "Section 6 calls the clip a trade of bias for variance, appendix G.1 another objective."
        ),
    ),
    Erratum(
        title="RPG-Style Clip is the name of three estimators",
        rows=("RPG-4.1-alg2", "RPG-remF.2-clip"),
        consequence="result",
        printed=(
            "Section 4.1 with appendix G.2, and remark F.2: the clipped weight of eq (4.1), the dual-clip "
            "loss of algorithm 2, and the weight with a clipped ratio in the place of $w$ are one clip."
        ),
        why=(
            "A clipped sample keeps a slope in eq (4.1), with the clipped ratio as its weight, and has none "
            "in algorithm 2. In remark F.2 the ratio is clipped on both sides for both signs of $A$, in the "
            "KL as well, and $c$ does not occur."
        ),
        charitable="The three agree for every sample whose ratio lies inside the bounds.",
    ),
    Erratum(
        title="RPG-REINFORCE does not lead in every setting",
        rows=("RPG-5-across",),
        consequence="result",
        printed=(
            "Section 5: across settings, the RPG-REINFORCE variants with RPG-Style Clip have the strongest "
            "results."
        ),
        why=(
            "In half of the columns of Tables 3, 5 and 6 the differentiated variants are ahead of them, on "
            "AIME24 at 8K and AMC23 among others; in Table 7 other methods are."
        ),
        charitable="Some RPG variant leads every column of these three tables, from one run each.",
    ),
    Erratum(
        title="A last accuracy is larger than the best one",
        rows=("RPG-tab3",),
        consequence="result",
        printed="Table 3, RPG-URKL on AIME25: last 0.5261, best 0.4938.",
        why="The best accuracy of a run is not below its last one.",
        charitable="One of the two numbers is a slip; the source does not say which.",
    ),
    Erratum(
        title="The mean of the whole batch is no baseline",
        rows=("RPG-alg1-baseline",),
        consequence="derivation",
        printed=r"Appendix G, line 6 of both algorithms: the baseline is $\frac{1}{N} \sum_j R_j$.",
        why=(
            "The own reward of the sample is part of the mean. A baseline must not depend on the sample (the "
            r"source's appendix C.1): this one takes away $1/N$ of the reward's gradient, and nothing of the "
            "KL's."
        ),
        charitable="It is right for large batches, and with the mean of the other samples.",
    ),
    Erratum(
        title="Subtracting the mean reward can raise the variance",
        rows=("RPG-G1-baseline",),
        consequence="derivation",
        printed=(
            "Appendix G.1: $A = R - b$, for example with the mean reward of the batch, reduces the variance "
            "of the gradient estimates."
        ),
        why=(
            r"The variance falls exactly if $b$ lies between 0 and twice the best constant, $\E[w^2|s|^2 R] "
            r"/ \E[w^2|s|^2]$ with the score $s$. Where the likely answers have the large rewards, the mean "
            "reward is larger."
        ),
        charitable="It often does, and always with the best constant.",
    ),
    Erratum(
        title="The dual clip has no lower bound for positive advantages",
        rows=("RPG-3.3-range", "RPG-4.1-C"),
        consequence="slip",
        printed=(
            r"Sections 3.3 and 4.1: $w$ is clipped into $[1 - \epsilon_1, 1 + \epsilon_2]$, for positive "
            "advantages by the second, with a lower bound $c$ for negative ones."
        ),
        why=(
            r"By the printed formula a positive $A$ is multiplied by $\min(w, 1 + \epsilon_2)$ and a "
            r"negative one by $w$ clipped to $[1 - \epsilon_1, c]$: $c$ bounds the ratio from above."
        ),
        charitable=(
            r"The formula is the right one, and clip$(w, 1 - \epsilon_1, 1 + \epsilon_2)$ is one of its "
            "parts; $cA$ is a lower bound of the objective."
        ),
    ),
    Erratum(
        title="The stop-gradient of eq (4.1) leaves out the ratio",
        rows=("RPG-eq4.1",),
        consequence="slip",
        printed=r"Section 4.1, eq (4.1): the loss is $-\E[C(w, \mathrm{SG}(A)) \log \pi_\theta]$.",
        why=(
            r"$w$ depends on $\theta$. Where nothing is clipped the gradient of a sample is $-wA(1 + \log "
            r"\pi) \nabla \log \pi$, which points the wrong way for every improbable sample."
        ),
        charitable=(
            "The sentence before it decomposes the weight inside the stop-gradient operator; Table 2 and "
            "algorithm 2 hold the ratio fixed."
        ),
    ),
    Erratum(
        title="The caption of figure 2 exchanges the signs of its panels",
        rows=("RPG-fig2-caption",),
        consequence="slip",
        printed="Figure 2: $A = 1$ in the left panel and $A = -1$ in the right one; left: the case $A < 0$.",
        why="The two halves of the caption contradict each other.",
        charitable="The titles of the panels say it right.",
    ),
    Erratum(
        title="Two clip ranges of GRPO",
        rows=("RPG-H-grpo-clip",),
        consequence="slip",
        printed=r"Appendix H: $(\epsilon_1, \epsilon_2) = (0.1, 0.1)$ for GRPO.",
        why="Section 5, which the paragraph refers to, and the released scripts of GRPO have 0.2 and 0.2.",
        charitable="The scripts are those of 7B models; the runs with Qwen3-4B could have had another range.",
    ),
    Erratum(
        title="Letters of subfigures",
        rows=("RPG-5-subfigures",),
        consequence="slip",
        printed="Section 5: reward and entropy are subfigures (c) and (d) of figures 5 and 6, length is (e).",
        why="By the captions (c) is AMC23, reward and entropy are (d) and (e), and length is (f).",
        charitable="The letters are those of a figure without AMC23.",
    ),
    Erratum(
        title="The bound of negative advantages, described the other way round",
        rows=("RPG-G1-bound",),
        consequence="slip",
        printed=(
            "Appendix G.1: for negative advantages the objective is prevented from becoming arbitrarily "
            "large, and the loss from becoming arbitrarily small."
        ),
        why="$wA$ with $A < 0$ falls as $w$ grows. $cA$ keeps it from becoming arbitrarily small.",
        charitable="The same sentence has a lower bound of the objective and an upper one of the loss.",
    ),
    Erratum(
        title="The unclipped example of algorithm 1 is another loss",
        rows=("RPG-alg1-noclip",),
        consequence="slip",
        printed=(
            r"Appendix G.1, algorithm 1, lines 26 and 27: for RKL $-w_i A_i$ is $w_i(-(R_i - b_i) + \beta "
            r"\log w_i)$."
        ),
        why=r"With the $A_i$ of line 12 it is $\beta w_i$ more.",
        charitable=(
            r"Both have the gradient of the reverse KL objective in the mean, as the derivative of $w$ has "
            "mean 0."
        ),
    ),
)
