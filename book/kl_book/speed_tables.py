"""The table `performance` as the chapter on exact KL, book/using.md and `make bench` show it."""

from __future__ import annotations

import pandas as pd

from kl_book import tables
from kl_book.speed_goals import (
    CPU,
    DTYPES,
    GPU,
    OURS,
    MeasuredAt,
    Rows,
    bandwidth_share,
    cell,
    ratio,
)

NOT_MEASURED = "not measured"
WORDS = {
    "naive": "usual formula",
    "F.kl_div": "F.kl_div",
    "TRL": "TRL",
    "torch.compile": "torch.compile of it",
    "ours, eager": "ours, eager",
    "ours": "ours",
    OURS: "ours, weights known",
    "ours, in place": "ours, in place",
    "roof": "memory roof",
}


def measured(profile: str = "cpu") -> Rows:
    """The rows of the table; none at all where no GPU has made its table yet.

    Raises:
        FileNotFoundError: the processors' table is not there.
    """
    try:
        return as_rows(tables.load("performance", profile=profile))
    except FileNotFoundError:
        if profile != "gpu":
            raise
        return []


def as_rows(frame: pd.DataFrame) -> Rows:
    """A data frame of the table as rows, with None for what is missing."""
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in record.items()} for record in records]


def speedups(rows: Rows, at: MeasuredAt = CPU) -> pd.DataFrame:
    """How many times as fast as the usual formula every variant of the reverse KL is.

    Returns:
        One line per variant in words; a column per dtype and allocator, missing where nothing was measured.
    """
    columns = {}
    for dtype in DTYPES:
        for allocator in ("default", "warm"):
            where = at._replace(allocator=allocator)
            columns[dtype, allocator] = [cell(rows, "times_faster", v, dtype, where) for v in WORDS]
    return pd.DataFrame(columns, list(WORDS.values()), dtype=float)


def costs(rows: Rows, at: MeasuredAt = CPU) -> pd.DataFrame:
    """Memory beyond the inputs in arrays of the size of the logits, and the gradient's relative error."""
    names = {"memory": "extra_of_logits", "error": "gradient_error"}
    columns = {
        (dtype, word): [cell(rows, column, v, dtype, at) for v in WORDS]
        for dtype in DTYPES
        for word, column in names.items()
    }
    return pd.DataFrame(columns, list(WORDS.values()), dtype=float).drop("memory roof")


def training_steps(rows: Rows) -> pd.DataFrame:
    """A whole training step per KL term: milliseconds, time over that of the sampled KL, memory as MB."""
    found = [row for row in rows if row["work"] == "training_step"]
    lines = {
        "ms": [row["milliseconds"] for row in found],
        "time / sampled KL": [ratio(1.0, row["times_faster"]) for row in found],
        "MB": [row["extra_megabytes"] for row in found],
    }
    return pd.DataFrame(lines, [row["variant"] for row in found], dtype=float)


def _digits(x: float | None) -> str:
    return NOT_MEASURED if x is None else f"{x:.3g}"


def on_gpu(rows: Rows) -> pd.DataFrame:
    """Milliseconds of the reverse KL on a GPU in bfloat16, and the share of the bandwidth of a copy."""
    times = [cell(rows, "milliseconds", v, "bfloat16", GPU) for v in WORDS]
    shares = [bandwidth_share(rows, v, "bfloat16", GPU) for v in WORDS]
    columns = {"ms": map(_digits, times), "share of a copy's bandwidth": map(_digits, shares)}
    return pd.DataFrame(columns, list(WORDS.values()))


def sentences(rows: Rows) -> tuple[str, str]:
    """The two sentences on speed of the page on using the package.

    Raises:
        ValueError: a number that they need was not measured.
    """
    speed = [_faster(rows, than, dtype) for dtype in DTYPES for than in ("naive", "torch.compile")]
    memory = [cell(rows, "extra_of_logits", v, "float32", CPU) for v in ("naive", OURS, "ours, in place")]
    numbers = [x for x in (*speed, *memory) if x is not None]
    if len(numbers) < len(speed) + len(memory):
        raise ValueError("the table performance lacks numbers of the reverse KL: run it again")
    naive, compiled, naive_half, compiled_half, usual, new, in_place = numbers
    device = next(row["device"] for row in rows if row["work"] == "reverse_kl")
    return (
        f"On two threads of an {device}, `fused_kl(..., weights=w)` of 256 tokens and 151,936 entries, "
        f"gradient included, is {naive:.1f} times as fast as the usual formula and {compiled:.1f} times as "
        f"fast as `torch.compile` of it in float32, {naive_half:.1f} and {compiled_half:.1f} times in "
        "bfloat16.",
        f"Beyond the logits it needs {new:.2f} times their memory, for the gradient, and in place "
        f"{100 * in_place:.2g} % of it; the usual formula needs {usual:.1f} times.",
    )


def _faster(rows: Rows, than: str, dtype: str) -> float | None:
    times = [cell(rows, "milliseconds", v, dtype, CPU) for v in (than, OURS)]
    return ratio(*times)
