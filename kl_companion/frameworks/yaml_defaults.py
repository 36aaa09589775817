"""The scalars of a YAML file of a release, by dotted name: as much of the format as default files use."""

from __future__ import annotations

import ast
import re
from typing import Any

from kl_companion.frameworks.installed import Distribution, source_of

_LINE = re.compile(r"""( *)([\w.-]+):(?:\s+(.*?))?\s*""")
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}


def yaml_defaults(distribution: Distribution, file: str) -> dict[str, Any]:
    """What a file of nested mappings sets; ``{"actor.clip_ratio": 0.2}``.

    Items of lists are passed over, and what refers to other values (``${...}``) stays text.

    Raises:
        Unavailable: the file is missing.
    """
    path = source_of(distribution, file)
    found: dict[str, Any] = {}
    above: list[tuple[int, str]] = []  # the mappings that a line may be in, by indentation
    for line in path.read_text(encoding="utf-8").splitlines():
        parts = _LINE.fullmatch(re.sub(r"(^|\s)#.*", "", line))
        if parts is None:
            continue
        indent, name, text = len(parts[1]), parts[2], parts[3] or ""
        while above and above[-1][0] >= indent:
            above.pop()
        dotted = ".".join((*(n for _, n in above), name))
        above.append((indent, name))
        found[dotted] = _value(text)
    return found


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
