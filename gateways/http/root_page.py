"""The page ``/``: what this is and where to go, for people and for programs. Pure."""

import json
from html import escape
from typing import Any, Final

from asterism import __version__
from asterism.gateways.http.docs_page import STYLE, policy_of
from asterism.gateways.http.protocol import JSON, TEXT, Operation, Response, quality

HTML: Final = "text/html; charset=utf-8"
# As many like it, the first is answered: a program that says nothing gets text.
KINDS: Final = (TEXT, HTML, JSON)
WHAT: Final = "The HTTP door of Asterism, a durable message broker."
# Places that can be opened; whoever reads the text reads the paths.
PLACES: Final = {
    "/docs": "Every request, to read and to try",
    "/openapi.json": "The same, for programs",
    "/v1/topics": "The whole broker is under /v1, by the names of its SDK: here its topics",
    "/v1/status": "What each process of the broker says of itself",
    "/mq": "The work queue: every namespace in use",
    "/health": "OK while this door is alive",
    "/ready": "Whether the front-end and every worker answer",
    "/metrics": "Counts of every topic, for Prometheus",
}
DOCUMENTS: Final = {
    "README.md": "What Asterism is, and a first message",
    "docs/http.md": "This door: its requests, limits and settings",
    "docs/sdk.md": "The Python SDK",
    "docs/command-line.md": "The command line",
    "docs/operating.md": "Running a broker, and what to do when something is wrong",
    "docs/configuration.md": "Every setting",
    "docs/errors.md": "Every error code, and what to do about it",
    "docs/protocol.md": "The wire protocol, for a client in any language",
}
_VARY: Final = ((b"vary", b"accept"),)


class Root:
    """The page in each of its kinds, made once."""

    def __init__(self, paths: dict[str, dict[str, Operation]]) -> None:
        queue = {
            f"{method} {path}": operation.summary
            for path, operations in paths.items()
            if path.startswith("/mq")
            for method, operation in operations.items()
        }
        told: dict[str, Any] = {
            "name": "Asterism",
            "version": __version__,
            "what": WHAT,
            "places": PLACES,
            "work_queue": queue,
            "documents": DOCUMENTS,
        }
        policy = policy_of(STYLE)
        self._kinds = {
            TEXT: Response(200, _text(queue).encode(), TEXT, _VARY),
            HTML: Response(200, _page(queue).encode(), HTML, _VARY, policy=policy),
            JSON: Response(200, json.dumps(told, indent=2).encode(), JSON, _VARY),
        }

    def as_preferred(self, accept: str) -> Response:
        """The page as a client wants it most."""
        best = max(KINDS, key=lambda kind: quality(accept, kind.partition(";")[0]))
        return self._kinds[best]


def _text(queue: dict[str, str]) -> str:
    parts = [f"{WHAT} Version {__version__}."]
    for title, entries in (
        ("Where to go", PLACES),
        ("The work queue", queue),
        ("Documents, in the folder of the program", DOCUMENTS),
    ):
        width = max(map(len, entries))
        lines = [f"  {name:{width}}  {summary}" for name, summary in entries.items()]
        parts.append("\n".join((f"{title}:", *lines)))
    return "\n\n".join(parts) + "\n"


def _page(queue: dict[str, str]) -> str:
    links = {f'<a href="{path}">{path}</a>': summary for path, summary in PLACES.items()}
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Asterism: the HTTP door</title>
<link rel="icon" href="data:,">
<style>{STYLE}</style>
</head>
<body>
<h1>Asterism <span class="dim">{__version__}</span></h1>
<p class="dim">{WHAT}</p>
{_table("Where to go", links)}
{_table("The work queue", _code(queue))}
{_table("Documents, in the folder of the program", _code(DOCUMENTS))}
</body>
</html>
"""


def _code(entries: dict[str, str]) -> dict[str, str]:
    return {f"<code>{escape(name)}</code>": summary for name, summary in entries.items()}


def _table(title: str, entries: dict[str, str]) -> str:
    """A table of what is HTML already, and what each is."""
    rows = [f"<tr><td>{name}</td><td>{escape(told)}</td></tr>" for name, told in entries.items()]
    return "\n".join((f"<h2>{title}</h2>", "<table>", *rows, "</table>"))
