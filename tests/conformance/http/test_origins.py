"""Who may use the door from a browser: pages of this machine and of this door, and nobody else's.

What browsers send is sent here by hand first, and then by a real browser, from pages that do what
a hostile page would: fetch, images, forms, frames, windows, WebSockets, redirects, rebinding.
"""

import contextlib
import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from asterism.config import ConfigError, load
from asterism.gateways.http.door import DOOR
from asterism.gateways.http.protocol import RefusedError
from asterism.gateways.http.server import origins_and_hosts
from asterism.testing import Broker
from tests.conformance.http.browser import WITHIN_S, Page, browsing
from tests.conformance.http.conftest import Queue

pytestmark = pytest.mark.process

EVIL = "https://evil.example"
STAYS_S = 0.5  # so long nothing happens, where nothing must


@pytest.fixture(scope="module")
def told() -> Iterator[Broker]:
    """A door that has been told who else may use it, and what it is called."""
    env = {"MQ_CORS_ORIGINS": "https://app.example, https://b.example:8443", "MQ_HOSTS": "mq.lan"}
    with Broker(workers=1, doors=("http",), env=env) as running:
        yield running


def refused(answer: httpx.Response, word: str) -> bool:
    """Is it refused, with a sentence, and told to no page?"""
    assert "access-control-allow-origin" not in answer.headers
    return answer.status_code == 403 and word in answer.json()["message"]


# --- Origin -------------------------------------------------------------------------------------

FOREIGN = [
    EVIL,
    "http://evil.example:8080",
    "null",  # a sandboxed frame, a file, a page in data:
    "http://localhost.evil.example",
    "http://127.evil.example",
    "http://evillocalhost",
    "http://0.0.0.0:8080",
    "http://[::ffff:127.0.0.1]",
    "chrome-extension://abcdefghijklmnop",
    "file://",
    "http://localhost@evil.example",
    "",
]


@pytest.mark.parametrize("origin", FOREIGN)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_what_a_page_of_another_origin_asks_is_refused_whatever_the_method(
    queue: Queue, method: str, origin: str
) -> None:
    message = queue.make()
    paths = {
        "GET": f"{queue.base}/messages",
        "POST": f"{queue.base}/messages",
        "PUT": f"{queue.base}/messages/{message}",
        "PATCH": f"{queue.base}/messages/{message}/complete",
        "DELETE": queue.base,
        "OPTIONS": f"{queue.base}/messages",
    }
    headers = {"Origin": origin, "Content-Type": "application/json"}
    body = b'{"priority": null}' if method == "POST" else b""
    answer = queue.http.request(method, paths[method], headers=headers, content=body)
    assert refused(answer, "MQ_CORS_ORIGINS")
    assert "origin" in answer.headers["vary"]
    assert queue.stats() == {"waiting": 1}


@pytest.mark.parametrize("path", ["/v1/topics", "/v1/status", "/metrics", "/mq", "/openapi.json"])
def test_a_page_of_another_origin_reads_nothing(http: httpx.Client, path: str) -> None:
    answer = http.get(path, headers={"Origin": EVIL})
    assert refused(answer, EVIL)
    if path.startswith("/v1"):
        assert answer.json()["code"] == "forbidden"


NEAR = [
    "http://localhost:3000",
    "https://localhost",
    "http://127.0.0.1:5173",
    "http://127.9.8.7",
    "http://[::1]:3000",
    "http://app.localhost:8000",
]


@pytest.mark.parametrize("origin", NEAR)
def test_a_page_of_this_machine_is_answered_and_told(queue: Queue, origin: str) -> None:
    body = {"priority": None}
    answer = queue.http.post(f"{queue.base}/messages", json=body, headers={"Origin": origin})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin
    assert "origin" in answer.headers["vary"]


def test_a_preflight_of_this_machine_is_told_that_it_may_come_here_from_a_network(
    queue: Queue,
) -> None:
    asked = {
        "Origin": "http://localhost:3000",
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Private-Network": "true",
    }
    answer = queue.http.options(f"{queue.base}/messages/1", headers=asked)
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-private-network"] == "true"
    assert refused(
        queue.http.options(f"{queue.base}/messages/1", headers={**asked, "Origin": EVIL}), EVIL
    )


