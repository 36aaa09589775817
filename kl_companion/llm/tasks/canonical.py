"""The canonical form in which answers are compared; nothing is evaluated or rounded.

Numbers become exact fractions; tuples, intervals, lists and sets keep their brackets and hold such forms;
everything else is text without spacing, LaTeX dressing and case of words. Equality of forms is symmetric
and transitive by construction. Units, currency and percent signs are dropped, as is usual: ``50%`` is 50,
and ``5 cm`` is 5.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from fractions import Fraction

Canonical = tuple[str, object]

LONGEST = 500  # characters of an answer that is worth reading
DEEPEST = 20  # brackets within brackets
LAST_BOXES = 20  # boxes that are tried, from the end, for one that closes


def canonical(answer: str) -> Canonical | None:
    r"""The canonical form of an answer, (kind, value) and hashable; None for an empty one.

    - Numbers: ``1,000 = 1000.0 = 1e3 = \$1{,}000``, ``1/2 = .5 = \frac12 = \dfrac{1}{2}``,
      ``1 1/2 = 1\frac{1}{2} = 3/2``, ``2 million = 2 \times 10^6``, ``45^\circ = 45 degrees = 45``.
    - ``(1/2, 3) = (0.5, 3)``, ordered; ``\{1, 2\} = \{2, 1\}``, and lists such as ``1, -2`` or ``1 or -2``
      have no order either. ``[1, 2)`` is not ``(1, 2)``.
    - A comma within brackets separates: ``(1,000)`` is a pair.
    - ``x = 5`` is 5; what is inside a ``\boxed`` counts alone; ``(A)`` is ``A``.
    """
    inside = boxed(answer) if len(answer) <= LONGEST else None
    text = answer if inside is None else inside
    if len(text) > LONGEST or _depth(text) > DEEPEST:
        return ("text", text.strip())
    text = _plain(text)
    return _read(text) if text else None


def boxed(text: str) -> str | None:
    r"""What the last whole ``\boxed{...}`` or ``\fbox{...}`` holds, nested braces too; also ``\boxed 5``."""
    for match in list(re.finditer(r"\\(?:boxed|fbox)(?![A-Za-z])\s*", text))[: -LAST_BOXES - 1 : -1]:
        if text[match.end() : match.end() + 1] == "{":
            end = _group_end(text, match.end())
            if end is not None:
                return text[match.end() + 1 : end]
        else:
            bare = re.match(r"[^\s$\\{},]+", text[match.end() :])
            if bare:
                return bare[0].rstrip(".")
    return None


def _group_end(text: str, start: int) -> int | None:
    """Where the brace opened at ``start`` closes; escaped braces do not count."""
    depth, place = 0, start
    while place < len(text):
        if text[place] == "\\":
            place += 1
        elif text[place] in "{}":
            depth += 1 if text[place] == "{" else -1
            if not depth:
                return place
        place += 1
    return None


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest


# Dressing -------------------------------------------------------------------------------------------------

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
REPLACED = [
    (r"\\(?:left|right|bigl?|bigr?|Bigl?|Bigr?|displaystyle|limits)(?![A-Za-z])", ""),
    (r"\\[,;:]|\\quad|\\qquad|~|\\ ", " "),
    (r"\{,\}", ","),  # the comma of 1{,}000
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\\$|\$|[£€¥]", ""),
    (r"\\\(|\\\)|\\\[|\\\]", ""),
    (r"\\%|%", " percent"),
    (r"\^\s*\{?\s*\\circ\s*\}?|\\degree(?![A-Za-z])|°", " degrees"),
    (r"[−–—]", "-"),
    (r"\\times(?![A-Za-z])|\\cdot(?![A-Za-z])|[×·⋅]", "*"),
    (r"\\div(?![A-Za-z])|÷", "/"),
    (r"\\infty(?![A-Za-z])|∞|\b[Ii]nfinity\b", "inf"),
    (r"\\pi(?![A-Za-z])|π", " pi "),
    (r"\\pm(?![A-Za-z])", "±"),
    (r"\\cup(?![A-Za-z])", "∪"),
    (r"\\le(?:q|qslant)?(?![A-Za-z])|<=", "≤"),
    (r"\\ge(?:q|qslant)?(?![A-Za-z])|>=", "≥"),
    (r"\\in(?![A-Za-z])", "∈"),
    (r"\\(?:emptyset|varnothing)(?![A-Za-z])", "∅"),
    (r"\\sqrt\s*([0-9A-Za-z])", r"\\sqrt{\1}"),
    (r"√\s*\(", r"\\sqrt("),
    (r"√\s*([0-9]+|[A-Za-z])", r"\\sqrt{\1}"),
]
DRESSING = [(re.compile(pattern), new) for pattern, new in REPLACED]
WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")


def _plain(text: str) -> str:
    """The answer without LaTeX dressing; spaces are kept, single ones."""
    text = text.replace("\\!", "")  # a negative space, as in 10,\!000
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+", lambda m: f"^{{{m[0].translate(SUPERSCRIPTS)}}}", text)
    text = "".join(_vulgar(character) for character in text)
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/")
    text = re.sub(r"(?<=[0-9])(?:\\,\s?|\s)(?=[0-9]{3}(?:\D|\Z))", _grouping, text)
    for pattern, new in DRESSING:
        text = pattern.sub(new, text)
    text = re.sub(
        r"(?<=[0-9}])\s*\\(?:text|textrm|mathrm|mbox)\s*\{\s*[A-DF-HJ-Za-df-hj-z]\s*\}", " units", text
    )
    text = WORDS.sub(r" \1 ", text)
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"(?<!\.)\.\Z", "", text).strip()


def _vulgar(character: str) -> str:
    plain = unicodedata.normalize("NFKC", character)
    return f" {plain} " if "\u2044" in plain else character


def _grouping(match: re.Match[str]) -> str:
    r"""A thin space between digits groups thousands; so does a plain one after one to three digits."""
    if match[0].startswith("\\"):
        return ""
    text, place = match.string, match.start()
    ahead = re.search(r"[0-9]+(?: [0-9]{3})*\Z", text[:place])
    first = ahead[0].split(" ")[0] if ahead else ""
    mixed = re.match(r"[0-9]{3}(?: [0-9]{3})*\s?/", text[match.end() :])  # 632 145/231
    return "" if 1 <= len(first) <= 3 and not mixed else match[0]


# Reading --------------------------------------------------------------------------------------------------


def _read(text: str) -> Canonical:
    """The canonical form of a plain, nonempty text."""
    text = _without_variable(text)
    number = _quantity(text)
    if number is not None:
        return ("number", number)
    for mark, kind in ((r"∪", "union"), (r"\bor\b|\band\b", "list")):
        parts = _split(text, mark)
        if len(parts) > 1 and all(parts):
            return (kind, _sorted(_read(part) for part in parts))
    parts = _split(text, ",")
    if len(parts) > 1 and all(parts):
        return ("list", _sorted(_read(part) for part in parts))
    return _bracketed(text) or ("text", _symbols(text))


def _sorted(parts: Iterable[Canonical]) -> tuple[Canonical, ...]:
    return tuple(sorted(parts, key=repr))


def _without_variable(text: str) -> str:
    """``x = 5`` is 5 and ``x ∈ [0, 1]`` is the interval."""
    match = re.match(r"[A-Za-z](?:_\{?[0-9A-Za-z]\}?)?\s*[=∈]\s*(?=\S)", text)
    rest = text[match.end() :] if match else ""
    return rest if match and not re.search(r"[=∈]", rest) else text


def _bracketed(text: str) -> Canonical | None:
    r"""Tuples and intervals in order; sets without order; a single thing in parentheses is that thing."""
    is_set = text.startswith("\\{") and text.endswith("\\}")
    if is_set:
        text = "{" + text[2:-2] + "}"
    first, last = text[0], text[-1]
    if len(text) < 2 or first not in "([{" or last not in ")]}" or not _one_group(text):
        return None
    inside = text[1:-1].strip()
    parts = _split(inside, ",")
    if not all(parts) or (first == "{") != (last == "}"):
        return None
    if len(parts) == 1 and first + last in ("()", "{}") and not is_set:
        return _read(inside)
    elements = [_read(part) for part in parts]
    return ("set", _sorted(elements)) if first == "{" else (first + last, tuple(elements))


def _one_group(text: str) -> bool:
    """Whether the first bracket closes at the very end and not before; (1, 2] is one group, (1)(2) is not."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if not depth:
            return place == len(text) - 1
    return False


