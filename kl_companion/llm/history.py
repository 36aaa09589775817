"""What a training run records, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

Record = dict[str, float]


@dataclass
class History:
    """What a run recorded, one record per step.

    Those of evaluated steps hold the evaluation too; its ``reward`` and ``length`` replace the batch's.

    Columns: ``step`` (finished before it), ``reward``, ``length``, ``loss``, ``grad_norm`` (before it is
    clipped), ``equal_groups``, ``clipped`` (share of tokens whose ratio PPO's clip stops), ``log_ratio``
    (mean |log pi - log mu| over the batch's tokens), and what ``evaluate`` returned. A supervised step
    has no reward, no groups and no ratios.
    """

    records: list[Record] = field(default_factory=list)

    def frame(self) -> pd.DataFrame:
        """All records, one row per step."""
        return pd.DataFrame(self.records)

    def evaluations(self) -> pd.DataFrame:
        """The evaluated steps only."""
        return pd.DataFrame([r for r in self.records if r.get("evaluated")]).drop(columns="evaluated")
