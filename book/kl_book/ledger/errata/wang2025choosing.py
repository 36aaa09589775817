"""Corrections of the post on the choice of KL estimators (wang2025choosing)."""

from __future__ import annotations

from kl_book.ledger.errata.erratum import Erratum

WANG = (
    Erratum(
        title=r"Centering by the mean of the batch does not lower the effective $\beta$",
        rows=("WZ-8.1-effbeta",),
        consequence="result",
        printed=(
            r"Section 8.1, point 3: with advantages $A = r - \mathrm{mean}(r)$, the KL term that is centered "
            r"by the mean of its own batch shrinks by 1/n, which is equated with a smaller effective $\beta$."
        ),
        why=(
            "In such an advantage the reward is centered by the same mean and shrinks by the same factor "
            r"$1 - 1/n$. Their ratio, which is what $\beta$ means, stays. Only a KL that is left out of the "
            r"mean changes it, and makes $\beta$ larger."
        ),
        charitable=(
            "The factor $1 - 1/n$ of the KL term is right. Looked at by itself, or beside a reward that is "
            r"centered by leave-one-out, the term is that of a smaller $\beta$."
        ),
    ),
    Erratum(
        title="Leave-one-out centering of the KL need not lower the variance",
        rows=("WZ-8.1-LOO",),
        consequence="result",
        printed=(
            "Section 8.1, point 3: centered by the mean over the other samples, the KL term stays unbiased "
            "and has less variance. The conclusion recommends it for both."
        ),
        why=(
            "The mean over $n - 1$ samples is itself noisy, and near the reference that noise is larger than "
            "what a baseline saves: the expected KL is small beside the spread of the log-ratios. With few "
            "samples the variance rises, and in some worlds with any number."
        ),
        charitable=(
            "It is unbiased. A leave-one-out mean helps where the mean of what is centered is large beside "
            "its spread, as with many rewards, to which the KL is added; far from the reference it can help "
            "the KL too."
        ),
    ),
    Erratum(
        title="A small KL and a nearby sampler do not settle which loss has the lower variance",
        rows=("WZ-var-regime",),
        consequence="derivation",
        printed=(
            r"Section 6.3, after the warning: where the KL is constrained and $\mu$ is near $q$, it is said "
            r"with confidence that $\rho k_1$ has a higher variance than $\rho k_3$ and $\mathrm{sg}(\rho) "
            "k_2$."
        ),
        why=(
            r"The sign of the difference is that of $2 k_1 + 1$ on the samples that weigh most. A small KL "
            r"leaves room for rare samples with $p/q > \sqrt{e}$, where it is negative, and a sampler near "
            "$q$ does not change that."
        ),
        charitable=(
            "The same section derives the order where $p/q$ is near 1 for every sample, and says that it is "
            "open beyond. If a constrained KL is meant to say this, the sentence is right."
        ),
    ),
    Erratum(
        title="A KL in the reward does not need an accurate value",
        rows=("WZ-5-requires",),
        consequence="derivation",
        printed=(
            "Section 5.2, closing list: an estimate that shapes the reward has to have an accurate value, "
            "and its policy-gradient update has to match the objective."
        ),
        why=(
            r"What enters the policy-gradient term is $\E[s k]$ alone, with $s$ the score. A constant added "
            "to $k$ spoils the value and leaves the update as it is, because the score has mean zero; $k_3$ "
            "has an unbiased value and a biased update."
        ),
        charitable=(
            "Sections 7 and 10 treat value and update as two separate questions. An accurate value does "
            r"matter where the penalty is logged or steers $\beta$, where a critic learns it, and where an "
            "error per token adds up to one that grows with the length."
        ),
    ),
    Erratum(
        title="Authors of two papers in the list of references",
        rows=("WZ-refs", "WZ-refs-shah"),
        consequence="bibliography",
        printed=(
            "Reference list: arXiv:2505.17508 is by Yifan Zhang, Yiping Ji, Gavin Brown and others, and "
            "arXiv:2512.21852 by eight authors, Vedant Shah to Pablo Samuel Castro."
        ),
        why=(
            "Of the three names only the first is among the six authors of the former. The latter has "
            "thirteen; the list ends after the eighth without a sign that more follow."
        ),
        charitable="First authors, titles and numbers are right, so that a reader finds the papers meant.",
    ),
)
