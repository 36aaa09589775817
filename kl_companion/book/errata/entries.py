"""All corrections, in the order in which the page shows them."""

from __future__ import annotations

from kl_companion.book.errata.ding2026misfires import ZCPO
from kl_companion.book.errata.emapg2026 import EMAPG
from kl_companion.book.errata.emapg2026_policies import EMAPG_POLICIES
from kl_companion.book.errata.erratum import Erratum, checked
from kl_companion.book.errata.summary2025pitfalls import SUMMARY
from kl_companion.book.errata.tang2025pitfalls import TANG
from kl_companion.book.errata.vojnovic2025alignment import VY
from kl_companion.book.errata.wang2025choosing import WANG
from kl_companion.book.errata.yao2026future import FRPO
from kl_companion.book.errata.zhang2025design import RPG
from kl_companion.book.errata.zheng2025stabilizing import QW

ERRATA: tuple[Erratum, ...] = checked(
    (*EMAPG, *EMAPG_POLICIES, *TANG, *WANG, *SUMMARY, *FRPO, *ZCPO, *VY, *RPG, *QW)
)
