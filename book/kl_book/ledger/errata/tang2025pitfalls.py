"""Corrections of "On a few pitfalls in KL divergence gradient estimation for RL" (tang2025pitfalls)."""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

TANG = (
    Erratum(
        title="With few samples leave-one-out raises the variance",
        rows=("TM-fig2-LOO", "TM-4.2-LOO-var"),
        consequence="result",
        printed=(
            "Figure 2 (caption) and section 4.2: the gradient estimate with a leave-one-out control variate "
            "has a marginally smaller variance; over whole sequences, given more than one in the batch, it "
            "is a way to reduce the variance."
        ),
        why=(
            "The baseline of one sample is the mean of the n - 1 others. Subtracting it saves what the mean "
            "cost contributes to the variance and adds the uncertainty of that mean, in proportion to "
            "1/(n - 1). Which is larger depends on n, and with n = 4, the number of samples that "
            "appendices C and E name, it is as a rule the second."
        ),
        charitable=(
            "With many samples it is right, and no mean changes. Where the KL is large beside its spread "
            "the baseline saves more, and Figure 8 reports faster learning with it in distillation."
        ),
    ),
    Erratum(
        title="The KL itself is not always a nearly optimal baseline",
        rows=("TM-3-near-optimal",),
        consequence="derivation",
        printed="Section 3, after eq (4): a baseline that is nearly optimal is the true KL.",
        why=(
            "The constant of least variance weights each outcome by the squared length of its score. It "
            "is the "
            "KL only where this length does not go with the log-ratio. Where one outcome dominates, its "
            "score is short and its log-ratio is not, and the KL can do worse than no baseline."
        ),
        charitable=(
            "It is the usual choice in policy gradients, and in the paper's own bandits with 100 arms, "
            "where no arm dominates, it is close to the best constant."
        ),
    ),
    Erratum(
        title="The variance-reduced estimate is slower only at first",
        rows=("TM-fig3-slower",),
        consequence="derivation",
        printed=(
            "Section 3.1, on Figure 3: the differentiated variance-reduced estimate lowers the KL as well, "
            "at a slower rate."
        ),
        why=(
            "With the settings of appendix C (100 arms, unit Gaussians, n = 4, step size 1) it is slower "
            "in the "
            "first updates and faster after that. With expected gradients, without any noise, it is the same."
        ),
        charitable=(
            "The number of updates shown is not printed, and the text speaks of a policy far from its "
            "target. "
            "Early in a run it is slower, and farther from the target than appendix C draws the policies "
            "it is much worse."
        ),
    ),
    Erratum(
        title="Leaving out terms of mean zero can raise the variance",
        rows=("TM-4.2-cum-var",),
        consequence="derivation",
        printed=(
            "Section 4.2: the variance is reduced further by leaving out the log-ratios of earlier tokens, "
            "whose products with the score have mean zero."
        ),
        why=(
            "A term of mean zero can be correlated with the terms that stay. Where earlier and later "
            "log-ratios "
            "have opposite signs they cancel in the sum, and without the earlier ones the estimate varies "
            "more."
        ),
        charitable=(
            "It is a good rule: the variance falls on most trees tried, often by much, and the text says "
            "that it can be reduced, not that it always is."
        ),
    ),
    Erratum(
        title="A low KL does not make both directions of the KL nearly equal",
        rows=("TM-5.1-lowKL",),
        consequence="derivation",
        printed=(
            r"Section 5.1: while the KL is low, $\KL{\pi}{\pref}$ and $\KL{\pref}{\pi}$ are nearly equal; "
            "this is offered as the likely reason why two estimates behave alike."
        ),
        why=(
            "Both agree to second order where every ratio of probabilities is near 1. A low KL does not "
            "ensure "
            "that: if a rare outcome becomes a few times as likely, the KL is as small as the outcome is "
            "rare, and the two directions still differ by a fixed share."
        ),
        charitable=(
            "It is put forward as a speculation, and where the policy has moved little everywhere it is "
            "right. "
            "What it explains, one curve of reward against KL for both estimates, is seen on bandits as well."
        ),
    ),
    Erratum(
        title="The squared estimate is not the only loss with the right gradient",
        rows=("TM-6-unique",),
        consequence="derivation",
        printed=(
            "Section 6, off-policy learning: the connection to squared regularization is taken as a hint "
            "that the squared estimate of eq (1) is the unique loss with the right gradient."
        ),
        why=(
            r"Section 3 itself gives another: $\sg(l) \log\pi$ with $l = \log(\pi/\pref)$. Adding a "
            "multiple of $l$ "
            "changes no expected gradient either, and the estimates K3++ and K4 of EMA-PG have the right "
            "one, too."
        ),
        charitable=(
            "It is a hint, not a claim. Among functions of the log-ratio alone, differentiated as they "
            "are, the square is the only one up to such a multiple and a constant."
        ),
    ),
    Erratum(
        title="The ratio in the control variate is upside down",
        rows=("TM-2.1-control-variate",),
        consequence="slip",
        printed=(
            "Section 2.1, after the variance-reduced estimate: the control variate of mean zero is named "
            r"as $1 - \pi/\pref$."
        ),
        why=(
            r"Under $\pi$ it is $\pref/\pi$ that has mean 1. The mean of $\pi/\pref$ is 1 plus the Pearson "
            r"divergence $\sum (\pi - \pref)^2/\pref$, so the printed variable has a negative mean "
            "unless the two policies are equal, and it is not the term that the estimate adds."
        ),
        charitable=(
            r"The displayed estimate has the right term, the sentence before gives mean 1 to $\pref/\pi$, "
            "and the family with a factor in section 3 is right as well: nothing rests on the slip."
        ),
    ),
    Erratum(
        title="Minus the estimate is not the loss to minimize",
        rows=("TM-2.2-sign",),
        consequence="slip",
        printed=(
            "Section 2.2, first paragraph: the loss is the negative of the KL estimate, and gradient "
            "descent on it is meant to minimize the KL."
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
            r"The letter p names no policy of this text. Eq (2) has $\nabla \log\pi$ inside its mean, a "
            "gradient "
            r"in the parameters of $\pi$; in those of the other policy, $\pref$, the mean is not zero."
        ),
        charitable=(
            r"It is a letter of another notation for $\pi$. Eq (2) leaves no doubt, and all that follows "
            "is right."
        ),
    ),
    Erratum(
        title="A gradient sign is missing",
        rows=("TM-3-lambda-grad",),
        consequence="slip",
        printed=(
            r"Section 3, after the estimate with a factor: $\E[\nabla \mathrm{KL}_\lambda] = \lambda "
            r"\KL{\pref}{\pi}$."
        ),
        why=(
            "The left side is a vector of derivatives, the right side a number. The log-ratio contributes "
            r"zero by eq (2), and the control variate $\lambda \nabla \KL{\pref}{\pi}$ by eq (3)."
        ),
        charitable=(
            r"A $\nabla$ was dropped before the KL. Eq (3), the case $\lambda = 1$, has it, and the "
            "conclusion "
            r"drawn (an effect in proportion to $\lambda$, and none at $\lambda = 0$) is that of the "
            "corrected line."
        ),
    ),
    Erratum(
        title="A factor beta is missing",
        rows=("TM-3.1-constant",),
        consequence="slip",
        printed=(
            r"Section 3.1, KL-regularized reward: the objective $\E_\pi r - \beta \KL{\pi}{\pref}$ is a "
            r"constant away from $-\KL{\pi}{\pi^*}$."
        ),
        why=(
            r"With $\pi^*$ as printed beside it, proportional to $\pref \exp(r/\beta)$, the objective is "
            r"$\beta \log Z - \beta \KL{\pi}{\pi^*}$: the factor $\beta$ stays before the KL."
        ),
        charitable=(
            r"With $\beta = 1$ it is right, and for every $\beta$ the two have the same maximum, so that "
            r"the KL to $\pi^*$ is a sound measure of progress."
        ),
    ),
    Erratum(
        title="The equation meant is (3)",
        rows=("TM-4.1-eqref",),
        consequence="slip",
        printed=(
            "Section 4.1, the special case of token-level losses: the variance-reduced gradient estimate "
            r"is cited as eq (4), with the mean $\E_\pi \sum_t \nabla \KL{\pref(.|y_{<t})}{\pi(.|y_{<t})}$."
        ),
        why=(
            r"Eq (4) is the vanilla estimate, whose mean at a token is the gradient of $\KL{\pi}{\pref}$, "
            "the other direction. The printed mean is that of the differentiated variance-reduced "
            "estimate, eq (3)."
        ),
        charitable=(
            "Only the number of the equation is off: the words, the expectation and the conclusion are "
            "right with eq (3)."
        ),
    ),
    Erratum(
        title="One minus sign too many in step (c)",
        rows=("TM-appA-c",),
        consequence="slip",
        printed=r"Appendix A, step (c) of the derivation: $-\E_{\pref}[-\nabla \log\pi]$.",
        why=(
            r"Step (b) is $-\E_\pi[(\pref/\pi) \nabla \log\pi]$, which importance sampling turns into "
            r"$-\E_{\pref}[\nabla \log\pi]$. The second minus sign gives the negative of steps (b) and (d)."
        ),
        charitable="Either of the two signs was meant. Step (d), and eq (3) which it proves, are right.",
    ),
    Erratum(
        title="An average over parameters that is a sum",
        rows=("TM-appC-rootMSE",),
        consequence="slip",
        printed=(
            "Appendix C, accuracy of a gradient: the root mean squared error is described as an average "
            r"over parameters, beside the formula $\sqrt{\sum_i(\hat g_i - \nabla_i \mathrm{KL})^2}$."
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
            r"Appendix D, first sentence: $\rho_t$ is $\log(\pi/\pref)$ of token $t$. The derivation then "
            r"adds up $\log \rho_t$."
        ),
        why=(
            "With this definition the derivation takes the logarithm of a log-ratio, which does not exist "
            "where the log-ratio is negative."
        ),
        charitable=(
            r"Section 4.2 defines $\rho_t$ as the ratio itself; with it every step of the appendix is right. "
            "Dropping the log in the derivation instead comes to the same."
        ),
    ),
    Erratum(
        title="Two years in the list of references",
        rows=("TM-refs",),
        consequence="bibliography",
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
