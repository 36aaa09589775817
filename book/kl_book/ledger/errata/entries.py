"""All corrections, in the order in which the page shows them."""

from __future__ import annotations

from kl_book.ledger.errata.ding2026misfires import ZCPO
from kl_book.ledger.errata.emapg2026 import EMAPG
from kl_book.ledger.errata.emapg2026_policies import EMAPG_POLICIES
from kl_book.ledger.errata.erratum import Erratum, checked
from kl_book.ledger.errata.summary2025pitfalls import SUMMARY
from kl_book.ledger.errata.tang2025pitfalls import TANG
from kl_book.ledger.errata.vojnovic2025alignment import VY
from kl_book.ledger.errata.wang2025choosing import WANG
from kl_book.ledger.errata.yao2026future import FRPO
from kl_book.ledger.errata.zhang2025design import RPG
from kl_book.ledger.errata.zheng2025stabilizing import QW

ERRATA: tuple[Erratum, ...] = checked(
    (*EMAPG, *EMAPG_POLICIES, *TANG, *WANG, *SUMMARY, *FRPO, *ZCPO, *VY, *RPG, *QW)
)
