"""A real browser without a window, where there is one, driven from outside."""

import contextlib
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

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
WITHIN_S = 60.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*", "about:blank"),
)


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
        """What a script comes to, or what it promises."""
        told = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def until(self, script: str, holds: Callable[[Any], bool] = bool) -> Any:
        deadline = time.monotonic() + WITHIN_S
        while not holds(found := self.run(script)):
            assert time.monotonic() < deadline, f"{script}: {found}"
            time.sleep(0.05)
        return found

    def open(self, url: str) -> None:
        """Goes to a page, as if its address had been typed."""
        self.ask("Page.navigate", url=url)
        self.until("document.readyState", lambda state: state == "complete")


@contextlib.contextmanager
def browsing(folder: Path, *flags: str) -> Iterator[Page]:
    if BROWSER is None:
        pytest.skip("no browser is installed: .ci/run installs chromium where it can")
    command = [BROWSER, f"--user-data-dir={folder}", *flags, *FLAGS]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = _port_of(folder, browser)
        (target,) = (
            each
            for each in httpx.get(f"http://127.0.0.1:{port}/json", timeout=WITHIN_S).json()
            if each["type"] == "page"
        )
        with connect(target["webSocketDebuggerUrl"], proxy=None, max_size=1 << 24) as talk:
            page = Page(talk)
            page.ask("Page.enable")
            yield page
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
