"""Corrections of "EMA Policy Gradient" (emapg2026): appendices J and K, and the list of data sets.

Throughout l = log(pi/pi_ref), pi* is the target of eq (141), and N the size of a group.
"""

from __future__ import annotations

from kl_companion.claims.errata.erratum import Erratum

EMAPG_POLICIES = (
    Erratum(
        title="Value and KL of a group are no expectations",
        rows=("EMA-eq145",),
        consequence="slip",
        printed=(
            r"Appendix J, eq (145): V and \hat{KL}, into which the bound (144) is split, are the "
            "expectations of the group's mean reward and mean log-ratio."
        ),
        why=(
            "The bound is a number of each group, the split a constant. With a constant in the place of "
            r"\hat{KL} the left side of lemma J.1 would be zero, because the score has mean zero."
        ),
        charitable=(
            "J.1 and appendix A use the group's own means, and lemma J.1 is right with them. In "
            "expectation over groups eqs (144) and (145) agree."
        ),
    ),
    Erratum(
        title="The derivative of K1 holds no reward",
        rows=("EMA-J1-start",),
        consequence="slip",
        printed=r"J.1, first line: the loss K1 = -log w has the gradient -(R - log Z) \nabla log \pi.",
        why=(
            r"log w = R - l - log Z, and of these only l depends on \theta: the derivative is \nabla log "
            r"\pi, whatever the rewards are, of mean zero. The printed line is not K1's value times the "
            "score either: l is missing, and with it the KL."
        ),
        charitable=(
            "Meant is K1 as a penalty in the reward, its value times the score. With l restored, its mean "
            r"is the gradient of KL(\pi||\pi*), which is the box (147) at the end of the section."
        ),
    ),
    Erratum(
        title="The KL of the group changes its sign",
        rows=("EMA-J1-sign",),
        consequence="slip",
        printed=(
            r"J.1, sum over the rollouts: -\sum_j (R_j - V) \nabla log \pi_j + \sum_j \hat{KL} \nabla log "
            r"\pi_j."
        ),
        why=(
            r"The line above has -(R - V + \hat{KL}) \nabla log \pi, so the second sum has a minus sign. "
            "By lemma J.1 its mean is then minus the gradient of the KL, which pushes away from the "
            "reference."
        ),
        charitable=(
            "Two slips meet: with the log-ratio that the first line lacks, the KL's gradient has the "
            "printed plus sign in expectation, though another size, N - 1 in the place of 1."
        ),
    ),
    Erratum(
        title="A sum over the group is not N times the box",
        rows=("EMA-eq147+sum",),
        consequence="slip",
        printed=(
            r"J.1, from lemma J.1 to eq (147): the sum over N rollouts gives -(R - V) \nabla log \pi + "
            r"\nabla KL(\pi||\pi_ref) for each of them."
        ),
        why=(
            r"The lemma gives one \nabla KL for all N rollouts together, and the rewards give N - 1 times "
            "their gradient, since V holds the own reward. Reward and KL do not stand in the ratio of the "
            "box."
        ),
        charitable=(
            "The box is right by another way: with K1 in the reward and a V without the own reward it is "
            r"the gradient of KL(\pi||\pi*) in expectation. With N fixed, the factor between the terms can "
            r"be seen as part of \beta."
        ),
    ),
    Erratum(
        title="The KL term of the square has the other sign, and lowers the weight of the KL",
        rows=("EMA-J2-expand", "EMA-J2-expand+upweights"),
        consequence="slip",
        printed=(
            r"J.2, expanding log Z: the square is (l - (R - V) + \hat{KL})^2, its gradient that of (l - (R "
            r"- V))^2 plus \hat{KL} \nabla log \pi; this term, it is said, just upweights the KL."
        ),
        why=(
            r"V - \hat{KL} stands for log Z by eqs (144) and (145), so the square holds -\hat{KL}, and its "
            r"derivative the cross term -2 \hat{KL} \nabla log \pi. With a minus sign the term takes "
            "weight from the KL."
        ),
        charitable=(
            "With the plus sign of the display the remark would be true. The box (148) leaves the term "
            "out, so that the sign does not reach it."
        ),
    ),
    Erratum(
        title="The half of K2 is left out",
        rows=("EMA-J2-expand+start", "EMA-eq148", "EMA-tab8-K2"),
        consequence="slip",
        printed=(
            r"J.2, first line and eq (148), and table 8, row K2: (log w)^2/2 has the gradient \nabla (l - "
            "R + log Z)^2, with V for log Z in the last two."
        ),
        why=(
            "log w = -(l - R + log Z), so K2 is half of the square, and its gradient half of the printed one."
        ),
        charitable=(
            "A factor 2 goes into the step size, as long as no other term stands beside it. The half is "
            "kept on the left side of the same lines, in eq (80), and in eq (152), which equals L2 only "
            "with it."
        ),
    ),
    Erratum(
        title="The reward term of the squared loss has the other sign",
        rows=("EMA-J2-apa",),
        consequence="slip",
        printed=(
            r"J.2, on the APA loss: \nabla (l - (R - V))^2 = (R - V) \nabla log \pi + \nabla "
            r"KL(\pi||\pi_ref)."
        ),
        why=(
            r"Half the derivative is (l - (R - V)) \nabla log \pi: the reward has a minus sign. Descending "
            "the printed right side would lower the expected reward."
        ),
        charitable=(
            "The point of the line, that the square holds the KL term already, is right. The box (147) "
            "has the minus sign."
        ),
    ),
    Erratum(
        title="A mean in the place of minus a sum",
        rows=("EMA-J3-mean",),
        consequence="slip",
        printed=(
            r"J.3, batched form: the mean over the group of \nabla log \pi softmax(R - log(\pi/\pi_ref))."
        ),
        why=(
            "The line above is minus the sum of the same terms; its softmax contains the 1/N of the "
            "average. Descended as a gradient, the printed form would move away from good answers."
        ),
        charitable=(
            "As a direction to ascend it is the one of the line above, with a step size that makes up for "
            "the factor N. Eq (149) below has the minus sign again."
        ),
    ),
    Erratum(
        title="K3 is not a sum of policy gradient and K5",
        rows=("EMA-eq150", "EMA-tab8-K3"),
        consequence="slip",
        printed=(
            "J.4, eq (150), and table 8, row K3: the gradient of K3 = -log w + w - 1 is the policy "
            r"gradient L1, -(R - log Z) \nabla log \pi, plus that of K5: GRPO and MPO combined."
        ),
        why=(
            r"\nabla(-log w) = \nabla log \pi and \nabla w = -w \nabla log \pi: the sum (1 - w) \nabla log "
            r"\pi is the gradient of K5, in every sample. There is no term with the reward itself."
        ),
        charitable=(
            "With L1 as the derivative of K1 the equation holds: the slip is that of the first line of "
            "J.1. L1 plus L5 is a loss that one can train with; it is the name K3 that does not fit it."
        ),
    ),
    Erratum(
        title="K3++ is K2 alone",
        rows=("EMA-eq151", "EMA-tab8-K3pp"),
        consequence="slip",
        printed=(
            "J.4, eq (151), and table 8, row K3++: the gradient of r (-log w + w - 1) is that of L1 plus "
            "that of L2: GRPO and APA combined."
        ),
        why=(
            r"By the product rule it is (1 - w) \nabla log \pi + (-log w + w - 1) \nabla log \pi = -log w "
            r"\nabla log \pi, the gradient of K2 in every sample. Nothing is left for L1."
        ),
        charitable=(
            "With L1 as the derivative of K1, of mean zero, eq (151) is right in expectation. With the L1 "
            "of table 8, which holds the KL, the sum has the right direction in expectation, though not "
            "the length."
        ),
    ),
    Erratum(
        title="The two KLs have each other's label",
        rows=("EMA-tab9-tlogt", "EMA-tab9-mlogt"),
        consequence="slip",
        printed=(
            r"Table 9, on D_f(\pi||\pi*): the row of f = t log t is named Forward KL, that of f = -log t "
            "Reverse KL."
        ),
        why=(
            r"With the policy first, t log t generates KL(\pi||\pi*) and -log t generates KL(\pi*||\pi): "
            "the reverse and the forward KL of tables 1 and 5."
        ),
        charitable=(
            "Generators and weights of both rows are right. In table 10, where the target comes first, "
            "the same two labels fit."
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
        why="Table 3 reports six sets and averages over six; AMC 2024 is among them and not in the list.",
        charitable="Table 3 and its caption are complete: a name was left out of the sentence.",
    ),
)