def test_those_who_are_named_may_and_nobody_else_but_the_pages_of_the_door(told: Broker) -> None:
    with httpx.Client(base_url=told.http_url) as client:
        for origin in ("https://app.example", "https://b.example:8443", told.http_url):
            answer = client.get("/mq", headers={"Origin": origin})
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == origin
        for origin in ("http://app.example", "https://b.example", "http://localhost:3000", "null"):
            assert refused(client.get("/mq", headers={"Origin": origin}), origin)


def test_a_star_lets_every_page_in() -> None:
    with (
        Broker(workers=1, doors=("http",), env={"MQ_CORS_ORIGINS": "*"}) as broker,
        httpx.Client(base_url=broker.http_url) as client,
    ):
        for origin in (EVIL, "null"):
            answer = client.get("/mq", headers={"Origin": origin})
            assert answer.headers["access-control-allow-origin"] == origin
        answer = client.get("/mq", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 200
        assert refused(client.get("/mq", headers={"Host": "evil.example"}), "MQ_HOSTS")


# --- no Origin ----------------------------------------------------------------------------------


def fetched(site: str, mode: str = "no-cors", dest: str = "image") -> dict[str, str]:
    return {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize(
    ("mode", "dest"),
    [
        ("no-cors", "image"),
        ("no-cors", "script"),
        ("no-cors", "empty"),
        ("navigate", "iframe"),
        ("navigate", "object"),
        ("navigate", "document"),
    ],
)
def test_a_get_from_another_page_takes_no_message(
    queue: Queue, site: str, mode: str, dest: str
) -> None:
    message = queue.make()
    for path in (f"{queue.base}/messages", f"{queue.base}/messages/{message}"):
        assert refused(queue.http.get(path, headers=fetched(site, mode, dest)), "page")
    assert queue.stats() == {"waiting": 1}


def test_a_link_that_was_followed_or_typed_takes_no_message(queue: Queue) -> None:
    """A link in a mail, and a redirect from an address that was typed, look as if typed."""
    message = queue.make()
    answer = queue.http.get(
        f"{queue.base}/messages", headers=fetched("none", "navigate", "document")
    )
    assert refused(answer, "/docs")
    assert queue.stats() == {"waiting": 1}
    assert queue.order() == message


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
def test_a_link_leads_to_the_page_of_the_door_from_anywhere(http: httpx.Client, site: str) -> None:
    answer = http.get("/docs", headers=fetched(site, "navigate", "document"))
    assert answer.status_code == 200


def test_the_pages_of_the_door_do_what_they_like(queue: Queue) -> None:
    message = queue.make()
    headers = fetched("same-origin", "cors", "empty")
    answer = queue.http.get(f"{queue.base}/messages", headers=headers)
    assert (answer.status_code, answer.text) == (200, message)


@pytest.mark.parametrize(
    "headers",
    [
        {"User-Agent": "curl/8.9.1", "Accept": "*/*"},
        {"User-Agent": "node", "Accept-Language": "*", "Sec-Fetch-Mode": "cors"},
        {"User-Agent": "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"},
    ],
)
def test_programs_are_served_as_ever(queue: Queue, headers: dict[str, str]) -> None:
    message = queue.make()
    answer = queue.http.get(f"{queue.base}/messages", headers=headers)
    assert (answer.status_code, answer.text) == (200, message)
    assert "access-control-allow-origin" not in answer.headers


def test_without_tls_and_by_another_name_a_browser_has_to_say_which_page_asks(
    told: Broker,
) -> None:
    """There browsers send no more than a Referer, and a page may keep them from that."""
    browser = {"Host": "mq.lan:8080", "User-Agent": "Mozilla/5.0 (X11; Linux x86_64)"}
    with httpx.Client(base_url=told.http_url) as client:
        queue = Queue(client, "by-name")
        message = queue.make()
        path = f"{queue.base}/messages"
        for headers in ({}, {"Referer": f"{EVIL}/page"}, {"Referer": "nonsense"}):
            assert refused(client.get(path, headers={**browser, **headers}), "page")
        assert queue.stats() == {"waiting": 1}
        page = {**browser, "Referer": "http://mq.lan:8080/docs"}
        assert client.get(path, headers=page).text == message
        assert client.get("/mq", headers={**browser, "Referer": EVIL}).status_code == 200


# --- Host ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "127.0.0.1.evil.example",
        "127.evil.example",
        "localhost.evil.example",
        "0.0.0.0",  # leads here too, and browsers say nothing of the page that asks
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]:8080",
        "10.1.2.3",
        "",
        "local host",
    ],
)
def test_a_name_that_is_not_the_doors_is_refused(http: httpx.Client, host: str) -> None:
    for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
        assert refused(http.get("/mq", headers=headers), "MQ_HOSTS")


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:1", "127.0.0.1", "127.1.2.3:80", "[::1]:8080", "a.localhost"]
)
def test_every_name_of_this_machine_is_the_doors(http: httpx.Client, host: str) -> None:
    assert http.get("/mq", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "named",
    [
        "Host: evil.example\r\nHost: localhost\r\n",
        "Host: localhost\r\nOrigin: http://evil.example\r\nOrigin: http://localhost\r\n",
    ],
)
def test_a_host_or_an_origin_that_is_named_twice_is_refused(told: Broker, named: str) -> None:
    """A proxy in front of the door may go by the other one."""
    url = urlsplit(told.http_url)
    with socket.create_connection((url.hostname or "", url.port or 0), 10) as one:
        one.sendall(f"GET /health HTTP/1.1\r\n{named}Connection: close\r\n\r\n".encode())
        assert one.recv(100).startswith(b"HTTP/1.1 403 ")


