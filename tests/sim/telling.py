"""History in short lines: what was asked, what came of it."""

from typing import Any

from asterism import commands as ask
from asterism.effects import Accepted, Deliver, Refusal, Refuse, Reply, Resolved
from asterism.message import Header, decode_header
from tests.support.delivered import Delivered, deliveries_of


def told(value: Any) -> str:
    """A command or an effect in one line."""
    match value:
        case None:
            return "tick"
        case ask.Publish():
            first, producer = value.first, _name(value.producer)
            inner = " | ".join(_message(*m) for m in value.messages)
            return f"Publish {producer} from {first}, settled {value.settled}: {inner}"
        case Accepted():
            results = [r.code if isinstance(r, Refusal) else r for r in value.results]
            return f"Accepted {results} to {_name(value.node)}"
        case Deliver():
            inner = " | ".join(_delivered(d) for d in deliveries_of(value))
            return f"Deliver {value.receiver} at {_name(value.node)}.{value.endpoint}: {inner}"
        case Resolved():
            return (
                f"Resolved {_name(value.producer)} {value.number} {value.verdict} {value.statuses}"
            )
        case Reply():
            return f"Reply {value.request} {value.body}"
        case Refuse():
            return f"Refuse {value.request} {value.code}: {value.detail}"
        case _:
            return str(value)


def _name(value: bytes | None) -> str:
    return "-" if value is None else value.decode(errors="replace").rstrip(".")


def _delivered(value: Delivered) -> str:
    message = _message(value.id, value.header, value.payload)
    return f"{value.sequence} attempt {value.attempt} {message}"


def _message(message_id: bytes, encoded: bytes, payload: bytes) -> str:
    return f"{payload[:14].decode()} {_header(decode_header(encoded))}"


def _header(header: Header) -> str:
    parts = [header.mode.name.lower(), header.expect.name.lower(), ",".join(header.subjects)]
    for name in ("max_receivers", "expires_ms", "priority", "deliver_ms", "ordering_key"):
        value = getattr(header, name)
        if value is not None:
            parts.append(f"{name}={value}")
    return "(" + " ".join(parts + ["receipt"] * header.receipt) + ")"
