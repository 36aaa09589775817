"""The corrections of the sources, one entry for each cause, in the order of the register.

An entry says in words what is printed, why it cannot be right and how it may have been meant. What is
computed, the corrected form and the counterexample, comes from the checks of its rows. No row of
shah2025comedy fails, so that source has no entry.
"""

from kl_companion.claims.errata.emapg2026 import EMAPG
from kl_companion.claims.errata.emapg2026_policies import EMAPG_POLICIES
from kl_companion.claims.errata.erratum import Erratum, checked
from kl_companion.claims.errata.summary2025pitfalls import SUMMARY
from kl_companion.claims.errata.tang2025pitfalls import TANG
from kl_companion.claims.errata.wang2025choosing import WANG

__all__ = ["ERRATA", "Erratum"]

ERRATA: tuple[Erratum, ...] = checked((*TANG, *WANG, *SUMMARY, *EMAPG, *EMAPG_POLICIES))
