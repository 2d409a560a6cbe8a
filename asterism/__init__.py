"""Asterism: a durable message broker whose topics are actors.

This package is the vocabulary that every part shares: commands, effects, errors, limits, settings.
The parts themselves are its subpackages. Importing it opens nothing and needs no RocksDB, so that
a client install stays light; the clients are imported when they are first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from asterism.errors import (
    BadInterest,
    BadRequest,
    BadSubject,
    BrokerError,
    Busy,
    Duplicate,
    Forbidden,
    Internal,
    NoReceiver,
    NoSuchMessage,
    NoSuchReceiver,
    NoSuchTopic,
    NotYours,
    Overflow,
    TooLarge,
    TopicExists,
    TopicGone,
    Unauthorized,
    UnsupportedVersion,
    WrongState,
)
from asterism.errors import PeerError as PeerError
from asterism.options import Backoff
from asterism.settings import DropOld, RejectNew

if TYPE_CHECKING:  # for type checkers and editors, which do not run ``__getattr__``
    from asterism.sdk.aio import (
        BatchReceipt,
        ClosedError,
        Delivery,
        Inbox,
        Message,
        MessageReceipt,
        Node,
        Once,
        Outcome,
        Receipt,
        connect,
    )
    from asterism.sdk.client import (
        BlockingBatchReceipt,
        BlockingDelivery,
        BlockingInbox,
        BlockingMessageReceipt,
        BlockingNode,
        BlockingReceipt,
        connect_blocking,
    )
    from asterism.sdk.listing import BlockingListing, Listing
    from asterism.sdk.results import (
        BrokerStatus,
        DiskStatus,
        ParkedDelivery,
        ProcessStatus,
        QueueStats,
        ReceiverInfo,
        ReceiverLag,
        StoredMessage,
        TopicInfo,
    )

__version__: Final = "0.1.0"

# What the SDK gives users by this package's name, and the module of the SDK that has it.
_CLIENTS: Final = {
    "BatchReceipt": "aio",
    "BlockingBatchReceipt": "client",
    "BlockingDelivery": "client",
    "BlockingInbox": "client",
    "BlockingListing": "listing",
    "BlockingMessageReceipt": "client",
    "BlockingNode": "client",
    "BlockingReceipt": "client",
    "BrokerStatus": "results",
    "ClosedError": "aio",
    "Delivery": "aio",
    "DiskStatus": "results",
    "Inbox": "aio",
    "Listing": "listing",
    "Message": "aio",
    "MessageReceipt": "aio",
    "Node": "aio",
    "Once": "aio",
    "Outcome": "aio",
    "ParkedDelivery": "results",
    "ProcessStatus": "results",
    "QueueStats": "results",
    "Receipt": "aio",
    "ReceiverInfo": "results",
    "ReceiverLag": "results",
    "StoredMessage": "results",
    "TopicInfo": "results",
    "connect": "aio",
    "connect_blocking": "client",
}

# In full, since type checkers read it too; a test compares it with the table above.
__all__ = [
    "Backoff",
    "BadInterest",
    "BadRequest",
    "BadSubject",
    "BatchReceipt",
    "BlockingBatchReceipt",
    "BlockingDelivery",
    "BlockingInbox",
    "BlockingListing",
    "BlockingMessageReceipt",
    "BlockingNode",
    "BlockingReceipt",
    "BrokerError",
    "BrokerStatus",
    "Busy",
    "ClosedError",
    "Delivery",
    "DiskStatus",
    "DropOld",
    "Duplicate",
    "Forbidden",
    "Inbox",
    "Internal",
    "Listing",
    "Message",
    "MessageReceipt",
    "NoReceiver",
    "NoSuchMessage",
    "NoSuchReceiver",
    "NoSuchTopic",
    "Node",
    "NotYours",
    "Once",
    "Outcome",
    "Overflow",
    "ParkedDelivery",
    "ProcessStatus",
    "QueueStats",
    "Receipt",
    "ReceiverInfo",
    "ReceiverLag",
    "RejectNew",
    "StoredMessage",
    "TooLarge",
    "TopicExists",
    "TopicGone",
    "TopicInfo",
    "Unauthorized",
    "UnsupportedVersion",
    "WrongState",
    "__version__",
    "connect",
    "connect_blocking",
]


def __getattr__(name: str) -> Any:
    module = _CLIENTS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"asterism.sdk.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_CLIENTS})
