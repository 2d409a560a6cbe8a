"""An HTTP server that messages are pushed to: it notes what comes, and answers as it is told."""

import base64
import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

from tests.conformance.pubsub.clients import PATIENCE_S, until

OK = 204


class Pushed(NamedTuple):
    """A message in Google's envelope."""

    data: bytes
    attributes: Mapping[str, str]
    message_id: str
    envelope: Mapping[str, Any]


class Request(NamedTuple):
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    at_s: float

    @property
    def message(self) -> Pushed:
        envelope = json.loads(self.body)
        message = envelope["message"]
        return Pushed(
            base64.b64decode(message.get("data", "")),
            message.get("attributes", {}),
            message["messageId"],
            envelope,
        )


class Endpoint:
    """Listens on a free port while it is entered."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._answers: list[int] = []
        self._gate = threading.Event()
        self._gate.set()
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = endpoint._take(Request(self.path, headers, body, time.monotonic()))
                if status == 102:
                    # An interim status to HTTP: as the last one it stands alone.
                    self.wfile.write(b"HTTP/1.1 102 Processing\r\nContent-Length: 0\r\n\r\n")
                    self.close_connection = True
                    return
                self.send_response(status)
                if status != OK:
                    self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}/push"

    def _take(self, request: Request) -> int:
        with self._lock:
            self.requests.append(request)
            status = self._answers.pop(0) if len(self._answers) > 1 else (self._answers or [OK])[0]
        self._gate.wait(PATIENCE_S)
        return status

    def answers(self, *statuses: int) -> None:
        """Answers with these in turn; the last of them from then on."""
        with self._lock:
            self._answers = list(statuses)

    def hold(self) -> None:
        """Answers nothing until it is let go."""
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    def wait_for(self, count: int, s: float = PATIENCE_S) -> list[Request]:
        """The requests, when there are so many."""
        until(lambda: len(self.requests) >= count, s)
        return list(self.requests)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)