def _split(text: str, mark: str) -> list[str]:
    """Parts between the marks that are inside no bracket."""
    parts, depth, start = [], 0, 0
    places = {match.start(): match.end() for match in re.finditer(mark, text)}
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0 and place in places:
            parts.append(text[start:place].strip())
            start = places[place]
    return [*parts, text[start:].strip()]


# Numbers --------------------------------------------------------------------------------------------------

DECIMAL = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
ATTACHED = r"(?:mm|cm|km|kg|mg|ml|mL|lbs?|oz|ft|hrs?|mph|kmh)\b"
NOT_UNITS = set(
    re.findall(
        r"\w+",
        "pi sqrt sin cos tan cot sec csc log ln exp inf or and mod plus minus times over to by squared cubed "
        "alpha beta gamma theta lambda phi base choose divided factorial is are not",
    )
)
SIZE = re.compile(
    rf"(?P<whole>[0-9]+)\s+(?P<top>[0-9]+)\s?/\s?(?P<bottom>[0-9]+)"
    rf"|(?P<n>{DECIMAL})\s?/\s?(?P<d>{DECIMAL})"
    rf"|(?P<m>{DECIMAL})(?:[eE](?P<e>[-+]?[0-9]{{1,3}}))?(?:\s?\*\s?10\s?\^\s?\{{?(?P<t>[-+]?[0-9]{{1,3}})\}}?)?"
)
FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]*)\}|([0-9]))\s*(?:\{([^{}]*)\}|([0-9]))")


