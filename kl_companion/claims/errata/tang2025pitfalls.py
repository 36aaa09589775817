"""Corrections of "On a few pitfalls in KL divergence gradient estimation for RL" (tang2025pitfalls)."""

from __future__ import annotations

from kl_companion.claims.errata.erratum import Erratum

TANG = (
    Erratum(
        title="The ratio in the control variate is upside down",
        rows=("TM-2.1-control-variate",),
        consequence="slip",
        printed=(
            "Section 2.1, after the variance-reduced estimate: the control variate of mean zero is named "
            r"as 1 - \pi/\pi_ref."
        ),
        why=(
            r"Under \pi it is \pi_ref/\pi that has mean 1. The mean of \pi/\pi_ref is 1 plus the Pearson "
            r"divergence \sum (\pi - \pi_ref)^2/\pi_ref, so the printed variable has a negative mean "
            "unless the two policies are equal, and it is not the term that the estimate adds."
        ),
        charitable=(
            r"The displayed estimate has the right term, the sentence before gives mean 1 to \pi_ref/\pi, "
            "and the family with a factor in section 3 is right as well: nothing rests on the slip."
        ),
    ),
    Erratum(
        title="Minus the estimate is not a loss to descend",
        rows=("TM-2.2-sign",),
        consequence="slip",
        printed=(
            "Section 2.2, first paragraph: the loss is the negative of the KL estimate, and gradient "
            "descent on it is to minimize the KL."
        ),
        why=(
            "Descent lowers its loss. With an estimate whose gradient is that of the KL, such as the "
            "squared one of section 3, a small step down the gradient of its negative raises the KL."
        ),
        charitable=(
            "Minus the estimate is right as a term of an objective that is ascended, next to a reward. "
            "The updates of appendix C, which subtract the gradient of the KL, have the right sign."
        ),
    ),
    Erratum(
        title="The parameters meant are those of the policy",
        rows=("TM-eq2-parameters",),
        consequence="slip",
        printed=(
            "Section 3, before eq (2): the vanilla estimate is differentiated with respect to the parameters "
            "of p."
        ),
        why=(
            r"The letter p stands for no policy of this text. Eq (2) has \nabla log \pi inside its mean, a "
            r"gradient in the parameters of \pi; in those of the other policy, \pi_ref, the mean is not zero."
        ),
        charitable=(
            r"A letter of other notation for \pi: eq (2) leaves no doubt, and all that follows is right."
        ),
    ),
    Erratum(
        title="A gradient sign is missing",
        rows=("TM-3-lambda-grad",),
        consequence="slip",
        printed=(
            r"Section 3, after the estimate with a factor: E[\nabla KL_\lambda] = \lambda KL(\pi_ref,\pi)."
        ),
        why=(
            "The left side is a vector of derivatives, the right side a number. The log-ratio contributes "
            r"zero by eq (2), and the control variate \lambda \nabla KL(\pi_ref,\pi) by eq (3)."
        ),
        charitable=(
            r"A \nabla was dropped before the KL. Eq (3), the case \lambda = 1, has it, and the conclusion "
            r"drawn (an effect in proportion to \lambda, and none at \lambda = 0) is that of the corrected "
            "line."
        ),
    ),
    Erratum(
        title="The equation meant is (3)",
        rows=("TM-4.1-eqref",),
        consequence="slip",
        printed=(
            "Section 4.1, the special case of token-level losses: the variance-reduced gradient estimate "
            r"is cited as eq (4), with the mean E_\pi \sum_t \nabla KL(\pi_ref(.|y_{<t}),\pi(.|y_{<t}))."
        ),
        why=(
            r"Eq (4) is the vanilla estimate, whose mean at a token is the gradient of KL(\pi,\pi_ref), "
            "the other direction. The printed mean is that of the differentiated variance-reduced "
            "estimate, eq (3)."
        ),
        charitable=(
            "Only the number of the equation is off: the words, the expectation and the conclusion are "
            "right with eq (3)."
        ),
    ),
    Erratum(
        title="Off-policy, the squared log-ratio is not the one that keeps the optimum",
        rows=("TM-6-squared-offpolicy",),
        consequence="slip",
        printed=(
            r"Section 6, off-policy learning: with samples from \mu, E_\mu[(log(\pi/\pi_ref))^2] is the "
            "unique regularization that leaves the optimal policy intact."
        ),
        why=(
            r"Added to the expected reward under \pi it moves the optimum, since its gradient weights the "
            r"log-ratio by \mu and the reward's by \pi. It is not unique either: a KL gradient with "
            r"weights \pi/\mu keeps the optimum too."
        ),
        charitable=(
            r"If the reward is taken under \mu as well, in one square with the log-ratio (minus half the "
            r"variance of r - \beta l, l = log(\pi/\pi_ref)), the optimum does stay, for every \mu. Unique "
            "may be meant among losses without importance weights."
        ),
    ),
    Erratum(
        title="One minus sign too many in step (c)",
        rows=("TM-appA-c",),
        consequence="slip",
        printed=r"Appendix A, step (c) of the derivation: -E_{\pi_ref}[-\nabla log \pi].",
        why=(
            r"Step (b) is -E_\pi[(\pi_ref/\pi) \nabla log \pi], which importance sampling turns into "
            r"-E_{\pi_ref}[\nabla log \pi]. The second minus sign gives the negative of steps (b) and (d)."
        ),
        charitable="Either of the two signs was meant. Step (d), and eq (3) which it proves, are right.",
    ),
    Erratum(
        title="An average over parameters that is a sum",
        rows=("TM-appC-rootMSE",),
        consequence="slip",
        printed=(
            "Appendix C, accuracy of a gradient: the root mean squared error is described as an average "
            r"over parameters, beside the formula \sqrt{\sum_i(\hat g_i - \nabla_i KL)^2}."
        ),
        why=(
            "The formula sums over the parameters and does not divide by their number: the words give a "
            "value that is smaller by the root of that number."
        ),
        charitable=(
            "A constant factor changes no comparison between estimates. The formula, a distance between "
            "two gradients, is what one would want to plot."
        ),
    ),
    Erratum(
        title="The ratio of appendix D is a logarithm already",
        rows=("TM-appD-rho",),
        consequence="slip",
        printed=(
            r"Appendix D, first sentence: \rho_t := log(\pi/\pi_ref) of token t. The derivation then adds "
            r"up log \rho_t."
        ),
        why=(
            "With this definition the derivation takes the logarithm of a log-ratio, which does not exist "
            "where the log-ratio is negative."
        ),
        charitable=(
            r"Section 4.2 defines \rho_t as the ratio itself; with it every step of the appendix is right. "
            "Dropping the log in the derivation instead comes to the same."
        ),
    ),
    Erratum(
        title="Two years in the list of references",
        rows=("TM-refs",),
        consequence="slip",
        printed=(
            "References: the note of Schulman on approximating the KL is dated 2017 (and cited so from "
            "section 2.1 on), the paper of Paszke and others on PyTorch 1912."
        ),
        why=(
            "The note is of 7 March 2020. The paper is of 2019; its number at arXiv, 1912.01703, begins with "
            "1912."
        ),
        charitable="Authors, titles, address and number are right, so that a reader finds both.",
    ),
)
