"""The page /docs in a real browser, where there is one: what is shown, filtered, and sent."""

import json
from collections.abc import Iterator

import httpx
import pytest

from asterism.testing import Broker
from tests.conformance.http.browser import Page, browsing
from tests.conformance.http.conftest import PASSWORD, Queue

pytestmark = pytest.mark.process


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


@pytest.fixture(scope="module")
def page(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsing(tmp_path_factory.mktemp("browser")) as made:
        made.ask("Page.navigate", url=f"{broker.http_url}/docs")
        made.until("document.querySelectorAll('.operation').length")
        yield made


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
