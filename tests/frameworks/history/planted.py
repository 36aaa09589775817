"""Twelve planted releases of a toy trainer whose KL term and whose defaults change, as unpacked wheels."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kl_companion.frameworks.history.subjects import FollowedLoss, Project
from kl_companion.frameworks.installed import Distribution, SourceLocation
from kl_companion.frameworks.linking import link
from kl_companion.frameworks.shipped import Shipped, chosen, class_defaults
from kl_companion.rollout import Rollout

LOSS = "def kl_term(logp, ref_logp):\n    x = ref_logp - logp\n    return {}\n"
K2, K3 = "x**2 / 2", "x.exp() - 1 - x"
CONFIG = (
    "from dataclasses import dataclass\n\n@dataclass\nclass Config:\n    beta: float = {}\n    name: str\n"
)
# K2 in 0.1 only; K3 until 0.4.1; K2 again since 0.4.2; off since 1.1
VERSIONS = ("0.1", "0.2", "0.3", "0.3.1", "0.4.0", "0.4.1", "0.4.2", "0.4.3", "0.5", "0.6", "1.0", "1.1")


def term_of(version: str) -> str:
    return K2 if version == "0.1" or VERSIONS.index(version) >= VERSIONS.index("0.4.2") else K3


def files(version: str) -> dict[str, str]:
    beta = "0.0" if version == "1.1" else "0.04"
    return {"toy/loss.py": LOSS.format(term_of(version)), "toy/config.py": CONFIG.format(beta)}


def wheel(folder: Path, version: str) -> Path:
    """A wheel as an index has it."""
    path = folder / f"toy-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files(version), "toy/data.bin": "not a source"}.items():
            date = (2025, 1, 1 + VERSIONS.index(version), 12, 0, 0)
            archive.writestr(zipfile.ZipInfo(name, date), text)
    return path


def unpacked(folder: Path, version: str) -> Distribution:
    root = folder / f"toy-{version}"
    for name, text in files(version).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    record = {"file": f"toy-{version}.whl", "sha256": version * 3, "date": "2025-01-01"}
    (root / "wheel.json").write_text(json.dumps(record))
    return Distribution("toy", version, root)


def _loss(term: Any, rollout: Rollout) -> torch.Tensor:
    each = term(rollout.logp, rollout.ref_logp) * rollout.completion_mask
    total: torch.Tensor = each.sum() / len(rollout.tokens)
    return total


def ship(toy: Distribution, options: Mapping[str, Any]) -> Shipped:
    config = chosen(class_defaults(toy, "toy/config.py", "Config"), options, f"Config of toy {toy.version}")
    place = SourceLocation("toy/loss.py", "kl_term")
    loss = partial(_loss, link(toy, place.file, place.function))
    return Shipped(loss, f"Config(beta={config['beta']})", config["beta"], place)


PROJECT = Project("toy", "toy", "0.2", (FollowedLoss("toy.kl", "the KL term of toy", ship, "reverse_kl"),))
