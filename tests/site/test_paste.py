"""Paste your loss, in a browser: the command line's verdict, by keyboard, from links, and when it fails."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from html import unescape
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import pytest

from kl_companion.auditing import audit
from kl_companion.auditing.reading.sources import SeveralLosses, pasted_loss
from tests.support.extensions import extension
from tests.support.site import accessibility, paste
from tests.support.site import browser as browsers
from tests.support.verdicts import by_command_line, difference, requests

SITE = paste.SITE
MB = 1_000_000
K3 = """def kl_loss(logps, ref_logps, mask):
    kl = (ref_logps - logps).exp() - (ref_logps - logps) - 1
    return (kl * mask).sum() / mask.sum()
"""
K2 = "kl = 0.5 * (logp - ref_logp) ** 2\nloss = loss + 0.1 * (kl * mask).sum(-1).mean()\n"
ENDLESS = "def kl_loss(logp, ref_logp):\n    while True:\n        pass\n"
SIX = [  # whole distributions, likeliest tokens, a detached ratio, classes, a method of a trainer
    "areal.joint_distillation_term",
    "likeliest.topk_kl_div",
    "mistakes.k3_detached_in_the_ratio",
    "openrlhf.PolicyLoss.forward",
    "torchtune.ForwardKLLoss.forward",
    "trl.GRPOTrainer._compute_loss",
]


@pytest.fixture(scope="module")
def base(base: str) -> str:
    paste.needs_python()
    return base


def compared(session: Any, base: str, losses: list[str]) -> list[str]:
    """What the page and the command line say differently of losses of the corpus."""
    wrong = []
    for name in losses:
        data = paste.ask(session, base, seconds=120, **requests()[name])
        if "card" not in data:
            wrong.append(f"{name}: {data}")
            continue
        found, want = {**json.loads(data["card"]), "versions": None}, by_command_line(name)
        apart = difference(found, want)
        assert data["headline"] == found["headline"]
        assert data["level"] == found["level"]
        wrong += [f"{name}{apart}"] if apart else []
    return wrong


class Noting(browsers.Quiet):
    """A server that notes what it is asked for: a page's own log has no word of what its threads load."""

    asked: ClassVar[list[str]] = []

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Keep the path."""
        self.asked.append(self.path.partition("?")[0])


def test_nothing_is_loaded_before_it_is_asked_for_and_then_not_too_much(session: Any) -> None:
    """No host but this one answers the browser: what it shows came from the site's own files."""

    def of_python() -> set[str]:
        return {path.rpartition("/")[2] for path in Noting.asked if path.startswith("/_python/")}

    files = sorted((SITE / "_python").iterdir())
    with browsers.served(SITE, Noting) as base:
        session.get(f"{base}/{paste.PAGE}")
        session.execute_async_script("setTimeout(arguments[0], 300)")
        assert "/_static/paste/paste.js" in Noting.asked
        assert of_python() == set()
        session.find_element("css selector", ".kl-paste [type=submit]").click()
        said = set()
        while not session.execute_script(paste.DATA):
            said.add(session.execute_script("return document.querySelector('.kl-state').textContent"))
            time.sleep(0.02)
        assert paste.finished(session)["headline"] == "forward KL"
        assert of_python() == {path.name for path in files}
    assert any(re.fullmatch(r"Loading Python: [\d.]+ of 1[345]\.\d MB", text) for text in said)
    assert any(text.startswith("Enumerating: ") for text in said)
    assert sum(path.stat().st_size for path in files) < 25 * MB


def test_the_page_says_how_much_is_loaded() -> None:
    text = unescape((SITE / paste.PAGE).read_text(encoding="utf-8"))
    assert re.search(r"package from this site, 1[3-5] MB", re.sub(r"\s+", " ", text))


def test_six_losses_of_the_corpus(session: Any, base: str) -> None:
    assert compared(session, base, SIX) == []


@pytest.mark.reliability
def test_every_loss_of_the_corpus(session: Any, base: str) -> None:
    names = list(requests())
    assert len(names) >= 40
    assert compared(session, base, names) == []


