"""Every method that a client can call but StreamingPull, by its name: for gRPC and REST alike."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from google.protobuf import empty_pb2
from google.pubsub_v1.types import pubsub as types

from asterism.gateways.pubsub import rules
from asterism.gateways.pubsub.publishing import Publishing
from asterism.gateways.pubsub.pulling import Pulling
from asterism.gateways.pubsub.seeking import Seeking
from asterism.gateways.pubsub.subscriptions import Subscriptions
from asterism.gateways.pubsub.topics import Topics

PUBLISHER: Final = "google.pubsub.v1.Publisher"
SUBSCRIBER: Final = "google.pubsub.v1.Subscriber"
STREAMING_PULL: Final = "StreamingPull"
StreamingPullRequest: Final[Any] = types.StreamingPullRequest.pb()
REQUEST_BYTES_MAX: Final = 2 * 1_048_576  # but for messages
_Empty: Final[Any] = empty_pb2.Empty

Call = Callable[[Any], Awaitable[Any]]


class Method(NamedTuple):
    """One method: the types of its request and its reply, and the coroutine that answers it.

    The coroutine raises ``Refusal``, or lets through what the SDK raises. It is cancelled when the
    client gives up.
    """

    request: Any
    reply: Any
    call: Call
    most_bytes: int = REQUEST_BYTES_MAX  # of a request: what is longer is not even read


def methods_of(
    topics: Topics,
    publishing: Publishing,
    subscriptions: Subscriptions,
    pulling: Pulling,
    seeking: Seeking,
) -> dict[str, Method]:
    """The methods, by ``SERVICE/METHOD``."""
    publisher = _publisher(topics, publishing, subscriptions)
    subscriber = {**_subscriber(subscriptions, pulling), **_seeker(seeking)}
    return {
        **{f"{PUBLISHER}/{name}": method for name, method in publisher.items()},
        **{f"{SUBSCRIBER}/{name}": method for name, method in subscriber.items()},
    }


def _publisher(
    topics: Topics, publishing: Publishing, subscriptions: Subscriptions
) -> dict[str, Method]:
    return {
        "CreateTopic": _change(types.Topic, types.Topic, topics.create),
        "UpdateTopic": _change(types.UpdateTopicRequest, types.Topic, topics.update),
        "Publish": _method(
            types.PublishRequest, types.PublishResponse, publishing.publish
        )._replace(most_bytes=rules.REQUEST_BYTES_MAX),
        "GetTopic": _method(types.GetTopicRequest, types.Topic, topics.get_topic),
        "ListTopics": _method(
            types.ListTopicsRequest, types.ListTopicsResponse, topics.list_topics
        ),
        "ListTopicSubscriptions": _method(
            types.ListTopicSubscriptionsRequest,
            types.ListTopicSubscriptionsResponse,
            topics.list_subscriptions,
        ),
        "ListTopicSnapshots": _method(
            types.ListTopicSnapshotsRequest,
            types.ListTopicSnapshotsResponse,
            topics.list_snapshots,
        ),
        "DeleteTopic": _change(types.DeleteTopicRequest, None, topics.delete),
        "DetachSubscription": _change(
            types.DetachSubscriptionRequest,
            types.DetachSubscriptionResponse,
            subscriptions.detach,
        ),
    }


def _subscriber(subscriptions: Subscriptions, pulling: Pulling) -> dict[str, Method]:
    return {
        "CreateSubscription": _change(types.Subscription, types.Subscription, subscriptions.create),
        "GetSubscription": _method(
            types.GetSubscriptionRequest, types.Subscription, subscriptions.get_subscription
        ),
        "UpdateSubscription": _change(
            types.UpdateSubscriptionRequest, types.Subscription, subscriptions.update
        ),
        "ListSubscriptions": _method(
            types.ListSubscriptionsRequest, types.ListSubscriptionsResponse, subscriptions.list_all
        ),
        "DeleteSubscription": _change(types.DeleteSubscriptionRequest, None, subscriptions.delete),
        "ModifyAckDeadline": _method(
            types.ModifyAckDeadlineRequest, None, pulling.modify_ack_deadline
        ),
        "Acknowledge": _method(types.AcknowledgeRequest, None, pulling.acknowledge),
        "Pull": _method(types.PullRequest, types.PullResponse, pulling.pull),
        "ModifyPushConfig": _change(
            types.ModifyPushConfigRequest, None, subscriptions.modify_push_config
        ),
    }


def _seeker(seeking: Seeking) -> dict[str, Method]:
    return {
        "GetSnapshot": _method(types.GetSnapshotRequest, types.Snapshot, seeking.get_snapshot),
        "ListSnapshots": _method(
            types.ListSnapshotsRequest, types.ListSnapshotsResponse, seeking.list_all
        ),
        "CreateSnapshot": _change(types.CreateSnapshotRequest, types.Snapshot, seeking.create),
        "UpdateSnapshot": _change(types.UpdateSnapshotRequest, types.Snapshot, seeking.update),
        "DeleteSnapshot": _change(types.DeleteSnapshotRequest, None, seeking.delete),
        "Seek": _change(types.SeekRequest, types.SeekResponse, seeking.seek),
    }


def _method(request: Any, reply: Any, call: Call) -> Method:
    """A method of these types of the package; without a reply it is the empty one."""
    return Method(request.pb(), _Empty if reply is None else reply.pb(), call)


def _change(request: Any, reply: Any, call: Call) -> Method:
    """The same of a method that changes resources."""
    return _method(request, reply, whole(call))


def whole(call: Call) -> Call:
    """A method that comes to its end when its client gives up: what is on disk by then is in memory
    too, and the other way round."""

    async def answer(request: Any) -> Any:
        task = asyncio.ensure_future(call(request))
        _under_way.add(task)
        task.add_done_callback(_over)
        return await asyncio.shield(task)

    return answer


_under_way: Final[set[asyncio.Future[Any]]] = set()  # so that nobody forgets it


def _over(task: "asyncio.Future[Any]") -> None:
    _under_way.discard(task)
    if not task.cancelled():
        task.exception()  # it may be that nobody waits for it any more
