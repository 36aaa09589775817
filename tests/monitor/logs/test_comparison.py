"""Two logs side by side: their numbers per answer, and what cannot be compared."""

from kl_companion.monitor.logs import LogOptions, log_report
from kl_companion.monitor.logs.comparison import comparison_notes, comparison_rows, comparison_text
from tests.support.small_logs import small_log

COLUMNS = {"kl": "0.05 x 50", "completion_length": "100 x 50", "reward": "0.6 x 25, 1.6 x 25"}
SHORT = {**COLUMNS, "reward_std": "0.8 x 50"}
LONG = {**SHORT, "completion_length": "400 x 50"}


def report(columns, **options):
    return log_report(small_log(columns), LogOptions(**options))


def test_prices_per_answer():
    rows = {name: (a, b) for name, a, b in comparison_rows(report(SHORT, beta=0.1), report(LONG, beta=0.1))}
    assert rows["nats per token"] == ("0.05 to 0.05", "0.05 to 0.05")
    assert rows["nats per answer"] == ("5 to 5", "20 to 20")
    assert rows["price, σ"] == ("0.5", "2")
    assert rows["gain, σ"] == ("1.25 ± 0", "1.25 ± 0")
    assert rows["wrong"] == ("–", "worse_than_the_start")


def test_notes():
    k3, own = report(SHORT).quantities, report({"my_kl": "0.1 x 9"}).quantities
    k1 = report({"critic/kl": "0.1 x 9", "actor/ppo_kl": "0 x 9"}).quantities
    none = report({"loss": "0.1 x 9"}).quantities
    assert comparison_notes(k3, k3) == []
    assert "no KL to a reference" in comparison_notes(k3, none)[0]
    assert "own key" in comparison_notes(k3, own)[0]
    assert "kl is K3 and critic/kl is K1" in comparison_notes(k3, k1)[0]
    text = comparison_text(report(SHORT), report({"my_kl": "0.1 x 9"}), ("a", "b"))
    assert text.splitlines()[0].split() == ["a", "b"]
    assert max(map(len, text.splitlines())) <= 80