def test_a_link_runs_and_its_verdict_can_be_read(session: Any, base: str) -> None:
    data = paste.ask(session, base, K2, want="reverse_kl")
    assert (data["headline"], data["level"]) == ("reverse KL", "token")
    card = json.loads(data["card"])
    assert card["terms"] == [
        {"objective": "token_reverse_kl", "coefficient": pytest.approx(0.1), "unit": "", "sign": 1}
    ]
    assert card["met"] is True
    form = "return document.querySelector('.kl-paste form').elements[arguments[0]].value"
    assert session.execute_script(form, "code") == K2
    assert session.execute_script(form, "example") == ""
    link = session.execute_script("return location.href")
    session.get("about:blank")
    session.get(link)
    assert paste.finished(session)["card"] == data["card"]


@pytest.mark.parametrize("code", ["%%%", "_w"])
def test_an_address_without_readable_code_says_so(session: Any, base: str, code: str) -> None:
    session.get("about:blank")
    session.get(f"{base}/{paste.PAGE}#code={code}&run=1")
    assert "expected #code= with base64url" in paste.answered(session)["error"]


def test_by_keyboard_alone(session: Any, base: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    session.get("about:blank")
    session.get(f"{base}/{paste.PAGE}")
    area = session.find_element("css selector", ".kl-paste textarea")
    session.execute_script("document.querySelector('[name=want]').focus()")
    ActionChains(session).send_keys(Keys.TAB).perform()
    assert session.switch_to.active_element == area
    keys = ActionChains(session).key_down(Keys.CONTROL).send_keys("a").key_up(Keys.CONTROL)
    keys.send_keys("def f(logp, ref_logp):", Keys.ENTER, "return logp - ref_logp").perform()
    assert area.get_property("value") == "def f(logp, ref_logp):\n    return logp - ref_logp"
    colored = session.execute_script("return document.querySelector('.kl-editor code').textContent")
    assert colored == area.get_property("value") + "\n"
    ActionChains(session).send_keys(Keys.TAB).perform()
    assert session.switch_to.active_element.get_attribute("type") == "submit"
    ActionChains(session).send_keys(Keys.ENTER).perform()
    assert paste.finished(session)["headline"] == "no expected gradient"
    assert "minimizes nothing" in session.find_element("css selector", ".kl-minimizes").text
    session.execute_script("document.querySelector('.kl-paste textarea').focus()")
    text = ActionChains(session).send_keys("\n    # typed").perform
    text()
    ActionChains(session).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(Keys.CONTROL).perform()
    assert paste.finished(session)["headline"] == "no expected gradient"


def test_of_several_functions_one_is_clicked(session: Any, base: str) -> None:
    data = paste.ask(session, base, K3 + K3.replace("kl_loss", "other_loss").replace("- 1", "- 2"))
    assert "several functions" in data["error"]
    session.find_elements("css selector", ".kl-choices button")[1].click()
    assert json.loads(paste.finished(session)["card"])["name"] == "other_loss"
    assert "name=other_loss" in session.current_url


def test_names_that_say_nothing_are_asked_for(session: Any, base: str) -> None:
    from selenium.webdriver.support.ui import Select

    data = paste.ask(session, base, "def f(x_logps, y_logps):\n    return (x_logps - y_logps) ** 2 / 2\n")
    assert "x_logps=ROLE" in data["error"]
    for name, role in (("x_logps", "logp"), ("y_logps", "ref_logp")):
        Select(session.find_element("css selector", f"#verdict [name={name}]")).select_by_value(role)
    session.find_element("css selector", "#verdict > button").click()
    assert paste.finished(session)["headline"] == "reverse KL"
    assert "map=x_logps%3Dlogp%2C+y_logps%3Dref_logp" in session.current_url


def test_what_the_page_has_not_is_named_with_the_command(session: Any, base: str) -> None:
    data = paste.ask(session, base, K3.replace("(kl *", "(torch.linalg.pinv(kl) *"))
    assert re.search(r"linalg\.pinv does not run in this page.* audit loss\.py:NAME", data["error"])


def test_an_endless_loop_is_stopped_and_the_page_lives(session: Any, base: str) -> None:
    assert 'data-patience="30"' in (SITE / paste.PAGE).read_text(encoding="utf-8")
    paste.ask(session, base, K3)
    session.execute_script("document.querySelector('.kl-paste').dataset.patience = '2'")
    data = paste.ask(session, base, ENDLESS)
    assert data["error"].startswith("Stopped: nothing came for 2 seconds. A loop in it may never end")
    assert paste.ask(session, base, K3, want="forward_kl")["headline"] == "forward KL"


def test_a_running_loss_can_be_stopped(session: Any, base: str) -> None:
    session.get("about:blank")
    session.get(paste.address(base, ENDLESS))
    stop = session.find_element("css selector", "[data-stop]")
    assert stop.is_displayed()
    stop.click()
    assert session.find_element("css selector", ".kl-state").text == "Stopped."
    assert not stop.is_displayed()


@pytest.mark.parametrize("width", browsers.SIZES)
def test_a_verdict_fits_its_page_and_is_read_aloud(session: Any, base: str, width: str) -> None:
    browsers.resize(session, browsers.SIZES[width])
    paste.ask(session, base, K3, want="reverse_kl", set="")
    shown = "return document.querySelector('.kl-field svg path.kl-mine').getAttribute('d').length"
    assert session.execute_script(shown) > 1000
    assert session.execute_script("return document.querySelector('.kl-remedy').textContent").count("+ ") >= 1
    assert accessibility.in_both_themes(session) == []
    browsers.resize(session, browsers.SIZES["desktop"])


def test_the_first_page_answers_too_and_keeps_its_address(session: Any, base: str) -> None:
    session.get(f"{base}/book/intro.html")
    session.find_element("css selector", ".kl-paste [type=submit]").click()
    assert paste.finished(session)["headline"] == "forward KL"
    assert session.current_url == f"{base}/book/intro.html"


def test_every_example_of_the_menu_has_a_verdict() -> None:
    for entry in extension("kl_paste").examples():
        request = {"name": None, "set": "", **entry}
        found = audit(
            pasted_loss(request["code"]),
            want=entry["want"],
            options=dict([request["set"].split("=")] if request["set"] else []),
        )
        assert found.main.matches or found.main.zero, entry["title"]


def test_without_a_server_the_page_says_what_to_do(session: Any) -> None:
    session.get((SITE / paste.PAGE).as_uri())
    session.find_element("css selector", ".kl-paste [type=submit]").click()
    assert "python -m http.server" in paste.answered(session)["error"]


def test_without_python_the_page_says_what_to_do(session: Any, base: str) -> None:
    session.get(f"{base}/{paste.PAGE}#")
    session.execute_script("document.querySelector('.kl-paste').dataset.bytes = '0'")
    session.find_element("css selector", ".kl-paste [type=submit]").click()
    assert "built without Python for the browser" in paste.answered(session)["error"]


def test_what_the_browser_gets_is_what_was_pinned() -> None:
    paste.needs_python()
    pinned = extension("kl_npm").PYODIDE.files
    there = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (SITE / "_python").iterdir()
    }
    (archive,) = there.keys() - pinned.keys()
    assert re.fullmatch(r"package-[0-9a-f]{16}\.zip", archive)
    assert {name: there[name] for name in pinned} == pinned
    assert f'data-archive="{archive}"' in (SITE / paste.PAGE).read_text(encoding="utf-8")


