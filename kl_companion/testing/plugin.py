"""The plugin of pytest: losses decorated by `minimizes` or `maximizes` are tests; fixtures ask for audits.

It is loaded whenever pytest starts, and loads torch only when an audit runs.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from kl_companion.ending import no_exit
from kl_companion.testing.expecting import Expected, expectations

if TYPE_CHECKING:
    from kl_companion.auditing.judgment.verdict import Audit
    from kl_companion.auditing.updates.record import UpdateAudit

_MARKER = "kl_audit"
_FIXTURES = {"kl_audit", "kl_audit_update"}


def pytest_configure(config: pytest.Config) -> None:
    """Say what the marker of these tests means."""
    config.addinivalue_line("markers", f"{_MARKER}: asks kl_companion what a loss minimizes")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """One test for each line `minimizes` above a loss."""
    if not (found := expectations(obj)):
        return None
    seen: Counter[str] = Counter()
    items: list[pytest.Item] = []
    for expected in reversed(found):  # as they are read, from the top
        seen[expected.title] += 1
        again = f"-{seen[expected.title]}" if seen[expected.title] > 1 else ""
        title = f"{name}[{expected.title}{again}]"
        items.append(_Audited.from_parent(collector, name=title, loss=obj, expected=expected))
    return items


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that ask for an audit."""
    for item in items:
        if isinstance(item, _Audited) or _FIXTURES & {*getattr(item, "fixturenames", ())}:
            item.add_marker(_MARKER)


class _Audited(pytest.Item):
    """The test of one decorated loss."""

    def __init__(self, *, loss: Any, expected: Expected, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.loss, self.expected = loss, expected
        self.own_markers.extend(vars(loss).get("pytestmark", ()))  # a known failure, a reason to skip

    def runtest(self) -> None:
        """Audit it."""
        asked = self.expected
        if asked.update:
            _judged_update(self.config, self.loss, asked.want, dict(asked.arguments))
        else:
            _judged(self.config, self.loss, asked.want, asked.stale, dict(asked.arguments))

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Where the loss stands, if that is in this file."""
        line = None
        try:
            if inspect.getsourcefile(inspect.unwrap(self.loss)) == str(self.path):
                line = inspect.getsourcelines(self.loss)[1] - 1
        except (OSError, TypeError):
            pass
        return self.path, line, self.name


@pytest.fixture
def kl_audit(request: pytest.FixtureRequest) -> Callable[..., Audit]:
    """``kl_audit(loss, want=..., stale=False, **arguments)``: the `Audit`; fails where ``want`` is not met.

    The arguments are those of `kl_companion.testing.minimizes`; without ``want`` nothing is judged.
    """

    def ask(loss: Any, want: str | None = None, *, stale: bool | None = False, **arguments: Any) -> Audit:
        __tracebackhide__ = True
        return _judged(request.config, loss, want, stale, arguments)

    return ask


@pytest.fixture
def kl_audit_update(request: pytest.FixtureRequest) -> Callable[..., UpdateAudit]:
    """``kl_audit_update(loss, want=..., **arguments)``: the `UpdateAudit`; fails where ``want`` is not met.

    The arguments are those of `kl_companion.testing.maximizes`; without ``want`` nothing is judged.
    """

    def ask(loss: Any, want: str | None = None, **arguments: Any) -> UpdateAudit:
        __tracebackhide__ = True
        return _judged_update(request.config, loss, want, arguments)

    return ask


def _judged(
    config: pytest.Config, loss: Any, want: str | None, stale: bool | None, arguments: dict[str, Any]
) -> Audit:
    """The audit; the test fails with the verdict where ``want`` is not met, or with a refusal's own words."""
    __tracebackhide__ = True
    from kl_companion.auditing import audit

    found: Audit = _asked(config, want, lambda: audit(loss, want=want, off_policy=stale, **arguments))
    return found


def _judged_update(
    config: pytest.Config, loss: Any, want: str | None, arguments: dict[str, Any]
) -> UpdateAudit:
    """The same of a whole update."""
    __tracebackhide__ = True
    from kl_companion.auditing.updates.audit import audit_update

    found: UpdateAudit = _asked(config, want, lambda: audit_update(loss, want=want, **arguments))
    return found


def _asked(config: pytest.Config, want: str | None, ask: Callable[[], Any]) -> Any:
    """The verdict; the test fails with the card of one that is not as wanted, or with a refusal."""
    __tracebackhide__ = True
    import torch

    from kl_companion.auditing.judgment.card import card

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices of a few entries: threads only wait for each other
    text = None
    try:
        with no_exit():
            found = ask()
        if found.met is False:
            verdict = card(found, details=config.get_verbosity() > 0, height=None)
            text = f"not {want}: {found.sentence}\n\n{verdict}"  # the first line is the summary's
    except ValueError as error:
        text = str(error)
    except SystemExit as error:  # a status of the loss's own would end the tests
        text = f"the loss called sys.exit({error.code!r}), expected one that returns a number"
    finally:
        torch.set_num_threads(threads)
    if text is not None:
        pytest.fail(text, pytrace=False)
    return found