def test_a_name_that_was_given_to_the_door_is_its_own(told: Broker) -> None:
    with httpx.Client(base_url=told.http_url) as client:
        for host in ("mq.lan", "MQ.lan:443"):
            assert client.get("/mq", headers={"Host": host}).status_code == 200
        proxied = {"Host": "mq.lan", "Origin": "https://mq.lan"}
        assert client.get("/mq", headers=proxied).status_code == 200
        assert refused(client.get("/mq", headers={"Host": "sub.mq.lan"}), "MQ_HOSTS")


def test_a_door_that_listens_everywhere_has_every_address_as_a_name() -> None:
    env = {"MQ_HOST": "0.0.0.0"}
    with Broker(workers=1, doors=("http",), env=env, config={"insecure": True}) as broker:
        url = f"http://127.0.0.1:{urlsplit(broker.http_url).port}"
        with httpx.Client(base_url=url) as client:
            for host in ("10.1.2.3:8080", "[fe80::1]", "localhost", "0.0.0.0"):
                assert client.get("/mq", headers={"Host": host}).status_code == 200
            assert refused(client.get("/mq", headers={"Host": "evil.example"}), "MQ_HOSTS")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MQ_CORS_ORIGINS", "app.example"),
        ("MQ_CORS_ORIGINS", "https://app.example/"),
        ("MQ_CORS_ORIGINS", "https://app.example:443"),
        ("MQ_CORS_ORIGINS", "null"),
        ("MQ_HOSTS", "http://mq.lan"),
        ("MQ_HOSTS", "mq.lan:8080"),
    ],
)
def test_a_setting_that_cannot_be_one_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: http"):
        load(None, {name: value})


def test_a_door_on_every_address_does_not_answer_to_every_name() -> None:
    config = load(None, {"ASTERISM_HTTP__LISTEN": "*:8080"})
    origins = origins_and_hosts(config.door(DOOR), "0.0.0.0")
    origins.check_host({b"host": b"10.1.2.3:8080"})
    with pytest.raises(RefusedError):
        origins.check_host({b"host": b"evil.example"})


# --- WebSockets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers", [{"Origin": EVIL}, {"Origin": "null"}, {"Host": "evil.example"}]
)
def test_a_websocket_of_another_origin_or_to_another_name_is_refused(
    broker: Broker, headers: Mapping[str, str]
) -> None:
    url = f"ws{broker.http_url[4:]}/v1/topics/origins/subscribe"
    with pytest.raises(InvalidStatus) as caught:
        connect(url, additional_headers=headers, proxy=None)
    assert caught.value.response.status_code == 403
    assert "MQ_" in json.loads(caught.value.response.body or b"")["message"]


