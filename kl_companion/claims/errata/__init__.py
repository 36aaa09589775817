"""The corrections of the sources, one entry for each cause, those with consequences first.

An entry says in words what is printed, why it cannot be right and how it may have been meant. What is
computed, the corrected form, the counterexample and how much it matters, comes from the checks of its rows.
"""

from kl_companion.claims.errata.emapg2026 import EMAPG
from kl_companion.claims.errata.emapg2026_policies import EMAPG_POLICIES
from kl_companion.claims.errata.erratum import Erratum, checked
from kl_companion.claims.errata.summary2025pitfalls import SUMMARY
from kl_companion.claims.errata.tang2025pitfalls import TANG
from kl_companion.claims.errata.wang2025choosing import WANG

__all__ = ["ERRATA", "Erratum"]

ERRATA: tuple[Erratum, ...] = checked((*EMAPG, *EMAPG_POLICIES, *TANG, *WANG, *SUMMARY))
