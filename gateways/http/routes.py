"""Every path of the HTTP door, with what may be done there; the OpenAPI document is made of it."""

from typing import Final

from asterism.gateways.http.admin import Admin
from asterism.gateways.http.openapi import document_of
from asterism.gateways.http.protocol import (
    JSON,
    NDJSON,
    TEXT,
    Handler,
    Operation,
    Request,
    Response,
    json_of,
    text,
)
from asterism.gateways.http.queues import STATES, Queues

_GONE: Final = {404: "there is no such message"}
_STATE: Final = {409: "the message is in another state"}
_NAME: Final = {400: "a name that cannot be one"}
_DONE: Final = {204: "done"}
_IS: Final = {401: "the password is missing or wrong"}

DOCS_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Asterism: the HTTP door</title>
<meta name="viewport" content="width=device-width">
<style>
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
code{background:#eee;padding:.1rem .3rem;border-radius:.2rem}
section{border-top:1px solid #ccc;padding:.6rem 0}b{display:inline-block;min-width:5rem}
@media(prefers-color-scheme:dark){body{background:#111;color:#eee}code{background:#333}}
</style></head><body><h1>The HTTP door</h1>
<p>Made from <a href="/openapi.json">/openapi.json</a>.</p><main id="paths">Loading.</main>
<script>
fetch("/openapi.json").then(answer => answer.json()).then(document_ => {
  const main = document.getElementById("paths");
  main.textContent = "";
  for (const [path, methods] of Object.entries(document_.paths))
    for (const [method, told] of Object.entries(methods)) {
      if (!told.responses) continue;
      const section = document.createElement("section");
      const title = document.createElement("div");
      const name = document.createElement("b");
      name.textContent = method.toUpperCase();
      const code = document.createElement("code");
      code.textContent = path;
      title.append(name, code);
      const summary = document.createElement("p");
      summary.textContent = told.summary;
      const list = document.createElement("ul");
      for (const [status, answer] of Object.entries(told.responses)) {
        const item = document.createElement("li");
        item.textContent = status + ": " + answer.description;
        list.append(item);
      }
      section.append(title, summary, list);
      main.append(section);
    }
});
</script></body></html>
"""


class Routes:
    """The table of paths."""

    def __init__(self, queues: Queues, admin: Admin, core: dict[str, dict[str, Operation]]) -> None:
        self._queues = queues
        self.paths = {
            **_public(queues),
            **_failed(queues),
            **_private(admin),
            **core,
            **self._own(),
        }
        self._openapi = json_of(document_of(self.paths))

    def _own(self) -> dict[str, dict[str, Operation]]:
        robots = text("User-agent: *\nDisallow: /\n")
        page = Response(200, DOCS_PAGE.encode(), "text/html; charset=utf-8")
        kinds = (
            ("/health", "OK while this process runs", _always(text("OK")), TEXT),
            ("/robots.txt", "Asks robots to stay away", _always(robots), TEXT),
            ("/docs", "This interface, to read", _always(page), "text/html"),
            ("/metrics", "Counts for Prometheus", self._metrics, TEXT),
            ("/openapi.json", "This interface, for programs", self._document, JSON),
        )
        return {
            path: {"GET": Operation(run, summary, {200: "it"}, True, returns=(media,))}
            for path, summary, run, media in kinds
        }

    async def _document(self, request: Request) -> Response:
        return self._openapi

    async def _metrics(self, request: Request) -> Response:
        lines = [
            "# HELP asterism_messages Messages of a namespace by state; completed is a counter.",
            "# TYPE asterism_messages gauge",
        ]
        for namespace, counts in await self._queues.in_use():
            for state in STATES:
                labels = f'namespace="{namespace}",state="{state}"'
                lines.append(f"asterism_messages{{{labels}}} {counts[state]}")
        body = "\n".join(lines) + "\n"
        return Response(200, body.encode(), "text/plain; version=0.0.4; charset=utf-8")


def _always(response: Response) -> Handler:
    async def answer(request: Request) -> Response:
        return response

    return answer


def _public(queues: Queues) -> dict[str, dict[str, Operation]]:
    octets, listed = "application/octet-stream", ("application/json", NDJSON)
    change = {**_DONE, **_NAME, **_GONE, **_STATE}
    messages, one = "/mq/{namespace}/messages", "/mq/{namespace}/messages/{id}"
    too_large = {413: "the body is larger than is allowed"}
    drafted = {200: "its id", **_NAME, 413: too_large[413], 415: "the body is not said to be JSON"}
    return {
        "/mq": {
            "GET": Operation(
                queues.namespaces, "Every namespace in use", {200: "them"}, True, returns=listed
            )
        },
        "/mq/{namespace}": {
            "DELETE": Operation(queues.clear, "Drops all messages and counts", {**_DONE, **_NAME})
        },
        "/mq/{namespace}/stats": {
            "GET": Operation(
                queues.stats,
                "How many messages are in each state",
                {200: "the counts", **_NAME},
                True,
                returns=("application/json",),
            )
        },
        messages: {
            "POST": Operation(
                queues.draft, "Begins a message", drafted, body="application/json", returns=(TEXT,)
            ),
            "GET": Operation(
                queues.order,
                "Orders the best waiting message; waits for one",
                {200: "its id", 404: "the queue was cleared", **_NAME},
                returns=(TEXT,),
                waits=True,
                give_back=queues.give_back,
            ),
        },
        one: {
            "PUT": Operation(
                queues.set, "Sets the payload of a draft", {**change, **too_large}, body=octets
            ),
            "GET": Operation(
                queues.get,
                "Reads a message; one that was ordered becomes active",
                {200: "its payload", **_NAME, **_GONE, 409: "it is a draft"},
                returns=(octets,),
            ),
            "DELETE": Operation(queues.abandon, "Drops a message", {**_DONE, **_NAME, **_GONE}),
        },
        f"{one}/complete": {"PATCH": Operation(queues.complete, "Ends an active one", change)},
        f"{one}/fail": {"PATCH": Operation(queues.fail, "Says that an active one failed", change)},
        f"{one}/renew": {"PATCH": Operation(queues.renew, "Has a failed one wait again", change)},
    }


def _failed(queues: Queues) -> dict[str, dict[str, Operation]]:
    failed, listed = "/mq/{namespace}/failed-messages", ("application/json", NDJSON)
    return {
        failed: {
            "GET": Operation(
                queues.list_failed,
                "Ids of failed messages, oldest failure first",
                {200: "them", **_NAME},
                True,
                returns=listed,
            ),
            "DELETE": Operation(
                queues.abandon_failed, "Drops all failed messages", {**_DONE, **_NAME}
            ),
        },
        f"{failed}/renew": {
            "PATCH": Operation(
                queues.renew_failed, "Has all failed messages wait again", {**_DONE, **_NAME}
            )
        },
    }


def _private(admin: Admin) -> dict[str, dict[str, Operation]]:
    config, json = "/admin/mq/{namespace}/config", "application/json"
    unset = {404: "there is no such setting"}
    wrong = {400: "a value that cannot be one", 415: "the body is not said to be JSON"}
    return {
        "/admin/mq-with-config": {
            "GET": Operation(
                admin.with_config,
                "Namespaces with settings of their own",
                {200: "them", **_IS},
                True,
                returns=(json,),
                private=True,
            )
        },
        config: {
            "GET": Operation(
                admin.config,
                "The settings of a namespace; null is inherited",
                {200: "them", **_IS, **_NAME},
                True,
                returns=(json,),
                private=True,
            )
        },
        f"{config}/{{key}}": {
            "PUT": Operation(
                admin.put,
                "Sets one",
                {**_DONE, **_IS, **wrong, **unset},
                body=json,
                private=True,
            ),
            "DELETE": Operation(
                admin.delete, "Inherits one", {**_DONE, **_IS, **_NAME, **unset}, private=True
            ),
        },
    }
