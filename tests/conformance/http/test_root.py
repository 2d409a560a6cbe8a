"""The page /: what this is and where to go, for people and for programs."""

import re

import httpx
import pytest

from asterism import __version__
from tests.conformance.http.browser import browsing
from tests.tidy import tree

pytestmark = pytest.mark.process

# What a browser sends for a page.
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8"
PLACES = ("/docs", "/openapi.json", "/v1/topics", "/v1/status", "/health", "/ready", "/metrics")


def told(http: httpx.Client, accept: str | None) -> httpx.Response:
    answer = http.get("/", headers={} if accept is None else {"Accept": accept})
    assert answer.status_code == 200
    assert "accept" in answer.headers["vary"]
    return answer


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        (BROWSER, "text/html"),
        ("text/html", "text/html"),
        ("application/json, text/html;q=0.9", "application/json"),
        ("application/json", "application/json"),
        ("*/*", "text/plain"),
        ("text/plain", "text/plain"),
        ("image/png", "text/plain"),
        ("", "text/plain"),
    ],
)
def test_it_comes_as_the_client_prefers(http: httpx.Client, accept: str, media: str) -> None:
    assert told(http, accept).headers["content-type"].partition(";")[0] == media


def test_every_place_that_is_told_is_there(http: httpx.Client) -> None:
    places = told(http, "application/json").json()["places"]
    assert set(PLACES) <= set(places)
    for path in places:
        assert http.get(path).status_code == 200, path


def test_the_routes_of_the_work_queue_are_those_of_the_document(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    assert told(http, "application/json").json()["work_queue"] == {
        f"{method.upper()} {path}": operation["summary"]
        for path, methods in paths.items()
        if path.startswith("/mq")
        for method, operation in methods.items()
        if method != "parameters"
    }


def test_the_documents_that_are_named_exist(http: httpx.Client) -> None:
    documents = told(http, "application/json").json()["documents"]
    assert "docs/http.md" in documents
    for name in documents:
        assert (tree.ROOT / name).is_file(), name


@pytest.mark.parametrize("accept", [BROWSER, "text/plain"])
def test_people_are_told_the_same_as_programs(http: httpx.Client, accept: str) -> None:
    page, all_of_it = told(http, accept).text, told(http, "application/json").json()
    assert all_of_it["version"] == __version__
    assert __version__ in page
    for kind in ("places", "work_queue", "documents"):
        for name, summary in all_of_it[kind].items():
            assert name.rpartition(" ")[2] in page
            assert summary in page


def test_the_page_can_do_nothing_and_is_framed_by_nobody(http: httpx.Client) -> None:
    answer, other = told(http, BROWSER), http.get("/docs")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src" not in policy and "unsafe" not in policy
    assert "<script" not in answer.text
    for name in (
        *("x-frame-options", "x-content-type-options"),
        *("cross-origin-opener-policy", "referrer-policy"),
    ):
        assert answer.headers[name] == other.headers[name]
    assert not re.search(r'(?:href|src)="(?!/|data:,")', answer.text), "it leads elsewhere"


def test_head_and_other_methods(http: httpx.Client) -> None:
    assert http.head("/").status_code == 200
    assert http.post("/").status_code == 405
    link = {"Site": "cross-site", "Mode": "navigate", "Dest": "document"}
    sent = {f"Sec-Fetch-{name}": value for name, value in link.items()}
    assert http.get("/", headers=sent).status_code == 200


def test_a_browser_shows_it(http: httpx.Client, tmp_path_factory: pytest.TempPathFactory) -> None:
    with browsing(tmp_path_factory.mktemp("browser")) as page:
        page.ask("Page.navigate", url=str(http.base_url))
        page.until("document.querySelector('a[href=\"/docs\"]') !== null")
        assert page.run("getComputedStyle(document.querySelector('h1')).marginTop") == "0px"
