"""Tasks: right answers by another route, exact laws by enumeration, environments step by step."""

import itertools
import math
import re

import pytest
import torch

from kl_companion.llm.tasks import TASKS, Example, language, make_task
from tests.support.llm.digits import seeded

EMBEDDED = ["sort", "arithmetic", "markov", "two_styles", "look_up"]
VARIANTS = [
    *((name, {}) for name in EMBEDDED),
    ("sort", {"digits": 3}),
    ("arithmetic", {"levels": (3, 4), "out_levels": ()}),
    ("markov", {"letters": 4, "length": 6, "hazard": 0.2}),
    ("look_up", {"entries": 2, "turns": 2}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_every_embedded_task_keeps_its_promises(name, options):
    task = make_task(name, **options)
    assert task.name == name
    assert len(set(task.alphabet)) == len(task.alphabet)
    for draw in (task.draw, task.draw_out):
        if draw is not None:
            assert draw(40, seeded(1)) == draw(40, seeded(1))
            examples = draw(40, seeded(1))
            assert len(examples) == 40
            assert set("".join(e.prompt + e.answer for e in examples)) <= set(task.alphabet)
    pairs = task.corpus(200, seeded(2))
    assert pairs == task.corpus(200, seeded(2)) != task.corpus(200, seeded(3))
    for prompt, completion in pairs:
        assert set(prompt + completion) <= set(task.alphabet)
        if task.ends:
            assert len(completion) <= task.max_new_tokens
        else:
            assert len(completion) == task.max_new_tokens
    if task.unique:  # the answer, and nothing else, is rewarded
        for example in task.draw(40, seeded(4)):
            wrong = [example.answer[:-1], example.answer + "0", "", example.answer[::-1] + "1"]
            assert task.reward(example.answer, example) == 1.0
            assert [task.reward(text, example) for text in wrong] == [0.0] * 4
            assert len(example.answer) + task.ends <= task.max_new_tokens


def test_the_tasks_that_are_registered():
    assert sorted(TASKS) == sorted([*EMBEDDED, "data", "questions"])


# Sorting and arithmetic -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3, 4])
@pytest.mark.parametrize("shots", [0, 2])
def test_arithmetic_in_words_asks_and_answers_the_same_problems(level, shots):
    plain = make_task("arithmetic", levels=[level], out_levels=())
    task = make_task("arithmetic", levels=[level], out_levels=(), shots=shots)
    longest = 0
    for asked, sign in zip(task.draw(300, seeded(3)), plain.draw(300, seeded(3)), strict=True):
        told = asked.prompt.removeprefix("What is ").removesuffix("?")
        told = told.replace(" plus ", "+").replace(" minus ", "-")
        assert f"{told}=" == sign.prompt
        assert asked.answer.replace(" ", "") == f"{told}={sign.answer}"
        assert eval(told) == int(sign.answer)
        assert asked.level == level
        assert (task.reward(asked.answer, asked), task.reward(sign.answer, asked)) == (1.0, 0.0)
        longest = max(longest, len(asked.answer))
    assert longest < task.max_new_tokens <= longest + 3  # a token per character and end-of-sequence fit
    assert (task.chat, task.unique, task.ends, task.alphabet) == (True, True, True, None)
    assert task.shots == (("What is 4 plus 5?", "4 + 5 = 9"), ("What is 17 minus 3?", "17 - 3 = 14"))[:shots]


def test_harder_arithmetic_in_words_fits_too():
    task = make_task("arithmetic", levels=[1], out_levels=[4], shots=1)
    assert max(len(e.answer) for e in task.draw_out(300, seeded())) < task.max_new_tokens


def test_questions_are_asked_without_a_reward():
    task = make_task("questions", max_new_tokens=7)
    assert (task.reward, task.chat, task.ends, task.max_new_tokens) == (None, True, True, 7)
    asked = [e.prompt for e in task.draw(32, seeded())]
    assert len(set(asked)) == 32  # each once, before any comes again
    assert (
        [e.prompt for e in task.draw(32, seeded())] == asked != [e.prompt for e in task.draw(32, seeded(1))]
    )


def test_sorted_answers_hold_the_same_digits_in_order():
    task = make_task("sort", digits=6)
    for draw in (task.draw, task.draw_out):
        for prompt, answer, _, _ in draw(300, seeded()):
            assert re.fullmatch("[0-9]{6}=", prompt)
            assert answer == "".join(d * prompt.count(d) for d in "0123456789")
    assert all(len(set(e.answer)) <= 3 for e in task.draw_out(300, seeded()))
    assert {d for e in task.draw_out(300, seeded()) for d in e.answer} == set("0123456789")
    assert sum(len(set(e.answer)) > 3 for e in task.draw(300, seeded())) > 200


def test_digits_are_uniform():
    text = "".join(e.answer for e in make_task("sort").draw(5000, seeded()))
    for digit in "0123456789":
        assert abs(text.count(digit) - 4000) < 4 * math.sqrt(40000 * 0.1 * 0.9)


def by_hand(prompt):
    return sum(int(term) for term in re.findall("[+-]?[0-9]+", prompt))


def test_arithmetic_is_right_and_graded():
    task = make_task("arithmetic", levels=(1, 2, 3, 4), out_levels=())
    seen = {1: set(), 2: set(), 3: set(), 4: set()}
    for prompt, answer, level, _ in task.draw(8000, seeded()):
        assert answer == str(by_hand(prompt))
        seen[level].add(prompt)
    assert task.draw_out is None
    shapes = {1: (1, 2), 2: (2, 2), 3: (3, 2), 4: (2, 3)}
    for level, prompts in seen.items():
        digits, count = shapes[level]
        for prompt in prompts:
            assert prompt.endswith("=")
            numbers = re.findall("[0-9]+", prompt)
            assert (max(map(len, numbers)), len(numbers)) == (digits, count)
    assert len(seen[1]) == 200  # every one of them
    assert {s for prompts in seen.values() for p in prompts for s in p if not s.isdigit()} == set("+-=")


def test_the_longest_answers_fit():
    extremes = ["999+999=", "0-999=", "99+99+99=", "0-99-99=", "100-999="]
    most = make_task("arithmetic").max_new_tokens
    assert max(len(str(by_hand(prompt))) for prompt in extremes) + 1 == most


def test_levels_out_of_domain():
    task = make_task("arithmetic", levels=[2], out_levels=[4, 1])
    assert {e.level for e in task.draw(50, seeded())} == {2}
    assert {e.level for e in task.draw_out(50, seeded())} == {1, 4}
    levels = [e.level for e in make_task("arithmetic").draw(2000, seeded())]
    assert abs(levels.count(1) - 1000) < 4 * math.sqrt(500)


# Look-up --------------------------------------------------------------------------------------------------


def play(task, example, choices):
    """What a policy that writes ``choices`` sees in the end, and which characters it wrote itself."""
    text, own = "", []
    for character in choices:
        text, own = text + character, [*own, True]
        inserted = task.observe(text, example)
        if inserted is not None:
            text, own = text + inserted, own + [False] * len(inserted)
    return text, own


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_policy_that_asks_gets_the_answer(turns):
    task = make_task("look_up", entries=5, turns=turns)
    pairs, examples = task.corpus(50, seeded()), task.draw(50, seeded())
    for example, (prompt, completion) in zip(examples, pairs, strict=True):
        letters = example.prompt.removesuffix(":")
        digits = [int(example.hidden["abcde".index(letter)]) for letter in letters]
        questions = "".join(f"?{letter}" for letter in letters)
        text, own = play(task, example, f"{questions}!{sum(digits) % 10}")
        assert prompt == example.prompt
        assert len(set(letters)) == example.level == turns
        assert text == completion
        assert [not o for o in own] == task.observed(completion)
        without = "".join(c for c, o in zip(text, own, strict=True) if o)
        assert task.reward(text, example) == task.reward(without, example) == 1.0


def test_what_the_environment_does_not_answer():
    task = make_task("look_up", entries=3, turns=2)
    example = Example("ab:", "5", 2, "142")
    assert task.observe("?a", example) == "=1;"
    assert task.observe("?a=1;?c", example) == "=2;"
    assert task.observe("?a=1;?a=1;?b", example) is None  # two letters, two questions
    assert [task.observe(text, example) for text in ("", "a", "?", "?a=", "?a=1;", "?z", "?1")] == [None] * 7
    assert play(task, example, "0?b?a!")[0] == "0?b=4;?a=1;!"
    rewards = {"!5": 1.0, "!4!5": 1.0, "!6": 0.0, "5": 0.0, "!5;": 0.0, "!": 0.0, "": 0.0}
    assert {text: task.reward(text, example) for text in rewards} == rewards


def test_guessing_is_right_one_time_in_ten():
    task = make_task("look_up")
    examples = task.draw(2000, seeded())
    right = sum(task.reward("!3", example) for example in examples)
    assert abs(right - 200) < 4 * math.sqrt(180)
    assert all(len(example.prompt) == 4 for example in task.draw_out(20, seeded()))
    assert make_task("look_up", entries=2, turns=2).draw_out is None


# Languages ------------------------------------------------------------------------------------------------


def texts_of(law, hazard):
    """Every possible completion of a Markov language."""
    lengths = range(law.length + 1) if hazard else [law.length]
    return ["".join(t) for n in lengths for t in itertools.product(law.symbols, repeat=n)]


def probability(law, text, hazard):
    """A text's probability by the definition: contexts looked up letter by letter, no logarithm."""
    total, size = 1.0, len(law.symbols)
    for t, letter in enumerate(text):
        context = [law.symbols.index(text[s]) if s >= 0 else size for s in range(t - law.order, t)]
        row = law.table
        for place in context:
            row = row[place]
        total *= (1 - (hazard or 0)) * row[law.symbols.index(letter)].item()
    return total * (hazard if len(text) < law.length else 1)


MARKOV = [(order, hazard) for order in (0, 1, 2, 3) for hazard in (None, 0.3)]


@pytest.mark.parametrize(("order", "hazard"), MARKOV)
def test_a_markov_language_by_enumeration(order, hazard):
    law = language(make_task("markov", letters=3, order=order, length=4, hazard=hazard, seed=5))
    texts = texts_of(law, hazard)
    p = [probability(law, text, hazard) for text in texts]
    logp = [law.logp(text) for text in texts]
    assert [math.exp(x) for x in logp] == pytest.approx(p, rel=1e-12, abs=1e-300)
    assert math.fsum(p) == pytest.approx(1, abs=1e-14)
    assert law.entropy() == pytest.approx(-math.fsum(x * math.log(x) for x in p if x), abs=1e-13)
    tokens = [min(len(text) + 1, law.length) if hazard else law.length for text in texts]
    assert law.tokens() == pytest.approx(math.fsum(a * b for a, b in zip(p, tokens, strict=True)), abs=1e-13)
    for prefix in ("", "a", "cb", "cba"):  # the next token is the ratio of two sums over texts
        ahead = law.next_logp(prefix).exp()
        here = math.fsum(x for x, t in zip(p, texts, strict=True) if t.startswith(prefix))
        for column, letter in enumerate(law.symbols):
            there = math.fsum(x for x, t in zip(p, texts, strict=True) if t.startswith(prefix + letter))
            assert ahead[column].item() == pytest.approx(there / here, abs=1e-12)
        assert len(ahead) == 3 + (hazard is not None)
        assert ahead.sum().item() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("hazard", [None, 0.3])
def test_the_corpus_has_the_frequencies_of_the_law(hazard):
    n = 20000
    task = make_task("markov", letters=3, order=2, length=3, hazard=hazard, concentration=0.5, seed=2)
    law = language(task)
    drawn = [completion for _, completion in task.corpus(n, seeded())]
    assert {prompt for prompt, _ in task.corpus(10, seeded())} == {""}
    for text in texts_of(law, hazard):
        p = probability(law, text, hazard)
        assert abs(drawn.count(text) - n * p) <= 4 * math.sqrt(n * p * (1 - p)) + 1e-6 * n
    assert set(drawn) <= set(texts_of(law, hazard))


def test_a_nearly_certain_language_never_writes_what_is_impossible(monkeypatch):
    task = make_task("markov", letters=12, concentration=0.001, length=16, seed=0)
    law = language(task)
    assert (law.table == 0).any()
    assert all(math.isfinite(law.logp(text)) for _, text in task.corpus(60, seeded()))
    # the least uniform falls on the first letter that is possible
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.zeros(*shape, dtype=torch.float64))
    assert (law.table[-1, -1, 0] == 0).item()
    assert math.isfinite(law.logp(task.corpus(1, seeded())[0][1]))


def test_languages_of_the_size_of_the_experiments():
    wide, sharp = (language(make_task("markov", concentration=c)) for c in (0.3, 0.05))
    assert 1.4 < wide.entropy() / 16 < 1.8
    assert sharp.entropy() / 16 < 0.7
    table = wide.table
    assert table.shape == (13, 13, 12)
    assert (table.sum(-1) - 1).abs().max() < 1e-14
    other = language(make_task("markov", seed=1)).table
    assert (table - other).abs().max() > 0.5
    assert torch.equal(table, language(make_task("markov")).table)
    ends = language(make_task("markov", length=24, hazard=0.08))
    assert ends.tokens() == pytest.approx((1 - 0.92**24) / 0.08, abs=1e-12)
    assert ends.next_logp("ab")[-1].exp().item() == pytest.approx(0.08)


def test_what_a_markov_language_cannot_say():
    law = language(make_task("markov", letters=3, length=4))
    assert [law.logp(text) for text in ("", "abc", "abcab", "abcz")] == [-math.inf] * 4
    with pytest.raises(ValueError, match="'z' is not one of the letters abc"):
        law.next_logp("az")
    with pytest.raises(ValueError, match="a Markov language has none"):
        law.logp("abca", "b")


def written(law, prompt, style):
    """What a style writes without noise, by the definition."""
    letters = law.symbols.replace("A", "").replace("B", "")
    if style == "A":
        return prompt
    cycle = prompt + prompt[0]
    return "".join(
        letters[law.table[letters.index(cycle[t]), letters.index(cycle[t + 1])]] for t in range(len(prompt))
    )


@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_two_styles_by_enumeration(noise):
    law = language(make_task("two_styles", length=3, letters=3, noise=noise, seed=1))
    for prompt in ("abc", "cca"):
        total, entropy = 0.0, 0.0
        for style, letters in itertools.product("AB", itertools.product("abc", repeat=3)):
            right = written(law, prompt, style)
            wrong = sum(a != b for a, b in zip(letters, right, strict=True))
            p = 0.5 * (1 - noise) ** (3 - wrong) * (noise / 2) ** wrong
            found = math.exp(law.logp(style + "".join(letters), prompt))
            assert found == pytest.approx(p, rel=1e-13, abs=1e-300)
            total += found
            entropy -= p * math.log(p) if p else 0
        assert total == pytest.approx(1, abs=1e-13)
        assert law.entropy() == pytest.approx(entropy, abs=1e-13)
    assert written(law, "abc", "B") == law.right("abc", "B")
    assert law.next_logp("B", "abc").exp().sum().item() == pytest.approx(1, abs=1e-14)


def test_two_styles_are_drawn_as_the_law_says():
    task = make_task("two_styles")
    law, n = language(task), 2000
    pairs = task.corpus(n, seeded())
    assert abs(sum(text[0] == "A" for _, text in pairs) - n / 2) < 4 * math.sqrt(n / 4)
    for style in "AB":
        mine = [(prompt, text) for prompt, text in pairs if text[0] == style]
        letters = [pair for p, t in mine for pair in zip(t[1:], written(law, p, style), strict=True)]
        wrong = sum(a != b for a, b in letters)
        assert abs(wrong - 0.1 * 8 * len(mine)) < 4 * math.sqrt(0.72 * len(mine))
    # noise is one of the other letters, each as often
    noise = [(ord(b) - ord(a)) % 12 for p, t in pairs if t[0] == "A" for a, b in zip(p, t[1:], strict=True)]
    counts = [noise.count(shift) for shift in range(1, 12)]
    assert max(counts) - min(counts) < 8 * math.sqrt(sum(counts) / 11)
    assert law.logp("Bab", "abcdefgh") == law.logp("xabcdefgh", "abcdefgh") == -math.inf
    assert law.logp("Aabcdefgz", "abcdefgh") == -math.inf


# Bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arithmetic", {"levels": (1, 3)}, "level 3 is in levels and in out_levels"),
    ],
)
def test_bad_options(as_installed, name, options, message):
    with pytest.raises(ValueError, match=message):
        make_task(name, **options)


def test_bad_questions_to_a_law():
    with pytest.raises(ValueError, match="task 'sort' has no exact law"):
        language(make_task("sort"))
