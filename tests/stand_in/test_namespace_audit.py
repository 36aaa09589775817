"""The audit runs on the stand-in as it is, and its verdicts are those that it has on PyTorch."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from tests.support.corpus import corpus
from tests.support.stand_in_audit import verdict

NAMES = [f"{path.stem}.{name}" for path, name, _ in corpus()]
ALIKE = 1e-9


def same(a, b):
    """Whether two verdicts as data are the same, numbers to 1e-9."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=ALIKE, abs_tol=ALIKE) or (a != a and b != b)
    return a == b


def compare(names, root):
    program = [sys.executable, "-m", "tests.support.stand_in_audit", *names]
    done = subprocess.run(
        program, cwd=root, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=3000
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for line in done.stdout.splitlines():
        name, data, card = json.loads(line)
        with torch.random.fork_rng():
            _, want, page = json.loads(json.dumps(verdict(name)))
        assert card == page, name
        assert same(data, want), name


@pytest.mark.slow
def test_a_loss_of_the_corpus(root):
    compare(["easyr1.actor_kl_loss"], root)


@pytest.mark.reliability
def test_every_loss_of_the_corpus(root):
    compare(NAMES, root)