def _quantity(text: str) -> Fraction | None:
    """A number with or without a unit or a scale word; None where anything else is left."""
    if text.count("\\frac") == 1:
        text = FRACTION.sub(_slash, text).strip()
    sign = -1 if text.startswith("-") else 1
    if text[:1] in ("-", "+"):
        text = text[1:].lstrip()
    if text[:1] == "(" and text[-1:] == ")" and _one_group(text):
        inside = _quantity(text[1:-1].strip()) if "," not in text else None
        return None if inside is None else sign * inside
    match = SIZE.match(text)
    value = _size(match) if match else None
    if match is None or value is None:
        return None
    power = _unit(text[match.end() :])
    return None if power is None else sign * value * 10**power


def _slash(match: re.Match[str]) -> str:
    """A LaTeX fraction of two numbers as top/bottom; anything else is left as it is."""
    parts = [(match[1] or match[2] or "").strip(), (match[3] or match[4] or "").strip()]
    before, after = match.string[: match.start()].rstrip(), match.string[match.end() :]
    negative = [part.startswith("-") for part in parts]
    sizes = [part.removeprefix("-").lstrip() for part in parts]
    is_number = all(re.fullmatch(DECIMAL, size) for size in sizes)
    if not is_number or after[:1].isdigit() or (any(negative) and before):
        return match[0]
    sign = "-" if negative[0] != negative[1] else ""
    # a digit in front makes it a mixed number
    return f"{' ' if before[-1:].isdigit() else sign}{sizes[0]}/{sizes[1]}"


def _size(match: re.Match[str]) -> Fraction | None:
    try:
        if match["whole"]:
            part = Fraction(int(match["top"]), int(match["bottom"]))
            return int(match["whole"]) + part if part < 1 else None
        if match["n"]:
            return _decimal(match["n"]) / _decimal(match["d"])
        power = int(match["e"] or 0) + int(match["t"] or 0)
        return _decimal(match["m"]) * Fraction(10) ** power
    except ZeroDivisionError:
        return None


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").removesuffix("."))


def _unit(rest: str) -> int | None:
    """The power of ten that what follows a number stands for; None where it is no unit."""
    if not rest:
        return 0
    if not re.match(rf"\s|{ATTACHED}", rest):
        return None
    rest = re.sub(r"\s?\^\s?\{?[23]\}?\Z", "", rest.strip())
    power, words = 0, rest.replace("/", " per ").split()
    for word in words:
        if not re.fullmatch(r"[A-Za-z]+[.]?", word) or word.lower() in NOT_UNITS:
            return None
        power += SCALES.get(word.lower(), 0)
    alone = len(words) == 1 and len(words[0]) == 1  # 5 x is a product
    return None if alone else power


# Text -----------------------------------------------------------------------------------------------------


def _symbols(text: str) -> str:
    """What is left: formulas without spaces and braces that say nothing, words in lower case."""
    if re.fullmatch(r"[A-Za-z][A-Za-z' -]+", text) and re.search("[A-Za-z]{2}", text):
        text = text.lower()
    text = re.sub(r"(?<=[0-9]) (?=[0-9])", "␣", text).replace(" ", "")
    text = re.sub(r"(?<=[0-9])\*(?=[A-Za-z(\\])", "", text).removeprefix("+")
    previous = ""
    while previous != text:  # from the innermost outwards
        previous = text
        text = re.sub(r"\\frac(\{[^{}]*\}|[0-9A-Za-z])(\{[^{}]*\}|[0-9A-Za-z])", _division, text)
        text = re.sub(r"\\?sqrt\{([^{}]*)\}|\\?sqrt\(([^()]*)\)", _root, text)
        text = re.sub(r"([\^_])(?:\{([^{}]*)\}|([0-9]+|[A-Za-z]))", _script, text)
    return text


def _division(match: re.Match[str]) -> str:
    top, bottom = match[1].strip("{}"), match[2].strip("{}")
    outside = re.sub(r"⟨[^⟨⟩]*⟩|\[[^\[\]]*\]|\([^()]*\)", "", top)
    top = f"({top})" if re.search(r"(?<!\A)[-+±]", outside) else top
    atom = re.fullmatch(r"[0-9.]+|[A-Za-z](?:[\^_]⟨[^⟨⟩]*⟩)?|√\[[^\[\]]*\]", bottom)
    bottom = bottom if atom else f"({bottom})"
    after = match.string[match.end() :]
    return f"({top}/{bottom})" if after[:1].isdigit() else f"{top}/{bottom}"


def _script(match: re.Match[str]) -> str:
    """An exponent or index; its brackets are no braces, so that a fraction around it can be read."""
    return f"{match[1]}⟨{match[2] if match[2] is not None else match[3]}⟩"


def _root(match: re.Match[str]) -> str:
    return f"√[{match[1] or match[2]}]"
