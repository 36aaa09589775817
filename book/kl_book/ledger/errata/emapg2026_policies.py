"""Corrections of "EMA Policy Gradient" (emapg2026): appendices H to K, and the list of data sets.

Throughout l = log(pi/pi_ref), pi* is the target of eq (141), and N the size of a group.
"""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

EMAPG_POLICIES = (
    Erratum(
        title="K1 as a loss learns nothing",
        rows=("EMA-J1-start", "EMA-eq147", "EMA-tab8-K1"),
        consequence="result",
        printed=(
            r"Appendix J.1 and table 8, row K1: the loss $K1 = -\log w$ has the gradient $-(R - \log "
            r"Z)\nabla\log \pi$, and from it eq (147), $-(R - V)\nabla\log \pi + \nabla\,\KL{\pi}{\pref}$: "
            "PPO and GRPO."
        ),
        why=(
            r"$\log w = R - \ell - \log Z$ with $\ell = \log(\pi/\pref)$, and of these only $\ell$ depends "
            r"on $\theta$: the derivative is $\nabla\log \pi$, whatever the rewards are, of mean 0. The "
            r"first line is not K1's value times the score either: there $\ell$ is missing, and with it the "
            "KL."
        ),
        charitable=(
            "Meant is K1 as a penalty in the reward, its value times the score, which is how RLHF used it "
            "first. So read, eq (147) and the row of table 8 are right in expectation. The source's own "
            "table 1 says that K1 as a loss has the gradient 0."
        ),
    ),
    Erratum(
        title="K3 is not a sum of policy gradient and K5",
        rows=("EMA-eq150", "EMA-tab8-K3"),
        consequence="result",
        printed=(
            r"Appendix J.4, eq (150), and table 8, row K3: the gradient of $K3 = -\log w + w - 1$ is the "
            r"policy gradient $L_1$, $-(R - \log Z)\nabla\log \pi$, plus that of K5: GRPO and MPO combined."
        ),
        why=(
            r"$\nabla(-\log w) = \nabla\log \pi$ and $\nabla w = -w\nabla\log \pi$: the sum $(1 - "
            r"w)\nabla\log \pi$ is the gradient of K5, in every sample. There is no term with the reward "
            "itself."
        ),
        charitable=(
            "With $L_1$ as the derivative of K1 the equation holds: the slip is that of the first line of "
            "J.1. $L_1$ plus $L_5$ is a loss that one can train with; it is the name K3 that does not fit "
            "it."
        ),
    ),
    Erratum(
        title="K3++ is K2 alone",
        rows=("EMA-eq151", "EMA-tab8-K3pp"),
        consequence="result",
        printed=(
            r"Appendix J.4, eq (151), and table 8, row K3++: the gradient of $r(-\log w + w - 1)$ is that "
            "of $L_1$ plus that of $L_2$: GRPO and APA combined."
        ),
        why=(
            r"By the product rule it is $(1 - w)\nabla\log \pi + (-\log w + w - 1)\nabla\log \pi = -\log "
            r"w\,\nabla\log \pi$, the gradient of K2 in every sample. Nothing is left for $L_1$."
        ),
        charitable=(
            "With $L_1$ as the derivative of K1, of mean 0, eq (151) is right in expectation. With the "
            "$L_1$ of table 8, which holds the KL, the sum has the right direction in expectation, though "
            "not the length."
        ),
    ),
    Erratum(
        title="Pearson and alpha > 1 leave answers out where beta is small",
        rows=(
            "EMA-eq137-138",
            "EMA-eq139-140",
            "EMA-tab6-Pearson",
            "EMA-tab6-alpha",
            "EMA-tab7-Pearson",
            "EMA-tab7-alpha",
            "EMA-tab7-alpha+caption",
        ),
        consequence="result",
        printed=(
            r"Appendix I.2, eqs (137) to (140), and the rows Pearson and $\alpha$ of tables 6 and 7: for "
            r"every convex $f$ with $f(1) = 0$ the optimum is $\pref\,(f')^{-1}((R - \lambda)/\beta)$, and "
            "rewards exist under which the reverse KL has the same optimum."
        ),
        why=(
            "This is the stationarity condition for answers that keep some probability. Where $f'(0+)$ is "
            r"finite, giving up an answer has a finite price, and with a small $\beta$ the optimum gives up "
            r"the worst ones. No $\lambda$ then makes the formula a distribution, and no finite rewards "
            "give the reverse KL this optimum."
        ),
        charitable=(
            "The complementary slackness of the KKT conditions was left out. For both KLs, Jensen-Shannon, "
            r"Hellinger, Neyman and $\alpha < 1$ everything is right, and so it is for Pearson with a large "
            r"$\beta$. The last column of table 7 has the range of $\lambda$ in which the transform exists."
        ),
    ),
    Erratum(
        title="GRPO does not optimize eq (147)",
        rows=("EMA-eq147+ppo",),
        consequence="derivation",
        printed=(
            "Appendix J.1, below eq (147): PPO and GRPO, as typical algorithms, optimize this objective "
            "when they are on-policy."
        ),
        why=(
            r"GRPO adds K3 to the loss. Its gradient is that of $\KL{\pref}{\pi}$, as sections 2 and 5.2 "
            r"and table 1 say themselves, and not the $\nabla\,\KL{\pi}{\pref}$ of eq (147)."
        ),
        charitable=(
            "Of PPO with a penalized reward the sentence is right. For GRPO it is right to first order "
            "near the reference, and as a description of the reward's term."
        ),
    ),
    Erratum(
        title="A sum over the group is not N times the box",
        rows=("EMA-eq147+sum",),
        consequence="derivation",
        printed=(
            r"Appendix J.1, from lemma J.1 to eq (147): the sum over $N$ rollouts gives $-(R - V)\nabla\log "
            r"\pi + \nabla\,\KL{\pi}{\pref}$ for each of them."
        ),
        why=(
            r"The lemma gives one $\nabla\,\KL{\pi}{\pref}$ for all $N$ rollouts together, and the rewards "
            "give $N - 1$ times their gradient, since $V$ holds the own reward. Reward and KL do not stand "
            "in the ratio of the box."
        ),
        charitable=(
            "The box is right by another way: with K1 in the reward and a $V$ without the own reward it is "
            r"the gradient of $\KL{\pi}{\pi^*}$ in expectation. With $N$ fixed, the factor between the "
            r"terms can be seen as part of $\beta$."
        ),
    ),
    Erratum(
        title="The KL term of the square has the other sign, and lowers the weight of the KL",
        rows=("EMA-J2-expand", "EMA-J2-expand+upweights"),
        consequence="derivation",
        printed=(
            r"Appendix J.2, expanding $\log Z$: the square is $(\ell - (R - V) + \hat{KL})^2$, its gradient "
            r"that of $(\ell - (R - V))^2$ plus $\hat{KL}\,\nabla\log \pi$; this term, it is said, just "
            "upweights the KL."
        ),
        why=(
            r"$V - \hat{KL}$ stands for $\log Z$ by eqs (144) and (145), so the square holds $-\hat{KL}$, "
            r"and its derivative the cross term $-2\hat{KL}\,\nabla\log \pi$. With a minus sign the term "
            "takes weight from the KL."
        ),
        charitable=(
            "With the plus sign of the display the remark would be true. The box (148) leaves the term "
            "out, so that the sign does not reach it."
        ),
    ),
    Erratum(
        title="The stop-gradient in K4 does not always lower the variance",
        rows=("EMA-H-note3",),
        consequence="derivation",
        printed=(
            r"Appendix H, closing note on variance, second item: the stop-gradient on $-\log w$ keeps the "
            "gradient unbiased while it reduces the variance."
        ),
        why=(
            "It drops one score from each sample, a term of mean 0. That changes the variance by "
            r"$\E_\pi[(2\ell + 1)|s|^2]$ with $\ell = -\log w$, which is negative where the samples with a "
            "long score, the rare ones, are much likelier under the reference."
        ),
        charitable=(
            "In most worlds the sentence is right, and the mean of the gradient is the same everywhere. Of "
            "the forward KL, appendix F.4 says that the variance typically falls, which holds; here the "
            "word is missing."
        ),
    ),
    Erratum(
        title="Value and KL of a group are no expectations",
        rows=("EMA-eq145",),
        consequence="slip",
        printed=(
            r"Appendix J, eq (145): $V$ and $\hat{KL}$, into which the bound (144) is split, are the "
            "expectations of the group's mean reward and mean log-ratio."
        ),
        why=(
            "The bound is a number of each group, the split a constant. With a constant in the place of "
            r"$\hat{KL}$ the left side of lemma J.1 would be zero, because the score has mean zero."
        ),
        charitable=(
            "J.1 and appendix A use the group's own means, and lemma J.1 is right with them. In "
            "expectation over groups eqs (144) and (145) agree."
        ),
    ),
    Erratum(
        title="The KL of the group changes its sign",
        rows=("EMA-J1-sign",),
        consequence="slip",
        printed=(
            r"J.1, sum over the rollouts: $-\sum_j(R_j - V)\nabla\log \pi_j + \sum_j\hat{KL}\,\nabla\log "
            r"\pi_j$."
        ),
        why=(
            r"The line above has $-(R - V + \hat{KL})\nabla\log \pi$, so the second sum has a minus sign. "
            "By lemma J.1 its mean is then minus the gradient of the KL, which pushes away from the "
            "reference."
        ),
        charitable=(
            "Two slips meet: with the log-ratio that the first line lacks, the gradient of the KL has the "
            "printed plus sign in expectation, though another size, $N - 1$ in the place of 1."
        ),
    ),
    Erratum(
        title="The half of K2 is left out",
        rows=("EMA-J2-expand+start", "EMA-eq148", "EMA-tab8-K2"),
        consequence="slip",
        printed=(
            r"Appendix J.2, first line and eq (148), and table 8, row K2: $(\log w)^2/2$ has the gradient "
            r"$\nabla(\ell - R + \log Z)^2$, with $V$ for $\log Z$ in the last two."
        ),
        why=(
            r"$\log w = -(\ell - R + \log Z)$, so K2 is half of the square, and its gradient half of the "
            "printed one."
        ),
        charitable=(
            "A factor 2 goes into the step size, as long as no other term stands beside it. The half is "
            "kept on the left side of the same lines and in eq (80)."
        ),
    ),
    Erratum(
        title="The reward term of the squared loss has the other sign",
        rows=("EMA-J2-apa",),
        consequence="slip",
        printed=(
            r"Appendix J.2, on the APA loss: $\nabla(\ell - (R - V))^2 = (R - V)\nabla\log \pi + "
            r"\nabla\,\KL{\pi}{\pref}$."
        ),
        why=(
            r"Half the derivative is $(\ell - (R - V))\nabla\log \pi$: the reward has a minus sign. "
            "Minimizing along the printed right side would lower the expected reward."
        ),
        charitable=(
            "The point of the line, that the square holds the KL term already, is right. The box (147) has "
            "the minus sign."
        ),
    ),
    Erratum(
        title="A mean in the place of minus a sum",
        rows=("EMA-J3-mean",),
        consequence="slip",
        printed=(
            r"Appendix J.3, batched form: the mean over the group of $\nabla\log \pi\,\mathrm{softmax}(R - "
            r"\log(\pi/\pref))$."
        ),
        why=(
            "The line above is minus the sum of the same terms; its softmax contains the $1/N$ of the "
            "average. As a gradient to minimize along, the printed form would move away from good answers."
        ),
        charitable=(
            "As a direction to maximize it is the one of the line above, with a step size that makes up "
            "for the factor $N$. Eq (149) below has the minus sign again."
        ),
    ),
    Erratum(
        title="The mean of the log-ratio is the KL, not zero",
        rows=("EMA-H-note2",),
        consequence="slip",
        printed=(
            "Appendix H, closing note on variance, second item: for the reverse KL the baseline is "
            r"$\E[-\log w] = 0$."
        ),
        why=(
            r"$\E[-\log w]$ under $\pi$ is $\KL{\pi}{\pref}$, positive unless the policies are equal. What "
            "is zero is the mean of its gradient, the score."
        ),
        charitable=(
            r"The second equation of the sentence, $\E[-\nabla\log w] = 0$, is right, and the conclusion "
            "needs no more: over the whole vocabulary the stop-gradient drops a term of mean zero."
        ),
    ),
    Erratum(
        title="Neyman's generator has lost its denominator",
        rows=("EMA-tab5-Neyman",),
        consequence="slip",
        printed="Table 5, row Neyman: $f = (t - 1)^2$, beside the estimator $r(1 - w)^2$.",
        why=(
            r"The printed $f$ is that of Pearson, one row above, and $\sg(w)f(1/w)$ with it is $r(1 - "
            "w)^2/w$, the estimator of that row."
        ),
        charitable="The estimator is right, and tables 6, 9 and 10 have the right $f$.",
    ),
    Erratum(
        title="The two KLs have each other's label",
        rows=("EMA-tab9-tlogt", "EMA-tab9-mlogt"),
        consequence="slip",
        printed=(
            r"Table 9, on $D_f(\pi||\pi^*)$: the row of $f = t \log t$ is named Forward KL, that of $f = "
            r"-\log t$ Reverse KL."
        ),
        why=(
            r"With the policy first, $t \log t$ generates $\KL{\pi}{\pi^*}$ and $-\log t$ generates "
            r"$\KL{\pi^*}{\pi}$: the reverse and the forward KL of tables 1 and 5."
        ),
        charitable=(
            "Generators and weights of both rows are right. In table 10, where the target comes first, the "
            "same two labels fit."
        ),
    ),
    Erratum(
        title="One evaluation set is missing in the list",
        rows=("EMA-exp-math-sets",),
        consequence="slip",
        printed=(
            "Section 6, math reasoning: the evaluation sets are MATH500, Minerva, AIME 2024 and 2025, and "
            "OlympiadBench."
        ),
        why=("Table 3 reports six sets and averages over six; AMC 2024 is among them and not in the list."),
        charitable="Table 3 and its caption are complete: a name was left out of the sentence.",
    ),
)
