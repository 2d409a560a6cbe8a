"""The page /docs in a real browser, where there is one: what is shown, filtered, and sent."""

import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from asterism.testing import Broker
from tests.conformance.http.conftest import PASSWORD, Queue

pytestmark = pytest.mark.process

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
WITHIN_S = 60.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*", "about:blank"),
)


def test_the_page_loads_nothing_from_elsewhere(http: httpx.Client) -> None:
    page = http.get("/docs").text
    assert "//" not in page.replace("  // ", "").replace("// $", "")
    assert 'href="/openapi.json"' in page
    assert "prefers-color-scheme: dark" in page


def test_every_operation_is_in_a_group(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    groups = [tag["name"] for tag in document["tags"]]
    assert groups == ["queue", "admin", "core", "service"]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method != "parameters":
                assert operation["tags"][0] in groups, path


class Page:
    """A page in a browser, driven from outside."""

    def __init__(self, talk: ClientConnection) -> None:
        self._talk = talk
        self._numbers = itertools.count(1)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._talk.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (told := json.loads(self._talk.recv(WITHIN_S))).get("id") != number:
            pass
        assert "error" not in told, told
        return dict(told["result"])

    def run(self, script: str) -> Any:
        """What a script comes to."""
        told = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, script: str, holds: Callable[[Any], bool] = bool) -> Any:
        deadline = time.monotonic() + WITHIN_S
        while not holds(found := self.run(script)):
            assert time.monotonic() < deadline, f"{script}: {found}"
            time.sleep(0.05)
        return found


@pytest.fixture(scope="module")
def page(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if BROWSER is None:
        pytest.skip("there is no browser")
    folder = tmp_path_factory.mktemp("browser")
    command = [BROWSER, f"--user-data-dir={folder}", *FLAGS]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port_of(folder, browser)
        (target,) = (
            each
            for each in httpx.get(f"http://127.0.0.1:{port}/json", timeout=WITHIN_S).json()
            if each["type"] == "page"
        )
        with connect(target["webSocketDebuggerUrl"], proxy=None, max_size=1 << 24) as talk:
            made = Page(talk)
            made.ask("Page.enable")
            made.ask("Page.navigate", url=f"{broker.http_url}/docs")
            made.until("document.querySelectorAll('.operation').length")
            yield made
    finally:
        browser.terminate()
        browser.wait(WITHIN_S)


def _port_of(folder: Path, browser: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        assert browser.poll() is None, "the browser has ended"
        try:
            return int((folder / "DevToolsActivePort").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            time.sleep(0.05)
    raise AssertionError("the browser does not say where it listens")


def test_the_page_shows_every_operation_of_the_document(page: Page, http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    told = {
        f"{method}{path}"
        for path, methods in paths.items()
        for method in methods
        if method != "parameters"
    }
    shown = page.run("[...document.querySelectorAll('.operation')].map(each => each.id)")
    assert set(shown) == told
    assert len(shown) == len(told)
    page.run("for (const each of document.querySelectorAll('details')) each.open = true")
    page.until(f"document.querySelectorAll('.inside form').length === {len(told)}")
    assert page.run("document.body.innerText.includes('undefined')") is False


def test_the_page_is_filtered_by_words(page: Page) -> None:
    page.ask("Input.dispatchKeyEvent", type="keyDown", key="/", text="/")
    assert page.run("document.activeElement.id") == "filter"
    shown = "[...document.querySelectorAll('.operation')].filter(each => each.offsetParent)"
    page.run("filter.value = 'patch complete'; filter.dispatchEvent(new Event('input'))")
    assert page.run(f"{shown}.map(each => each.id)") == [
        "patch/mq/{namespace}/messages/{id}/complete"
    ]
    page.run("filter.value = ''; filter.dispatchEvent(new Event('input'))")
    assert page.run(f"{shown}.length > 40") is True


def _send(page: Page, operation: str, fields: dict[str, str], body: str | None = None) -> str:
    """Fills in a form and sends it; what is shown of the answer."""
    page.run(f"held = document.getElementById({json.dumps(operation)}); held.open = true")
    page.until("held.querySelector('form')")
    for name, value in fields.items():
        label = f"[...held.querySelectorAll('label')].find(e => e.textContent === '{name}')"
        page.run(f"{label}.querySelector('input').value = {json.dumps(value)}")
    if body is not None:
        page.run(f"held.querySelector('textarea').value = {json.dumps(body)}")
    page.run("held.querySelector('button').click()")
    page.until("!held.querySelector('form > button').disabled")
    return str(page.run("held.querySelector('form > pre').textContent"))


def test_a_request_is_tried_from_the_page(page: Page, queue: Queue) -> None:
    named = {"namespace": queue.namespace}
    drafted = _send(page, "post/mq/{namespace}/messages", named)
    assert drafted.startswith("200 ")
    message = drafted.rsplit("\n", 1)[1]
    assert queue.stats() == {"drafting": 1}
    path = "put/mq/{namespace}/messages/{id}"
    assert _send(page, path, {**named, "id": message}, "from a page").startswith("204 ")
    assert queue.get(message).text == "from a page"


def test_the_password_of_the_page_is_sent(page: Page, queue: Queue) -> None:
    path, named = "put/admin/mq/{namespace}/config/unique", {"namespace": queue.namespace}
    assert _send(page, path, named).startswith("401 ")
    page.run(f"password.value = {json.dumps(PASSWORD)}")
    assert _send(page, path, named, "true").startswith("204 ")
    assert queue.admin("GET").json()["unique"] is True
