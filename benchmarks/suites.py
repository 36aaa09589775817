"""The cases of the suites, in named groups. A process measures those of a group that share its settings.

To add a work: its inputs in `works`, its variants in `peers`, a group here, its goals in
`kl_book.speed_goals`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

from benchmarks.measure import DTYPES, Case
from benchmarks.peers import AUTO, FIVE, VARIANTS
from benchmarks.works import LINEAR
from kl_book.speed_goals import OURS

VOCAB, TOKENS = 151_936, 256  # where the goals are set
FEW = ("naive", "torch.compile", "ours", OURS, "ours, in place", "roof")
LIGER = ("Liger", "Liger, compiled")  # the naive products, a chunk at a time: minutes without bfloat16 units
ON_A_GPU = (AUTO, FIVE)  # variants that the table of processors leaves out
SHORT = ("naive", "torch.compile", "F.kl_div", "Liger JSD", "ours", OURS, "ours, in place", AUTO, FIVE)
SETTINGS = tuple(product((1, 2), ("default", "warm")))  # threads and allocator
GOALS_AT = (2, "default")  # memory is measured here only
ROUNDS = ((1 << 22, 7), (1 << 25, 3))  # for so many logits at most; else 1

Group = Callable[[], list[Case]]


def _rounds(tokens: int, vocab: int) -> int:
    return next((rounds for most, rounds in ROUNDS if tokens * vocab <= most), 1)


def _grid() -> list[Case]:
    """The reverse KL at every size, and against every peer at one."""
    found = []
    for tokens, vocab in [(128, 8_192), *product((32, 256, 1024), (8_192, 49_152, VOCAB))]:
        whole = (tokens, vocab) == (TOKENS, VOCAB)
        for (threads, allocator), dtype in product(SETTINGS, DTYPES):
            case = Case("reverse_kl", dtype, threads, allocator, tokens, vocab)
            memory = whole and (threads, allocator) == GOALS_AT
            rounds = 5 if whole and threads == GOALS_AT[0] else _rounds(tokens, vocab)
            every = tuple(name for name in VARIANTS[case.work] if name not in ON_A_GPU)
            found.append(case._replace(variants=every if whole else FEW, rounds=rounds, memory=memory))
    return found


def _others(*works: str, allocators: Iterable[str] = ("default",), hidden: int = 0, rounds: int = 4) -> Group:
    """Other works at the size of the goals; what a missing compiler costs is measured on the reverse KL."""

    def group() -> list[Case]:
        found = []
        for work, dtype, allocator in product(works, DTYPES, allocators):
            left_out = ("ours, eager", *ON_A_GPU, *(LIGER if dtype == "bfloat16" else ()))
            variants = tuple(name for name in VARIANTS[work] if name not in left_out)
            memory = allocator == "default"
            found.append(Case(work, dtype, 2, allocator, TOKENS, VOCAB, hidden, variants, rounds, memory))
        return found

    return group


def _on_gpu(
    *works: str,
    dtypes: Iterable[str] = ("bfloat16",),
    tokens: int = 8192,
    hidden: int = 0,
    eager: bool = False,
    only: Iterable[str] = (),
) -> Group:
    """The size of a training step; the frugal form saves next to nothing beside the gradient of a weight."""

    def group() -> list[Case]:
        left_out = ("ours, frugal", *(() if eager else ("ours, eager",)))
        case = Case("", tokens=tokens, vocab=VOCAB, hidden=hidden, rounds=7, memory=True, device="cuda")
        return [
            case._replace(
                work=work,
                dtype=dtype,
                variants=tuple(
                    name for name in VARIANTS[work] if name not in left_out and (not only or name in only)
                ),
            )
            for work, dtype in product(works, dtypes)
        ]

    return group


def _gpu_sizes() -> list[Case]:
    sizes = [(8192, 32_768), (8192, 262_144), (512, VOCAB), (2048, VOCAB)]
    return [Case("reverse_kl", "bfloat16", 1, "default", n, v, 0, FEW, 7, True, "cuda") for n, v in sizes]


def _gpu_numerics() -> list[Case]:
    """Gradients against float64 at a size that no block divides, large enough that "auto" compiles."""
    works = {"reverse_kl": 0, "forward_kl": 0, "jensen_shannon": 0, "logp_entropy": 0, "linear_kl": 64}
    return [
        Case(work, dtype, 1, "default", 67, 20_011, hidden, ("naive", AUTO), 1, False, "cuda")
        for (work, hidden), dtype in product(works.items(), DTYPES)
    ]


def _smoke() -> list[Case]:
    """Every work, tiny, without what is slow to import or to compile."""
    found = []
    for work, dtype in [("reverse_kl", "bfloat16"), *((work, "float32") for work in VARIANTS)]:
        quick = tuple(name for name, v in VARIANTS[work].items() if not (v.compiled or v.needs))
        hidden = 16 if work in LINEAR else 0
        found.append(Case(work, dtype, hidden=hidden, variants=quick, memory=True))
    return found


SUITES: dict[str, dict[str, Group]] = {
    "smoke": {"all": _smoke},
    "cpu": {
        "reverse KL": _grid,
        "other divergences": _others("forward_kl", "jensen_shannon", "pearson", "squared_hellinger"),
        "log-probs": _others("logp", "logp_entropy", allocators=("default", "warm")),
        "top-k": _others("top_k"),
        "hidden states": _others("linear_kl", hidden=896, rounds=2),
    },
    "gpu": {
        "reverse KL": _on_gpu("reverse_kl", dtypes=tuple(DTYPES), eager=True),
        "sizes": _gpu_sizes,
        "others": _on_gpu("forward_kl", "jensen_shannon", "logp", "logp_entropy", "top_k"),
        "hidden states": _on_gpu("linear_kl", hidden=4096),
    },
    "gpu_short": {
        "numerics": _gpu_numerics,
        "reverse KL": _on_gpu("reverse_kl", dtypes=tuple(DTYPES), tokens=4096, only=SHORT),
        "log-probs": _on_gpu("logp_entropy", tokens=4096),
        "hidden states": _on_gpu("linear_kl", tokens=4096, hidden=2048),
    },
}


def batches(suite: str, groups: Iterable[str] = ()) -> dict[str, list[Case]]:
    """What one process measures at a time, by name; with `groups`, only these."""
    found: dict[str, list[Case]] = {}
    for name, group in SUITES[suite].items():
        for case in group() if not groups or name in groups else ():
            found.setdefault(f"{name}, {case.threads} threads, {case.allocator}", []).append(case)
    return found
