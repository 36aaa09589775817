"""The goals of the fast kernels, and what the table `performance` says of each: `python -m benchmarks.goals`.

The goals are in `kl_book.speed_goals`. The last two lines are those of book/using.md.
"""

from __future__ import annotations

from kl_book import speed_tables
from kl_book.speed_goals import CPU, GPU, MeasuredAt, Rows, findings


def report(rows: Rows, at: MeasuredAt = CPU) -> None:
    """Print each goal with what was measured."""
    for found in findings(rows, at):
        goal, said = found.goal, "" if found.measured is None else f"{found.measured:.3g}"
        print(f"{goal.work:<28}{goal.text:<54}{found.dtype:<10}{goal.asked:<15}{said:>8}  {found.verdict}")


def main() -> None:
    """Report on the committed tables."""
    rows = speed_tables.measured()
    report(rows)
    print("\nOn a GPU (`make bench DEVICE=cuda`)")
    report(speed_tables.measured("gpu"), GPU)
    print("", *speed_tables.sentences(rows), sep="\n")


if __name__ == "__main__":
    main()
