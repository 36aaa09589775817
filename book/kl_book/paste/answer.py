"""A loss as it was pasted into the page, and what the page says about it: JSON in, JSON out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kl_companion.auditing import audit
from kl_companion.auditing.judgment import sentences
from kl_companion.auditing.judgment.inputs import CLIP, WRONG_CLIP, notes, said_as
from kl_companion.auditing.judgment.pictures import arrows, reference_point
from kl_companion.auditing.judgment.summary import rows
from kl_companion.auditing.judgment.verdict import Audit
from kl_companion.auditing.reading.names import ROLES
from kl_companion.auditing.reading.roles import Unread
from kl_companion.auditing.reading.signatures import UnclearNames
from kl_companion.auditing.reading.sources import SeveralLosses, pairs, pasted_loss, value_of
from kl_companion.auditing.worlds.objectives import OBJECTIVES

_EMPTY = "there is nothing here yet, expected a loss: a function, or lines that end in loss = ..."
_last: list[Audit] = []  # the verdict that a picture is asked of


def answer(request: str, progress: Callable[[str], None] | None = None) -> str:
    """The verdict on a text, as JSON.

    Args:
        request: JSON of ``code``; and, called as the options of the command line are, ``name`` (of a function
            among several), ``want``, ``map`` and ``set``, each of the last two as text, ``a=b, c=d``.
        progress: Called with a line of text per step.

    Returns:
        ``card`` (the verdict as data, as ``kl-companion audit --json`` prints it) and ``said``, its
        sentences; or ``error``, with ``names`` where one of several functions has to be chosen, and
        ``unclear`` where parameters do not say what they are.
    """
    asked = json.loads(request)
    _last.clear()
    try:
        found = _audited(asked, progress)
        data = {"card": found.to_dict(), "said": said(found)}
    except SeveralLosses as error:
        return json.dumps({"error": str(error), "names": error.names})
    except UnclearNames as error:
        return json.dumps({"error": str(error), "unclear": [_choices(u) for u in error.unread]})
    except (ValueError, AttributeError) as error:  # a refusal: of the audit, or of what the page has not
        return json.dumps({"error": str(error)})
    except Exception as error:  # whatever the reader's code raises is the answer
        return json.dumps({"error": f"{type(error).__name__}: {error}"})
    _last.append(found)
    return json.dumps(data, allow_nan=False)


def _audited(asked: dict[str, Any], progress: Callable[[str], None] | None) -> Audit:
    if not asked["code"].strip():
        raise ValueError(_EMPTY)
    return audit(
        pasted_loss(asked["code"], asked.get("name") or None),
        want=asked.get("want") or None,
        roles=pairs(asked.get("map", ""), "Names"),
        options={n: value_of(v) for n, v in pairs(asked.get("set", ""), "Options").items()},
        progress=progress,
    )


def _choices(unread: Unread) -> dict[str, Any]:
    """A name that was not read, why, and what it may mean: what fits comes first."""
    fitting = [role for role in ROLES if role in unread.suggestions]
    others = [role for role in ROLES if role not in unread.suggestions]
    return {
        "name": unread.name,
        "why": unread.why,
        "fitting": len(fitting),
        "roles": [[role, ROLES[role]] for role in (*fitting, *others)],
    }


def said(found: Audit) -> dict[str, Any]:
    """The sentences of the card, and the rows of its table."""
    wrong = (*sentences.warnings(found), *said_as(WRONG_CLIP, found.inputs))
    return {
        "minimizes": " ".join(filter(None, (*wrong, sentences.minimizes(found)))),
        "as_meant": sentences.as_meant(found),
        "good": found.as_meant,
        "certainty": sentences.certainty(found),
        "rows": rows(found.findings),
        "notes": [
            text
            for of in (
                lambda x: " ".join([*notes(x.inputs), *said_as(CLIP, x.inputs)]),
                sentences.inside,
                sentences.parts,
                sentences.practice,
                sentences.beside,
                sentences.summed,
                sentences.groups,
            )
            if (text := of(found))
        ],
        "read": sentences.read_as(found.reading),
    }


def picture() -> str:
    """The gradient of the last verdict on the simplex of three tokens, as JSON.

    Returns:
        ``points``, ``mine`` and ``theirs`` ([points][2], steps of the policy in the plane), ``reference`` and
        ``meant``; or ``why_not``.
    """
    (found,) = _last
    if found.head:
        return json.dumps({"why_not": "A loss of the likeliest tokens has no picture on three tokens."})
    try:
        points, mine, theirs = arrows(found.loss_fn, found.compared)
    except ValueError:
        return json.dumps(
            {"why_not": "Without rewards, on answers of one token, it has no gradient to draw."}
        )
    return json.dumps(
        {
            "points": points.tolist(),
            "mine": mine.tolist(),
            "theirs": theirs.tolist(),
            "reference": reference_point().tolist(),
            "meant": OBJECTIVES[found.compared].short,
        }
    )