def links() -> dict[str, str]:
    """The code of every "Try it" link, by its page and number."""
    found = {}
    for path in sorted(SITE.glob("book/**/*.html")):
        text = path.read_text(encoding="utf-8")
        for i, link in enumerate(re.findall(r'class="kl-try"><a href="([^"]+)"', text)):
            page, _, fields = unescape(link).partition("#")
            assert (path.parent / page).resolve() == (SITE / paste.PAGE).resolve()
            code = parse_qs(fields)["code"][0]
            found[f"{path.stem}-{i}"] = base64.urlsafe_b64decode(code + "=" * (-len(code) % 4)).decode()
    return found


@pytest.mark.parametrize(("place", "code"), links().items(), ids=lambda x: x if "\n" not in x else "")
def test_code_with_a_link_to_the_editor_has_a_verdict(place: str, code: str) -> None:
    names: list[str | None] = [None]
    try:
        pasted_loss(code)
    except SeveralLosses as error:
        names = list(error.names)
    for name in names:
        mapped = {"x_logps": "logp", "y_logps": "ref_logp"} if name == "named_by_letter" else {}
        settings = {"beta": 1.0} if mapped else {}
        found = audit(pasted_loss(code, name), roles=mapped, options=settings, off_policy=False, scale=1.0)
        assert found.main.matches or found.main.zero, (place, name)


def test_several_chapters_have_links() -> None:
    pages = {Path(place).name.rpartition("-")[0] for place in links()}
    assert len(pages) >= 6
