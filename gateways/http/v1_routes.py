"""The paths under ``/v1``: the whole core over HTTP, by the names that it has in the SDK."""

from typing import Any, Final

from asterism.gateways.http import v1_schemas as schemas
from asterism.gateways.http.protocol import Handler, Operation
from asterism.gateways.http.v1 import Core
from asterism.gateways.http.v1_deliveries import Deliveries
from asterism.gateways.http.v1_publishing import BODY_BYTES_MAX, Publishing
from asterism.gateways.http.v1_requests import Requests
from asterism.gateways.http.v1_streams import EVENT_STREAM, Streams
from asterism.sdk.aio import Node

_JSON: Final = "application/json"
_DONE: Final = {204: "done"}
_MADE: Final = {201: "made"}
_TOPIC: Final = {404: "there is no such topic"}
_RECEIVER: Final = {404: "there is no such topic or receiver"}
_MESSAGE: Final = {404: "there is no such topic or message"}
_STATE: Final = {409: "it is in another state"}
_EXISTS: Final = {409: "it exists already"}
_PASSWORD: Final = {
    401: "there is a password, and it is missing or wrong",
    429: "it was wrong too often: wait",
}
_BODY: Final = {413: "the body is larger than is allowed", 415: "the body is not said to be JSON"}

Paths = dict[str, dict[str, Operation]]


def paths_of(node: Node) -> Paths:
    """Every path under ``/v1``."""
    core = Core(node)
    publishing = Publishing(node)
    return {
        **_topics(core),
        **_parked(core),
        **_messages(core, publishing),
        **_receipts(publishing),
        **_requests(Requests(node)),
        **_receivers(core),
        **_deliveries(Deliveries(node)),
        **_subscribing(Streams(node)),
    }


def _read(run: Handler, summary: str, returned: dict[str, Any], **more: Any) -> Operation:
    answers = {200: "it", **more.pop("answers", _TOPIC)}
    return Operation(run, summary, answers, True, returns=(_JSON,), returned=returned, **more)


def _sent(
    run: Handler, summary: str, schema: dict[str, Any], answers: dict[int, str], **more: Any
) -> Operation:
    return Operation(run, summary, {**answers, **_BODY}, body=_JSON, schema=schema, **more)


def _topics(core: Core) -> Paths:
    one = "/v1/topics/{topic}"
    listed = schemas.answer(topics={"type": "array", "items": {"type": "string"}})
    return {
        "/v1/status": {
            "GET": _read(
                core.status,
                "What each process of the broker says of itself; null where one does not answer",
                schemas.STATUS,
                answers={},
            )
        },
        "/v1/topics": {"GET": _read(core.list_topics, "Every topic", listed, answers={})},
        one: {
            "GET": _read(core.describe, "Settings, counts and rates", schemas.DESCRIBED),
            "PUT": _sent(
                core.create_topic,
                "Makes a topic with settings of its own",
                schemas.SETTINGS,
                {**_MADE, **_EXISTS, **_PASSWORD},
                guarded=True,
                needs_body=False,
            ),
            "PATCH": _sent(
                core.configure,
                "Changes settings; those in inherit follow the defaults again",
                schemas.CONFIGURATION,
                {**_DONE, **_TOPIC, **_PASSWORD},
                guarded=True,
            ),
            "DELETE": Operation(
                core.delete_topic,
                "Drops a topic with all that belongs to it",
                {**_DONE, **_TOPIC, **_PASSWORD},
                guarded=True,
            ),
        },
        f"{one}/clear": {
            "POST": Operation(
                core.clear,
                "Drops every message of a topic",
                {**_DONE, **_TOPIC, **_PASSWORD},
                guarded=True,
            )
        },
    }


def _parked(core: Core) -> Paths:
    one = "/v1/topics/{topic}"
    return {
        f"{one}/parked": {
            "GET": _read(
                core.list_parked,
                "Parked deliveries, oldest failure first; at most 1,000 after a position",
                schemas.PARKED,
                query={"after": schemas.whole(0, 2**63 - 1)},
            ),
            "DELETE": Operation(
                core.abandon_all,
                "Drops all that is parked",
                {**_DONE, **_TOPIC, **_PASSWORD},
                guarded=True,
            ),
        },
        f"{one}/parked/renew": {
            "POST": Operation(
                core.renew_all, "Has all that is parked wait again", {**_DONE, **_TOPIC}
            )
        },
    }


def _messages(core: Core, publishing: Publishing) -> Paths:
    every, one = "/v1/topics/{topic}/messages", "/v1/topics/{topic}/messages/{sequence}"
    change = {**_DONE, **_MESSAGE, **_STATE}
    to_receiver = {"receiver": schemas.NAME}
    published = {
        200: "all were accepted: a result for each, in order",
        207: "some were refused: theirs have a code and a message",
        404: "there is no such topic, and it may not be made",
        409: "all were refused, as a duplicate say; so with other statuses: that of the first",
    }
    return {
        every: {
            "POST": _sent(
                publishing.publish,
                "Publishes messages; a body that is not JSON is the payload of one",
                schemas.PUBLISH,
                published,
                raw=True,
                query=schemas.PUBLISH_QUERY,
                sends=schemas.PUBLISH_HEADERS,
                returns=(_JSON,),
                returned=schemas.PUBLISHED,
                waits=True,
                waits_with=b"resolved=",
                body_bytes_max=BODY_BYTES_MAX,
            )
        },
        one: {
            "GET": Operation(
                core.fetch,
                "Reads a message; one that was ordered becomes active",
                {200: "it", **_MESSAGE, 409: "it is a draft"},
                returns=(_JSON,),
                returned=schemas.HELD,
            ),
            "DELETE": Operation(
                core.abandon,
                "Drops a message, or its parked delivery to one receiver",
                change,
                query=to_receiver,
            ),
        },
        f"{one}/renew": {
            "POST": Operation(
                core.renew, "Has a parked delivery wait again", change, query=to_receiver
            )
        },
    }


