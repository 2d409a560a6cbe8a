"""Every path of the HTTP door, with what may be done there; the OpenAPI document is made of it."""

from typing import Final

from asterism import limits
from asterism.gateways.http.admin import KEYS, Admin, Key
from asterism.gateways.http.docs_page import PAGE, POLICY
from asterism.gateways.http.metrics import Metrics
from asterism.gateways.http.openapi import document_of
from asterism.gateways.http.processes import Processes
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
from asterism.gateways.http.root_page import KINDS, Root

_GONE: Final = {404: "there is no such message"}
_STATE: Final = {409: "the message is in another state"}
_NAME: Final = {400: "a name that cannot be one"}
_DONE: Final = {204: "done"}
_LARGE: Final = {413: "the body is larger than is allowed"}
_IS: Final = {401: "the password is missing or wrong", 429: "it was wrong too often: wait"}
_NOT_MADE: Final = {404: "there is no such queue, and it may not be made"}

# Schemas of what is sent and answered.
_ID: Final = {"type": "string", "pattern": "^[0-9]{1,19}$"}
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_PRIORITY: Final = {
    "anyOf": [{"type": "integer", "minimum": 0, "maximum": limits.PRIORITY_MAX}, {"type": "null"}],
    "description": "0 is first, null is last",
}
_DRAFT: Final = {
    "type": "object",
    "properties": {"priority": _PRIORITY},
    "required": ["priority"],
}
_COUNTS: Final = {
    "type": "object",
    "properties": {
        "namespace": {"type": "string"},
        **{state: {"type": "integer", "minimum": 0} for state in STATES},
    },
    "required": ["namespace", *STATES],
}
_CONFIG: Final = {
    "type": "object",
    "properties": {key.shown: {"anyOf": [key.schema, {"type": "null"}]} for key in KEYS.values()},
    "required": [key.shown for key in KEYS.values()],
}
_READY: Final = {
    "type": "object",
    "properties": {
        "ready": {"const": True},
        "processes": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "required": ["ready", "processes"],
}


class Routes:
    """The table of paths."""

    def __init__(
        self,
        queues: Queues,
        admin: Admin,
        core: dict[str, dict[str, Operation]],
        processes: Processes,
        metrics: Metrics,
    ) -> None:
        self._processes = processes
        self._metrics = metrics
        self.paths = {
            **_whole(queues),
            **_public(queues),
            **_failed(queues),
            **_private(admin),
            **core,
            **self._own(),
        }
        self._root = Root(self.paths)
        self._openapi = json_of(document_of(self.paths))

    def _own(self) -> dict[str, dict[str, Operation]]:
        robots = text("User-agent: *\nDisallow: /\n")
        page = Response(200, PAGE.encode(), "text/html; charset=utf-8", policy=POLICY)
        kinds = (
            ("/health", "OK while this door is alive", self._processes.health, TEXT),
            ("/robots.txt", "Asks robots to stay away", _always(robots), TEXT),
            ("/docs", "This interface, to read", _always(page), "text/html"),
            ("/metrics", "Counts for Prometheus", self._metrics.metrics, TEXT),
            ("/openapi.json", "This interface, for programs", self._document, JSON),
        )
        ready = Operation(
            self._processes.ready,
            "Do the front-end and every worker answer?",
            {200: "they do", 503: "those in silent do not"},
            True,
            returns=(JSON,),
            returned=_READY,
        )
        root = Operation(
            self._page, "What this is, and where to go", {200: "it"}, True, returns=KINDS
        )
        return {
            "/": {"GET": root},
            "/ready": {"GET": ready},
            **{
                path: {"GET": Operation(run, summary, {200: "it"}, True, returns=(media,))}
                for path, summary, run, media in kinds
            },
        }

    async def _page(self, request: Request) -> Response:
        return self._root.as_preferred(request.header(b"accept"))

    async def _document(self, request: Request) -> Response:
        return self._openapi


def _always(response: Response) -> Handler:
    async def answer(request: Request) -> Response:
        return response

    return answer


def _whole(queues: Queues) -> dict[str, dict[str, Operation]]:
    return {
        "/mq": {
            "GET": Operation(
                queues.namespaces,
                "Every namespace in use",
                {200: "them"},
                True,
                returns=("application/json", NDJSON),
                returned=_TEXTS,
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
                returned=_COUNTS,
            )
        },
    }


def _public(queues: Queues) -> dict[str, dict[str, Operation]]:
    octets = "application/octet-stream"
    change = {**_DONE, **_NAME, **_GONE, **_STATE}
    messages, one = "/mq/{namespace}/messages", "/mq/{namespace}/messages/{id}"
    not_json = {415: "the body is not said to be JSON"}
    drafted = {200: "its id", **_NAME, **_NOT_MADE, **_LARGE, **not_json}
    return {
        messages: {
            "POST": Operation(
                queues.draft,
                "Begins a message",
                drafted,
                body="application/json",
                schema=_DRAFT,
                returns=(TEXT,),
                returned=_ID,
            ),
            "GET": Operation(
                queues.order,
                "Orders the best waiting message; waits for one",
                {200: "its id", 404: "the queue was cleared, or may not be made", **_NAME},
                returns=(TEXT,),
                returned=_ID,
                waits=True,
            ),
        },
        one: {
            "PUT": Operation(
                queues.set, "Sets the payload of a draft", {**change, **_LARGE}, body=octets
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
                returned=_TEXTS,
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
    return {
        "/admin/mq-with-config": {
            "GET": Operation(
                admin.with_config,
                "Namespaces with settings of their own",
                {200: "them", **_IS},
                True,
                returns=(json,),
                returned=_TEXTS,
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
                returned=_CONFIG,
                private=True,
            )
        },
        **{f"{config}/{name}": _setting(admin, key) for name, key in KEYS.items()},
    }


def _setting(admin: Admin, key: Key) -> dict[str, Operation]:
    wrong = {400: "a value that cannot be one", 415: "the body is not said to be JSON"}
    return {
        "PUT": Operation(
            admin.setter(key),
            f"Sets {key.shown}",
            {**_DONE, **_IS, **wrong, **_NOT_MADE, **_LARGE},
            body="application/json",
            schema=key.schema,
            private=True,
        ),
        "DELETE": Operation(
            admin.remover(key),
            f"Has {key.shown} follow the default again",
            {**_DONE, **_IS, **_NAME},
            private=True,
        ),
    }
