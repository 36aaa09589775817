"""The verdict as plain data: it survives JSON, and its keys are those that the module's docstring names."""

import json
import math
import re

import pytest

from kl_companion import audit
from kl_companion.auditing.fit.explanations import COMMON
from kl_companion.auditing.fit.findings import Condition, Finding, GroupGap
from kl_companion.auditing.judgment import data
from kl_companion.auditing.judgment.verdict import Audit


def token_mean(logp, ref_logp, advantages, mask, kl_coef, options=()):
    centered = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
    kl = (ref_logp - logp).expm1() - (ref_logp - logp) - centered[:, None] * logp
    return (kl_coef * kl * mask).sum() / mask.sum()


def by_hand():
    gaps = (GroupGap(2, math.nan, math.inf),)
    match = {"token_reverse_kl": 0.5}
    one = Finding(
        Condition(True, False, 4.0),
        (match,),
        math.nan,
        False,
        dict,
        lambda: 0.0,
        ({"token_reverse_kl": COMMON},),
        measure_gaps=lambda: gaps,
    )
    given = Finding(None, (), 0.5, False, dict, lambda: 0.0)
    return Audit("it", (one, given), group_size=2)


AUDITS = {
    "k3": lambda: audit("k3", scale=1.0, want="reverse_kl"),
    "k1": lambda: audit("k1", scale=1.0, off_policy=False),
    "reward": lambda: audit("k1", placement="reward", scale=1.0, off_policy=False),
    "couples": lambda: audit(token_mean, scale=1.0, off_policy=False, options={"options": (1, 2)}),
    "by hand": by_hand,
}


def keys(x):
    """All keys of dicts, however deep; those of the reader's own are left out."""
    if isinstance(x, list):
        return {k for y in x for k in keys(y)}
    if isinstance(x, dict):
        return set(x) | {k for n, y in x.items() if n not in ("constants", "versions") for k in keys(y)}
    return set()


@pytest.mark.parametrize("name", AUDITS)
def test_it_survives_json_and_every_key_is_documented(name):
    found = AUDITS[name]().to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    documented = set(re.findall(r"``\"?(\w+)\"?``", data.__doc__))
    assert keys(found) - documented == set()
    assert found["schema"] == data.SCHEMA == 1
    assert set(found["versions"]) == {"kl_companion", "torch", "python"}


def test_the_numbers_of_a_verdict():
    found = AUDITS["k3"]().to_dict()
    assert (found["headline"], found["level"], found["met"], found["want"]) == (
        "forward KL",
        "token",
        False,
        "reverse_kl",
    )
    (term,) = found["terms"]
    assert term == {"objective": "token_forward_kl", "coefficient": 1.0, "unit": "", "sign": 1}
    assert [(c["samples"], c["ratios"], c["lengths"], c["batch"]) for c in found["conditions"]] == [
        (samples, "near", lengths, "large") for samples in ("fresh", "stale") for lengths in ("one", "many")
    ]
    assert [d["kl"] for d in found["distances"]] == [0.01, 0.1, 1.0]
    assert found["batch"] == {"couples": False, "sums": False, "groups": []}
    assert found["remedy"].startswith("def remedy")


def test_how_a_function_was_read():
    found = AUDITS["couples"]().to_dict()
    assert {p["name"]: p["role"] for p in found["read"]["parameters"]} == {
        "logp": "logp",
        "ref_logp": "ref_logp",
        "advantages": "rewards",
        "mask": "completion_mask",
    }
    assert found["read"]["constants"] == {"kl_coef": 1.0, "options": "(1, 2)"}
    assert found["read"]["result"] == "one number"
    assert found["batch"]["couples"] is True
    assert [g["size"] for g in found["batch"]["groups"]] == [2, 3, 4]


def test_what_could_not_be_told_is_null():
    found = by_hand().to_dict()
    first, given = found["conditions"]
    (term,) = first["terms"]
    assert term == {"objective": "token_reverse_kl", "coefficient": 0.5, "unit": "batch", "sign": 1}
    assert (first["samples"], first["ratios"], first["lengths"], first["batch"]) == ("stale", "far", "one", 2)
    assert first["residual"] is None
    assert (given["samples"], given["ratios"], given["lengths"]) == ("given", None, None)
    assert found["batch"]["groups"] == [{"size": 2, "degrees": None, "ratio": None, "fails": False}]
