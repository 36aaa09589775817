"""The one table of recommendations: what to log, and what to put into the loss or the reward.

The guide of the first page, the tables of "Which one should you use?", the cheat sheet and the remedies of
the audit are made of these records; what chapters and README advise is compared with them by a test.
"""

from typing import TYPE_CHECKING

from kl_companion.lazy import lazy

if TYPE_CHECKING:
    from kl_companion.recommendations.records import VERBS as VERBS
    from kl_companion.recommendations.records import Recommendation as Recommendation
    from kl_companion.recommendations.records import Term as Term
    from kl_companion.recommendations.records import values_of as values_of
    from kl_companion.recommendations.table import ANY_DIVERGENCE as ANY_DIVERGENCE
    from kl_companion.recommendations.table import GUIDE as GUIDE
    from kl_companion.recommendations.table import LENGTHS as LENGTHS
    from kl_companion.recommendations.table import LOGGED as LOGGED
    from kl_companion.recommendations.table import QUESTIONS as QUESTIONS
    from kl_companion.recommendations.table import RECOMMENDATIONS as RECOMMENDATIONS
    from kl_companion.recommendations.table import TRAINED as TRAINED
    from kl_companion.recommendations.table import logged_for as logged_for
    from kl_companion.recommendations.table import recommended_for as recommended_for

__getattr__, __all__, __dir__ = lazy(__name__)
