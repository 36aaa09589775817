"""What emapg2026 prints of its experiments, as it is printed: data to compare with, never to build on.

Tables 2 and 4 give seven scores and their average, table 3 the scores of base model, GRPO and EMA-PG with the
relative improvement in percent. Keys of tables 2 and 4 are ends of the ids of their rows.
"""

from __future__ import annotations

from typing import NamedTuple

SETS = ("NQ", "TriviaQA", "PopQA", "HotpotQA", "2wiki", "Musique", "Bamboogle", "Avg.")
GENERAL, MULTI_HOP = SETS[:3], SETS[3:7]
GRPO, ANCHOR, FORWARD, REVERSE = "GRPO", "EMA-anchor", "plus-Topk-Forward", "plus-Topk-Reverse"
GAIN, INSTRUCT = "Improvement", "EMA-PG-Rev"

TABLE_2: dict[str, str] = {
    "CoT-3B-Inst": "0.106 0.288 0.108 0.149 0.244 0.020 0.024 0.134",
    "Search-o1-3B-Inst": "0.238 0.472 0.262 0.221 0.218 0.054 0.320 0.255",
    "RAG-3B-Inst": "0.348 0.544 0.387 0.255 0.226 0.047 0.080 0.270",
    "RAG-7B-Inst": "0.349 0.585 0.392 0.299 0.235 0.058 0.208 0.304",
    "before-RL-3B-Base": "0.060 0.122 0.076 0.047 0.051 0.009 0.048 0.059",
    "WARP": "0.114 0.197 0.116 0.103 0.140 0.014 0.056 0.106",
    "PPO": "0.406 0.587 0.435 0.284 0.273 0.049 0.088 0.303",
    GRPO: "0.421 0.583 0.413 0.297 0.274 0.066 0.128 0.312",
    ANCHOR: "0.468 0.624 0.445 0.345 0.277 0.084 0.194 0.348",
    FORWARD: "0.469 0.614 0.443 0.425 0.385 0.146 0.363 0.406",
    REVERSE: "0.479 0.631 0.467 0.441 0.401 0.163 0.331 0.416",
    GAIN: "13.8 8.2 13.1 48.5 46.3 147.0 158.6 33.3",
}
TABLE_4: dict[str, str] = {
    "before-RL": "0.205 0.427 0.277 0.199 0.200 0.044 0.153 0.215",
    "PPO": "0.341 0.545 0.378 0.324 0.319 0.103 0.264 0.325",
    GRPO: "0.397 0.565 0.391 0.331 0.310 0.124 0.232 0.336",
    INSTRUCT: "0.411 0.581 0.405 0.360 0.337 0.144 0.355 0.370",
    GAIN: "3.5 2.8 3.6 8.8 8.7 16.1 53.0 10.1",
}
TABLE_3: dict[str, str] = {
    "MATH500": "0.823 0.871 0.884 27",
    "AMC 2024": "0.499 0.656 0.686 19",
    "Minerva": "0.256 0.304 0.317 27",
    "AIME 2024": "0.306 0.400 0.446 49",
    "AIME 2025": "0.250 0.277 0.298 77",
    "OlympiadBench": "0.446 0.508 0.539 50",
    "Average": "0.430 0.503 0.528 34",
}
MATH_COLUMNS = ("Base", "GRPO", "EMA-PG", "relative")
MATH_SETS_OF_THE_TEXT = ("MATH500", "Minerva", "AIME 2024", "AIME 2025", "OlympiadBench")
MATH_SETS_OF_THE_CAPTION = "six"
SEARCH_SETS_OF_THE_TEXT = {
    "general": ("NQ", "TriviaQA", "PopQA"),
    "multi-hop": ("HotpotQA", "2wiki", "Musique", "Bamboogle"),
}


class Quote(NamedTuple):
    """A percentage in the text, and the cell of the table that it is taken from."""

    percent: str
    table: int
    row: str
    column: str


ABSTRACT: tuple[Quote, ...] = (  # and introduction, which adds Bamboogle
    Quote("50.8", 3, "OlympiadBench", "GRPO"),
    Quote("53.9", 3, "OlympiadBench", "EMA-PG"),
    Quote("29.7", 2, GRPO, "HotpotQA"),
    Quote("44.1", 2, REVERSE, "HotpotQA"),
    Quote("27.4", 2, GRPO, "2wiki"),
    Quote("40.1", 2, REVERSE, "2wiki"),
    Quote("12.8", 2, GRPO, "Bamboogle"),
    Quote("33.1", 2, REVERSE, "Bamboogle"),
)
SECTION_6: tuple[Quote, ...] = (
    Quote("50.8", 3, "OlympiadBench", "GRPO"),
    Quote("53.9", 3, "OlympiadBench", "EMA-PG"),
    Quote("10.6", 2, "WARP", "Avg."),
    Quote("31.2", 2, GRPO, "Avg."),
    Quote("34.8", 2, ANCHOR, "Avg."),
    Quote("40.6", 2, FORWARD, "Avg."),
    Quote("41.6", 2, REVERSE, "Avg."),
)
AVERAGE_GAIN: dict[str, str] = {"abstract": "33.3", "introduction": "33.3"}
PERIOD = {
    "source": "10",
    "cited code": "10",
    "cited coefficient": "0.995",
}  # commit 862932a, rl/main_latent.py
VOCABULARY = (100_000, 200_000)  # section 5.3: typical of modern language models
VOCABULARIES = {"Qwen2.5-3B": 151_936, "DeepSeek-R1-Distill-Qwen-1.5B": 151_936}  # rows of the embeddings
