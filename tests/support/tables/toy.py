"""A toy project with one table: its notebook needs neither torch nor a second of arithmetic."""

import json
from pathlib import Path

PARAMETERS = """\
out = None
method = "a"
seed = 0
scale = 1.0
fail = None
hang = None
log = None
"""
WORK = """\
import os
import time

from kl_book import tables

if log:
    from ipykernel.connect import get_connection_info

    transport = get_connection_info(unpack=True)["transport"]
    with open(log, "a") as stream:
        stream.write(f"{method}{seed} {os.environ['OMP_NUM_THREADS']} {os.getcwd()} {transport}\\n")
while hang and seed == 1 and os.path.exists(hang):
    time.sleep(0.02)
if fail and seed == 1 and os.path.exists(fail):
    raise RuntimeError(f"planted at seed {seed}")
sign = -1 if method == "a" else 1
rows = [
    {"step": step, "value": sign * scale * (seed + step) / 3, "tiny": -1e-9, "good": step > 0}
    for step in (1, 0)
]
tables.write_rows(out, rows)
"""
MANIFEST = """\
title: A toy
notebook: book/experiments/toy.ipynb
grid: {method: [b, a], seed: [0, 1]}
parameters: {scale: 2.0}
profiles: {smoke: {seed: [0], scale: 0.5}, gpu: {scale: 3.0}}
columns:
  method: str
  seed: int
  step: int
  value: {type: float, digits: 3}
  tiny: {type: float, digits: 2}
  good: bool
key: [method, seed, step]
cost: seconds
deterministic: true
"""
TABLE = """\
method,seed,step,value,tiny,good
b,0,0,0.000,0.00,False
b,0,1,0.667,0.00,True
b,1,0,0.667,0.00,False
b,1,1,1.333,0.00,True
a,0,0,0.000,0.00,False
a,0,1,-0.667,0.00,True
a,1,0,-0.667,0.00,False
a,1,1,-1.333,0.00,True
"""


def notebook(*cells: str, tagged: int = 0) -> str:
    """A notebook file with these code cells; the one at `tagged` holds the parameters."""
    content = [
        {
            "cell_type": "code",
            "id": f"cell{number}",
            "metadata": {"tags": ["parameters"]} if number == tagged else {},
            "execution_count": None,
            "outputs": [],
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(cells)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": content, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    )


def write_project(root: Path) -> Path:
    """The files of the toy project; no table is made yet."""
    for folder in ("book/experiments", "tables/toy"):
        (root / folder).mkdir(parents=True)
    (root / "_toc.yml").write_text("root: book/page\n")
    (root / "book/page.md").write_text("```{csv-table}\n:file: ../tables/toy/table.csv\n```\n")
    (root / "book/experiments/toy.ipynb").write_text(notebook(PARAMETERS, WORK))
    (root / "tables/toy/manifest.yml").write_text(MANIFEST)
    return root