def test_a_websocket_of_this_machine_is_taken(broker: Broker) -> None:
    url = f"ws{broker.http_url[4:]}/v1/topics/origins/subscribe"
    headers = {"Origin": "http://localhost:3000"}
    with connect(url, additional_headers=headers, proxy=None) as talk:
        assert json.loads(talk.recv(WITHIN_S))["event"] == "subscribed"


# --- a real browser -----------------------------------------------------------------------------


class Site:
    """A server of pages: each request gets the page, or is sent elsewhere."""

    def __init__(self) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                to = urlsplit(self.path)
                self.send_response(302 if to.path == "/to" else 200)
                if to.path == "/to":
                    self.send_header("Location", to.query)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>a page</title><body>")

            def log_message(self, *said: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @contextlib.contextmanager
    def serving(self) -> Iterator["Site"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site().serving() as running:
        yield running


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser in whose world a name of somebody else leads to this machine."""
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with browsing(tmp_path_factory.mktemp("browser"), rules) as page:
        yield page


@pytest.fixture
def evil(browser: Page, site: Site) -> Page:
    browser.open(f"http://evil.example:{site.port}/")
    return browser


def base_of(queue: Queue) -> str:
    return str(queue.http.base_url).rstrip("/") + queue.base


def tries(page: Page, script: str) -> Any:
    """What a hostile script gets; an error is as good as nothing."""
    return page.run(f"(async () => {{ {script} }})().then(String, error => 'failed: ' + error)")


FETCHES = {
    "read": "return (await fetch(BASE + '/stats')).status",
    "draft": "return (await fetch(BASE + '/messages', {method: 'POST', headers: "
    "{'Content-Type': 'application/json'}, body: '{\"priority\": null}'})).status",
    "clear": "return (await fetch(BASE, {method: 'DELETE'})).status",
    "order": "return (await fetch(BASE + '/messages')).status",
}


@pytest.mark.parametrize("script", FETCHES.values(), ids=FETCHES)
def test_in_a_browser_a_page_of_another_origin_fetches_nothing(
    evil: Page, queue: Queue, script: str
) -> None:
    queue.make()
    base = f"const BASE = {json.dumps(base_of(queue))};"
    assert tries(evil, base + script).startswith("failed: ")
    assert queue.stats() == {"waiting": 1}


BLIND = {
    "no-cors": "await fetch(URL, {mode: 'no-cors'}).catch(() => 0)",
    "image": "await new Promise(done => { const made = new Image(); made.onload = made.onerror = "
    "done; made.src = URL; document.body.append(made) })",
    "script": "await new Promise(done => { const made = document.createElement('script'); "
    "made.onload = made.onerror = done; made.src = URL; document.body.append(made) })",
    "frame": "await new Promise(done => { const made = document.createElement('iframe'); "
    "made.onload = made.onerror = done; made.src = URL; document.body.append(made) })",
    "sandboxed frame": "await new Promise(done => { const made = document.createElement('iframe'); "
    "made.sandbox = 'allow-scripts'; made.srcdoc = `<script>fetch('${URL}').finally(() => "
    "parent.postMessage('done', '*'))<\\/script>`; onmessage = done; document.body.append(made) })",
    "form in a frame": "await new Promise(done => { document.body.innerHTML = "
    "`<iframe name=f></iframe><form target=f method=get action='${URL}'></form>`; "
    "document.querySelector('iframe').onload = done; document.forms[0].submit() })",
    "redirect": "await fetch('/to?' + URL, {mode: 'no-cors'}).catch(() => 0)",
}


@pytest.mark.parametrize("script", BLIND.values(), ids=BLIND)
def test_in_a_browser_a_page_of_another_origin_takes_no_message_blindly(
    evil: Page, queue: Queue, script: str
) -> None:
    message = queue.make()
    url = f"{base_of(queue)}/messages"
    tries(evil, f"const URL = {json.dumps(url)}; {script}")
    stays(lambda: queue.stats() == {"waiting": 1})
    assert queue.order() == message


@pytest.mark.parametrize("way", ["a window", "a redirect of a typed address", "a form"])
def test_in_a_browser_nobody_is_led_to_take_a_message(
    evil: Page, site: Site, queue: Queue, way: str
) -> None:
    message = queue.make()
    url = f"{base_of(queue)}/messages"
    if way == "a window":
        evil.run(f"void (location.href = {json.dumps(url)})")
    elif way == "a form":
        form = f"<form method=post enctype=text/plain action='{url}'><input name=a></form>"
        evil.run(f"document.body.innerHTML = {json.dumps(form)}; document.forms[0].submit()")
    else:
        evil.ask("Page.navigate", url=f"http://evil.example:{site.port}/to?{url}")
    evil.until(
        "document.body ? document.body.innerText : ''", lambda text: '"statusCode": 403' in text
    )
    stays(lambda: queue.stats() == {"waiting": 1})
    assert queue.order() == message


def test_in_a_browser_a_page_of_another_origin_opens_no_websocket(
    evil: Page, broker: Broker
) -> None:
    url = f"ws{broker.http_url[4:]}/v1/topics/origins/subscribe"
    script = (
        f"return await new Promise(done => {{ const made = new WebSocket({json.dumps(url)});"
        "made.onopen = () => done('open'); made.onerror = () => done('refused') })"
    )
    assert tries(evil, script) == "refused"


def test_in_a_browser_a_page_whose_name_leads_here_gets_nothing(
    browser: Page, queue: Queue
) -> None:
    """Rebinding: to the browser, the page and the door are of one origin."""
    message = queue.make()
    port = urlsplit(str(queue.http.base_url)).port
    browser.open(f"http://evil.example:{port}/docs")
    assert "MQ_HOSTS" in browser.run("document.body.innerText")
    path = json.dumps(f"{queue.base}/messages")
    assert tries(browser, f"return (await fetch({path})).status") != "200"
    assert queue.stats() == {"waiting": 1}
    assert queue.order() == message


def test_in_a_browser_a_page_of_this_machine_uses_the_queue(
    browser: Page, site: Site, queue: Queue
) -> None:
    """The JavaScript of the seed, from a page on another port."""
    browser.open(f"http://localhost:{site.port}/")
    base = f"const BASE = {json.dumps(base_of(queue))};"
    script = """
      const id = await fetch(`${BASE}/messages`, {method: 'POST',
        headers: {'Content-Type': 'application/json'},
        body: JSON.stringify({priority: null})}).then(res => res.text())
      await fetch(`${BASE}/messages/${id}`, {method: 'PUT', body: 'from a page'})
      const ordered = await fetch(`${BASE}/messages`).then(res => res.text())
      const got = await fetch(`${BASE}/messages/${ordered}`)
      const state = got.headers.get('X-MQ-State'), text = await got.text()
      const done = await fetch(`${BASE}/messages/${ordered}/complete`, {method: 'PATCH'})
      return [text, state, done.status].join()
    """
    assert tries(browser, base + script) == "from a page,active,204"
    assert queue.stats() == {"completed": 1}


@pytest.mark.parametrize("media", ["text/html", "image/svg+xml", "application/xhtml+xml"])
def test_in_a_browser_a_page_that_somebody_published_does_nothing(
    browser: Page, queue: Queue, media: str
) -> None:
    """Whoever may publish must not act as the page where the password is typed."""
    payload = (
        "<html xmlns='http://www.w3.org/1999/xhtml'><script>fetch('/mq', {method: 'POST'});"
        "document.title = 'owned'; localStorage.owned = 1</script></html>"
    )
    message = queue.draft()
    assert queue.set(message, payload, content_type=media) == 204
    answer = queue.get(message)
    assert answer.headers["content-type"].startswith(media)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    browser.open(base_of(queue).replace(queue.base, "/docs"))
    path = json.dumps(f"{queue.base}/messages/{message}")
    frame = (
        "return await new Promise(done => { const made = document.createElement('iframe');"
        f"made.onload = () => setTimeout(() => done(localStorage.owned), 200); made.src = {path};"
        "document.body.append(made); setTimeout(() => done(localStorage.owned), 1000) })"
    )
    assert tries(browser, frame) == "undefined"


def stays(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STAYS_S
    while time.monotonic() < deadline:
        assert holds()
        time.sleep(0.05)
