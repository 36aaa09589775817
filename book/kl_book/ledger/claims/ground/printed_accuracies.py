"""What zhang2025design prints of its experiments, as it is printed: data to compare with, never to build on.

Every table gives the last and the best accuracy of a run, benchmark by benchmark.
"""

from __future__ import annotations

from typing import NamedTuple

UFKL, URKL = "RPG-UFKL", "RPG-URKL"
REINFORCE = "RPG-REINFORCE"
REINFORCE_UFKL, REINFORCE_URKL = f"{REINFORCE}-UFKL", f"{REINFORCE}-URKL"
AIME = ("AIME24", "AIME25")

BENCHMARKS: dict[int, tuple[str, ...]] = {
    3: (*AIME, "AMC23"),
    5: (*AIME, "AMC23"),
    6: AIME,
    7: ("Minerva-Math", "OlympiadBench"),
    8: ("AMC23", *AIME),
}
TABLES: dict[int, dict[str, str]] = {
    3: {
        "GRPO": "0.3750 0.4396 0.3354 0.4063 0.9109 0.9297",
        "DAPO": "0.5438 0.5740 0.4469 0.4740 0.9375 0.9430",
        UFKL: "0.5938 0.6177 0.4698 0.4865 0.9492 0.9517",
        URKL: "0.4542 0.5260 0.5261 0.4938 0.9406 0.9539",
        REINFORCE_UFKL: "0.5906 0.5958 0.4833 0.5031 0.9453 0.9469",
        REINFORCE_URKL: "0.5708 0.5781 0.5073 0.5208 0.9398 0.9469",
    },
    5: {
        "REINFORCE++-Baseline": "0.3854 0.4302 0.3406 0.3844 0.9234 0.9328",
        "REINFORCE++": "0.3490 0.3885 0.2822 0.3479 0.8977 0.9297",
        "GRPO": "0.3458 0.3677 0.2896 0.3042 0.9016 0.9109",
        "DAPO": "0.4063 0.4479 0.3510 0.3938 0.9297 0.9297",
        UFKL: "0.4031 0.4396 0.3625 0.3979 0.9477 0.9500",
        URKL: "0.3990 0.4219 0.3438 0.3792 0.9500 0.9531",
        REINFORCE_UFKL: "0.4281 0.4375 0.3771 0.4042 0.9023 0.9133",
        REINFORCE_URKL: "0.4458 0.4531 0.4125 0.4313 0.9313 0.9352",
    },
    6: {
        "GRPO": "0.2563 0.2708 0.2323 0.2479",
        "DAPO": "0.3229 0.3281 0.2792 0.2844",
        UFKL: "0.3427 0.3479 0.2833 0.2833",
        URKL: "0.3260 0.3594 0.2677 0.2677",
        REINFORCE_UFKL: "0.3396 0.3625 0.2927 0.3083",
        REINFORCE_URKL: "0.3188 0.3417 0.2792 0.2938",
    },
    7: {
        "REINFORCE++-Baseline": "0.1250 0.1471 0.4926 0.5875",
        "REINFORCE++": "0.1691 0.1728 0.4778 0.6202",
        "GRPO": "0.1029 0.1177 0.4926 0.5594",
        "DAPO": "0.0993 0.1507 0.5163 0.5727",
        UFKL: "0.1397 0.2059 0.4688 0.5564",
        URKL: "0.1654 0.1654 0.4837 0.5801",
        REINFORCE_UFKL: "0.1360 0.1434 0.5074 0.5564",
        REINFORCE_URKL: "0.1140 0.1434 0.4674 0.5816",
    },
    8: {
        "GRPO": "0.6266 0.7250 0.1094 0.1406 0.0281 0.0948",
        "REINFORCE++": "0.7625 0.7664 0.0521 0.1177 0.0302 0.0740",
        "REINFORCE++-Baseline": "0.8711 0.8711 0.0990 0.1510 0.0656 0.0969",
        "DAPO": "0.8039 0.8734 0.0760 0.1240 0.0531 0.1063",
        "RPG-FKL": "0.8695 0.8836 0.1083 0.1490 0.0427 0.1083",
        "RPG-RKL": "0.8648 0.8672 0.1167 0.1469 0.0677 0.1240",
        UFKL: "0.8703 0.8703 0.0885 0.1427 0.0927 0.1177",
        URKL: "0.8258 0.8641 0.0875 0.1271 0.0677 0.0917",
        f"{REINFORCE}-FKL": "0.8727 0.8727 0.1208 0.1667 0.0573 0.0875",
        f"{REINFORCE}-RKL": "0.8305 0.8516 0.1125 0.1375 0.0490 0.0875",
        REINFORCE_UFKL: "0.8391 0.8602 0.1229 0.1458 0.0740 0.0979",
        REINFORCE_URKL: "0.8531 0.8531 0.1208 0.1500 0.0813 0.0938",
    },
}
# what panels (a) to (f) of figures 4 to 6 show by their captions, and by the text of section 5
PANELS = {"reward": "d", "entropy": "e", "response length": "f", "benchmarks": "abc"}
PANELS_OF_THE_TEXT = {"reward": "c", "entropy": "d", "response length": "e", "benchmarks": "ab"}
# the clip range of GRPO, lower and upper; the scripts: commit ec8e30b, recipe/rpg/7b/run_grpo_*.sh
GRPO_CLIP = {"section 5": (0.2, 0.2), "appendix H": (0.1, 0.1), "scripts": (0.2, 0.2)}
# figure 2: the sign of A that the caption says for its panels, twice
FIGURE_2 = {"for visualization": {"left": 1, "right": -1}, "cases": {"left": -1, "right": 1}}
FIGURE_2_TITLES = {"case A < 0": -1, "case A >= 0": 1}  # of its panels, with their examples


class Score(NamedTuple):
    """The two accuracies of one method on one benchmark."""

    table: int
    method: str
    benchmark: str
    last: float
    best: float


def scores(*tables: int) -> list[Score]:
    """Every pair of numbers of the tables, all by default."""
    found = []
    for table in tables or TABLES:
        for method, printed in TABLES[table].items():
            numbers = [float(x) for x in printed.split()]
            pairs = zip(BENCHMARKS[table], numbers[::2], numbers[1::2], strict=True)
            found += [Score(table, method, name, last, best) for name, last, best in pairs]
    return found


def column(table: int, benchmark: str, which: str) -> dict[str, float]:
    """One column of a table, ``which`` of ``"last"`` and ``"best"``: {method: accuracy}."""
    return {s.method: getattr(s, which) for s in scores(table) if s.benchmark == benchmark}


def columns(*tables: int) -> list[tuple[int, str, str]]:
    """(table, benchmark, last or best) of every column, of all tables by default."""
    return [(t, b, which) for t in tables or TABLES for b in BENCHMARKS[t] for which in ("last", "best")]