def _receipts(publishing: Publishing) -> Paths:
    every, one = "/v1/topics/{topic}/receipts", "/v1/topics/{topic}/receipts/{receipt}"
    return {
        one: {
            "GET": _read(
                publishing.receipt,
                "How a message ended that was published with a receipt; waits for it",
                schemas.RECEIPT,
                query={"wait": schemas.RECEIPTS["properties"]["wait"]},
                waits=True,
            )
        },
        every: {
            "POST": _sent(
                publishing.receipts,
                "The same of many messages at once; waits for all",
                schemas.RECEIPTS,
                {200: "one for each, in order", **_TOPIC},
                returns=(_JSON,),
                returned=schemas.answer(receipts={"type": "array", "items": schemas.RECEIPT}),
                waits=True,
            )
        },
    }


def _requests(requests: Requests) -> Paths:
    nobody = {409: "nobody is there to take it", 404: "there is no such topic"}
    return {
        "/v1/topics/{topic}/request": {
            "POST": _sent(
                requests.request,
                "Hands a request to one receiver that is online, and waits for its answer",
                schemas.REQUEST,
                {200: "the answer", **nobody, 504: "there is no answer in time"},
                raw=True,
                query=schemas.REQUEST_QUERY,
                returns=(_JSON,),
                returned=schemas.REPLIED,
                waits=True,
                body_bytes_max=BODY_BYTES_MAX,
            )
        },
        "/v1/topics/{topic}/reply": {
            "POST": _sent(
                requests.reply,
                "Answers a request, by the topic and the subject of its reply_to",
                schemas.REQUEST,
                {**_DONE, **nobody},
                raw=True,
                query=schemas.REPLY_QUERY,
                body_bytes_max=BODY_BYTES_MAX,
            )
        },
    }


def _receivers(core: Core) -> Paths:
    every, one = "/v1/topics/{topic}/receivers", "/v1/topics/{topic}/receivers/{receiver}"
    return {
        every: {
            "GET": _read(
                core.list_receivers,
                "The receivers of a topic by name",
                schemas.RECEIVERS,
                query={"after": schemas.AFTER},
            )
        },
        one: {
            "PUT": _sent(
                core.create_receiver,
                "Makes a durable receiver with nobody on it yet",
                schemas.RECEIVER,
                {**_MADE, **_TOPIC, **_EXISTS},
                needs_body=False,
            ),
            "DELETE": Operation(
                core.delete_receiver,
                "Deletes a durable receiver and drops its backlog",
                {**_DONE, **_RECEIVER, **_STATE, **_PASSWORD},
                guarded=True,
            ),
        },
        f"{one}/seek": {
            "POST": _sent(
                core.seek,
                "Moves a durable receiver to a sequence or a time; with neither, to now",
                schemas.SEEK,
                {200: "where it is now", **_RECEIVER, **_STATE, **_PASSWORD},
                guarded=True,
                needs_body=False,
                returns=(_JSON,),
                returned=schemas.answer(sequence=schemas.whole(0, 2**63 - 1)),
            )
        },
    }


def _deliveries(deliveries: Deliveries) -> Paths:
    one = "/v1/topics/{topic}/receivers/{receiver}"
    reported = {200: "those that do not count, with a code each", **_RECEIVER}
    refused: dict[str, Any] = {"returns": (_JSON,), "returned": schemas.REFUSED}
    return {
        f"{one}/pull": {
            "POST": _sent(
                deliveries.pull,
                "Takes deliveries of a durable receiver, waiting for the first",
                schemas.PULL,
                {200: "them, perhaps none", **_RECEIVER, **_STATE},
                needs_body=False,
                returns=(_JSON,),
                returned=schemas.PULLED,
                waits=True,
            )
        },
        f"{one}/reports": {
            "POST": _sent(
                deliveries.report,
                "Says how far deliveries have come",
                schemas.REPORTS,
                reported,
                **refused,
            )
        },
        f"{one}/extend": {
            "POST": _sent(
                deliveries.extend,
                "Moves the deadline of deliveries; 0 seconds gives them up at once",
                schemas.EXTEND,
                reported,
                **refused,
            )
        },
    }


def _subscribing(streams: Streams) -> Paths:
    return {
        "/v1/topics/{topic}/subscribe": {
            "GET": Operation(
                streams.events,
                "Deliveries as server-sent events, or by a WebSocket, until the client hangs up",
                {200: "events: subscribed, message, error", **_TOPIC, **_STATE},
                returns=(EVENT_STREAM,),
                query=schemas.SUBSCRIBE_QUERY,
                socket=streams.socket,
            )
        }
    }
