"""The two tables of the distillation chapters: pairs of models by name, and methods by name.

A chapter that shows the tables depends on them, and not on the code that trains.
"""

from __future__ import annotations

from typing import Any, NamedTuple

_COSTS: dict[str, Any] = {"placement": "reward", "level": "token"}
_ONE_COST: dict[str, Any] = {"placement": "reward", "level": "sequence"}
METHODS: dict[str, dict[str, Any]] = {
    # the estimate of every token is differentiated
    "token_k1": {"estimator": "k1"},
    "token_k2": {"estimator": "k2"},
    "token_k3": {"estimator": "k3"},
    "token_exact": {"estimator": "exact_kl"},
    "top_k": {"estimator": "top_k_reverse_kl", "k": 3},
    "top_k_published": {"estimator": "top_k_reverse_kl", "k": 3, "form": "published"},
    "top_32": {"estimator": "top_k_reverse_kl", "k": 32},
    "top_32_published": {"estimator": "top_k_reverse_kl", "k": 32, "form": "published"},
    "truncated_32": {"estimator": "truncated_kl(32, published)"},  # the head's sum as it is written
    "token_forward": {"estimator": "exact_forward_kl"},
    "token_jsd": {"estimator": "f_divergence(jensen_shannon)"},
    # the sampled log-ratio is a cost of its own token alone, as engines without logits of the teacher take it
    "token_reward": {"estimator": "k1", **_COSTS, "credit": 0.0},
    # the sampled log-ratio is a cost: of the whole sequence, or of a token and those before it
    "sequence": {"estimator": "k1", **_ONE_COST, "advantages": "none"},
    "sequence_leave_one_out": {"estimator": "k1", **_ONE_COST},
    "cumulative": {"estimator": "k1", **_COSTS},
    "cumulative_leave_one_out": {"estimator": "k1", **_COSTS, "center_costs": True},
    "discounted": {"estimator": "k1", **_COSTS, "credit": 0.9, "center_costs": True},
    # Rao-Blackwellized: the exact KL of a token is differentiated and charged to the tokens before it
    "sequence_exact": {"estimator": "exact_kl", "placement": "both", "center_costs": True},
}

# heads of eight dimensions: with fewer a single layer cannot learn to look a fixed number of places back
SMALL = {"hidden": 16, "layers": 1, "heads": 2}


class SetUp(NamedTuple):
    """How a pair is made.

    Attributes:
        words: What keeps the student from its teacher.
        task: Name of the task that the teacher knows.
        options: Of that task, without its seed.
        same_language: Whether the student was pretrained on the teacher's language, or on another one.
        teacher, student: Arguments of `pretrained`, without the seed.
        sharpness: The student's logits are multiplied by this.
    """

    words: str
    task: str
    options: dict[str, Any]
    same_language: bool
    teacher: dict[str, Any]
    student: dict[str, Any]
    sharpness: float = 1.0


class RealSetUp(NamedTuple):
    """A model that comes as a package, and a student that is made from it.

    Attributes:
        words: What keeps the student from its teacher.
        model: The teacher, a name for `load_model`.
        student: A function of `kl_book.lab.variants`.
        options: Of that function.
        task: Where prompts come from.
        task_options: Of the task.
    """

    words: str
    model: str
    student: str
    options: dict[str, Any]
    task: str
    task_options: dict[str, Any]


def _markov(**options: Any) -> dict[str, Any]:
    return {"letters": 12, "order": 2, "concentration": 0.3, "length": 12, **options}


_FLUENT: dict[str, Any] = {"steps": 250, "lr": 3e-3}
_PASSABLE: dict[str, Any] = {"steps": 150, "lr": 3e-3}
_SHORT: dict[str, Any] = {"max_new_tokens": 32}
SETUPS: dict[str, SetUp | RealSetUp] = {
    "capable student": SetUp(
        "it can say everything and speaks another language",
        "markov",
        _markov(),
        False,
        _FLUENT,
        _PASSABLE,
    ),
    "capacity gap": SetUp(
        "it is too small to learn one of the teacher's two styles",
        "two_styles",
        {"length": 8, "noise": 0.1},
        True,
        {"steps": 400, "lr": 3e-3},
        {"steps": 300, "lr": 1e-2, "size": SMALL},
    ),
    "confident mismatch": SetUp(
        "it speaks another language and is sure of it",
        "markov",
        _markov(concentration=0.05),
        False,
        _FLUENT,
        _PASSABLE,
        sharpness=2.0,
    ),
    "end of sequence": SetUp(
        "it speaks another language, and may stop at any time",
        "markov",
        _markov(length=16, hazard=0.1),
        False,
        _FLUENT,
        _PASSABLE,
    ),
    "four bits": RealSetUp(
        "it is the teacher, rounded to four bits", "smollm2", "quantized", {"bits": 4}, "questions", _SHORT
    ),
    "27 of 30 blocks": RealSetUp(
        "it is the teacher without three of its blocks",
        "smollm2",
        "with_layers",
        {"layers": [i for i in range(30) if i not in (18, 20, 22)]},
        "questions",
        _SHORT,
    ),
}
