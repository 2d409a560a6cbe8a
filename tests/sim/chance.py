"""Everything that is drawn at random for a run, from the one generator of its seed."""

from random import Random
from typing import Any

from asterism.message import NEVER_MS, Header, Mode, Status
from asterism.settings import BackoffMs, DropOld, RejectNew

SUBJECTS = ("a", "a/b", "a/c", "a/b/c", "b/x", "b/x/y", "c")
INTERESTS = ("**", "a/**", "a/*", "a", "a/b", "b/**", "*/x/**", "**/y", "c", "*/b")
NAMES = ("red", "green", "blue")
GROUPS = ("crew", "shift")
LONG_MS = 3_600_000


def settings(rng: Random, others: list[str]) -> dict[str, Any]:
    """A topic's own settings: short times, and a few of what makes topics differ."""
    chosen: dict[str, Any] = {
        "sent_timeout_ms": rng.choice((200, 1_000, 5_000)),
        "received_timeout_ms": rng.choice((200, 1_000, 5_000)),
        "draft_timeout_ms": rng.choice((500, 3_000)),
        "default_ttl_ms": rng.choice((3_000, 20_000, LONG_MS, LONG_MS)),
        "max_attempts": rng.choice((1, 1, 2, 3)),
        "requeue": rng.choice(("back", "back", "front")),
    }
    if rng.random() < 0.6:
        chosen |= rare_setting(rng, others)
    if rng.random() < 0.4:
        chosen |= rare_setting(rng, others)
    return chosen


def rare_setting(rng: Random, others: list[str]) -> dict[str, Any]:
    name = rng.choice(
        ("blocking", "overflow", "overflow", "concurrency", "unique", "max_deliveries",
         "retry_backoff", "dead_letter", "history", "default_ttl_ms", "receipt_ttl_ms")
    )  # fmt: skip
    value: Any = None
    match name:
        case "blocking" | "unique":
            value = rng.random() < 0.8
        case "overflow":
            value = rng.choice((RejectNew, DropOld))(rng.randint(2, 12))
        case "concurrency":
            value = rng.randint(1, 4)
        case "max_deliveries":
            value = rng.randint(1, 5)
        case "retry_backoff":
            least = rng.choice((50, 300))
            value = BackoffMs(least, least * 4)
        case "dead_letter":
            value = rng.choice(others) if others else None
        case "history":
            value = rng.choice(("headers", "full", "none"))
        case "default_ttl_ms":
            value = rng.choice((800, 4_000, LONG_MS))
        case "receipt_ttl_ms":
            value = rng.choice((2_000, LONG_MS))
    return {name: value}


def interests(rng: Random) -> tuple[str, ...]:
    if rng.random() < 0.35:
        return ("**",)
    return tuple(dict.fromkeys(rng.choice(INTERESTS) for _ in range(rng.randint(1, 2))))


def header(rng: Random, now_ms: int, receipts: bool = True) -> Header:
    """A message's header."""
    mode = rng.choices((Mode.DURABLE, Mode.PUSH, Mode.ONLINE), (75, 11, 14))[0]
    fields: dict[str, Any] = {}
    if mode is Mode.DURABLE:
        fields["max_receivers"] = rng.choices((1, None, 2), (50, 32, 18))[0]
        if rng.random() < 0.15:
            fields["expires_ms"] = now_ms + rng.randint(100, 10_000)
        elif fields["max_receivers"] == 1 and rng.random() < 0.15:
            fields["expires_ms"] = NEVER_MS
    if rng.random() < 0.2:
        fields["priority"] = rng.randint(0, 2)
    if rng.random() < 0.12:
        fields["deliver_ms"] = now_ms + rng.randint(1, 3_000)
    if rng.random() < 0.2:
        fields["ordering_key"] = rng.choice(("k1", "k2"))
        if rng.random() < 0.4:
            fields["priority"] = rng.randint(0, 2)
    if rng.random() < 0.2:
        fields["attributes"] = {"colour": rng.choice(NAMES)}
    fields["receipt"] = receipts and rng.random() < 0.6
    wanted = tuple(dict.fromkeys(rng.choice(SUBJECTS) for _ in range(rng.choice((1, 1, 1, 2)))))
    expect = rng.choices((Status.PROCESSED, Status.RECEIVED, Status.SENT), (55, 20, 25))[0]
    return Header(mode, expect, wanted, **fields)


def payload(rng: Random, count: int) -> bytes:
    """Mostly one of its own, now and then one that was there before, rarely a large one."""
    roll = rng.random()
    if roll < 0.1:
        return b"same %d" % rng.randint(0, 3)
    if roll < 0.13:
        return b"large %d " % count + b"x" * 9_000
    return b"payload %d" % count
