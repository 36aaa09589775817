"""Corrections of "What is the Alignment Objective of GRPO?" (vojnovic2025alignment)."""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

VY: tuple[Erratum, ...] = (
    Erratum(
        title="A policy of eq (11) need not maximize the objective on its own samples",
        rows=("VY-1.3-stationary",),
        consequence="derivation",
        printed=(
            "Section 1.3, with 1.2 and 2.3: a stationary policy maximizes GRPO's objective where it is "
            "itself the old policy. Eq (11), for two answers in closed form, is to give these policies."
        ),
        why=(
            "Eq (11) is the first-order condition. The penalty is not convex in the policy: for fixed "
            r"samples its second derivative is negative where $\pi(o) > 2 \pref(o)$. A solution of eq (11) "
            "can be a minimum on the simplex, or have a smaller objective than a policy near the reference. "
            "Then it is not stationary in the sense of the definition."
        ),
        charitable=(
            "Eq (11) is right for the policies at which on-policy gradient steps come to rest, and with "
            r"$\KL{\pref}{\pi}$ as the penalty, which is convex, these are the maxima."
        ),
    ),
    Erratum(
        title="Policies that never give some answers are stationary as well, and eq (11) is wrong for them",
        rows=("VY-eq11", "VY-A-lambda"),
        consequence="result",
        printed=(
            "Section 2.3 and appendix A: at a maximum every answer has the probability 0 or obeys eq (11). "
            "The "
            r"sum of eq (11) over all answers gives $\lambda = \E_\pi[P_G]$."
        ),
        why=(
            "The condition before it holds for the answers that the policy gives. Its sum over these answers "
            r"has $\pref(S)$ on the left, the probability that the reference gives to them, and not 1. An "
            "answer that is never sampled has no penalty in eq (1), so that leaving it out costs nothing."
        ),
        charitable=(
            "It is right for policies that give every answer of the reference a positive probability, as a "
            "softmax does. With the exact divergence as the penalty, all maxima do."
        ),
    ),
    Erratum(
        title="Random rewards change the policy of large groups",
        rows=(
            *("VY-eq15", "VY-eq15-solely", "VY-eq15-more", "VY-3-Ginf-small", "VY-3-Ginf-two"),
            *("VY-eq18", "VY-B1-sigma"),
        ),
        consequence="result",
        printed=(
            "Section 2.3.1 with appendix B.1, and section 3: in large groups the policy over two answers is "
            "eq "
            "(15) and depends on the reference, the coefficient and the order of the expected rewards "
            "alone; it "
            "is more biased to the reward than that of groups of two. With the KL divergence as the penalty "
            "it "
            "is 1 for small coefficients, and there are two for large ones."
        ),
        why=(
            "Section 2.1 lets the reward of an answer be random, and r(o|q) is its mean. The deviation by "
            "which "
            "a group divides then holds the noise of the reward as well. Appendix B.1 has the variance of "
            "the "
            "two means alone, which cancels against their difference; the whole deviation does not cancel."
        ),
        charitable=(
            "All of it is right for deterministic rewards, such as a rule that compares answers with a "
            "solution."
        ),
    ),
    Erratum(
        title="The coefficient bounds how much better an answer in use is, not how much worse",
        rows=("VY-2.3-within",),
        consequence="derivation",
        printed=(
            "Section 2.3, the sentence after the inequality below eq (11): the expected preference of every "
            r"answer in use is within $\beta$ of that of a random answer."
        ),
        why=(
            r"The inequality before it bounds from above. By eq (11) the distance is $\beta(1 - \pref/\pi)$, "
            "which has no lower bound where the policy gives an answer rarely."
        ),
        charitable=(
            r"It is right if it means that no answer in use is better than the mean by $\beta$ or "
            r"more."
        ),
    ),
    Erratum(
        title="A more concentrated policy does not always have a smaller deviation of the reward",
        rows=("VY-eq13-beta",),
        consequence="derivation",
        printed=(
            "Section 2.3, after eq (13): the more a policy is concentrated on a single answer, the smaller "
            "is "
            "the deviation, and with it the weight of the penalty."
        ),
        why=(
            "The deviation is that of the rewards. A policy that is spread over answers of the same reward "
            "has "
            "none, and gains deviation when it concentrates on one of them and on a few with another reward."
        ),
        charitable=(
            "It is right for two answers with deterministic rewards, and in the limit of a policy that "
            "always "
            "gives one answer whose reward is deterministic."
        ),
    ),
    Erratum(
        title="The question stands in the place of the answer",
        rows=("VY-2.3.1-symbol",),
        consequence="slip",
        printed=r"Section 2.3.1, last paragraph: the bound is one of $\pi_\theta(q|q)$.",
        why="The question is not one of its two answers, of which a is the better one.",
        charitable=r"$\pi_\theta(a|q)$ is meant, as in the display before it.",
    ),
    Erratum(
        title="The sign of a comparison stands for the sign of a difference",
        rows=("VY-B2-gamma",),
        consequence="slip",
        printed="Appendix B.2, below the objective of large groups: sign(r(a|b) > r(b|q)).",
        why="A comparison is true or false and never has the sign -1; and b is no question.",
        charitable="The sign of r(a|q) - r(b|q) is meant, as in eq (18).",
    ),
    Erratum(
        title="Both limits are taken from the wrong side",
        rows=("VY-B2-limits",),
        consequence="slip",
        printed="Appendix B.2: h goes to infinity as x rises to 0 and as x falls to 1.",
        why="Left of 0 and right of 1 the root of x(1 - x) is not real; h is defined between 0 and 1.",
        charitable="That x falls to 0, and that it rises to 1, is meant.",
    ),
)
