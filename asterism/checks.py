"""Checks on what a peer sends: each returns the value, its type known, or raises ``PeerError``."""

import re
from collections.abc import Collection
from operator import countOf
from typing import Final

from asterism import limits
from asterism.errors import PeerError, of_wrong_type

SHOWN_CHARACTERS_MAX: Final = 80
SHOWN_BITS_MAX: Final = 64
# Exactly the category Cc. The rest of what str.isprintable refuses grows and shrinks with the
# Unicode version of the interpreter, and a name must be as good after an upgrade as before.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def shown(value: object) -> str:
    """A peer's value as a message may show it: short, on one line, and never an error itself.

    The peer chose the value: Python refuses to print a huge integer, and printing a deep list
    overflows the stack.
    """
    if type(value) is str:
        whole_text = len(value) <= SHOWN_CHARACTERS_MAX
        return repr(value) if whole_text else repr(value[:SHOWN_CHARACTERS_MAX]) + " and so on"
    if type(value) is int and value.bit_length() > SHOWN_BITS_MAX:
        return f"an integer of {value.bit_length()} bits"
    if value is None or type(value) in (bool, int, float):
        return repr(value)
    return f"a value of type {type(value).__name__}"


def whole(name: str, value: object, least: int, most: int, code: str = "bad_request") -> int:
    """An integer within bounds; ``True`` and ``1.0`` are not integers here."""
    if type(value) is not int:
        raise of_wrong_type(code, f"{name} must be an integer, not {shown(value)}")
    if not least <= value <= most:
        raise PeerError(code, f"{name} must be from {least} to {most}, not {shown(value)}")
    return value


def are_all(kind: type, values: Collection[object]) -> bool:
    """Is each of them of exactly this type? To count is quicker than to collect their types."""
    return countOf(map(type, values), kind) == len(values)


def maybe_whole(name: str, value: object, least: int, most: int) -> int | None:
    return None if value is None else whole(name, value, least, most)


def flag(name: str, value: object) -> bool:
    if type(value) is not bool:
        raise of_wrong_type("bad_request", f"{name} must be true or false, not {shown(value)}")
    return value


def text(
    name: str, value: object, bytes_max: int, code: str = "bad_request", least: int = 1
) -> str:
    """A string whose UTF-8 form has at most ``bytes_max`` bytes, and at least ``least``."""
    if type(value) is not str:
        raise of_wrong_type(code, f"{name} must be text, not {type(value).__name__}")
    try:
        size = len(value) if value.isascii() else len(value.encode())
    except UnicodeEncodeError:
        raise PeerError(code, f"{name} is not valid Unicode") from None
    if not least <= size <= bytes_max:
        raise PeerError(code, f"{name} must have {least} to {bytes_max} bytes, not {size}")
    return value


def maybe_text(name: str, value: object, bytes_max: int) -> str | None:
    return None if value is None else text(name, value, bytes_max)


def octets(name: str, value: object, least: int, most: int, code: str = "bad_request") -> bytes:
    if type(value) is not bytes:
        raise of_wrong_type(code, f"{name} must be bytes, not {type(value).__name__}")
    if not least <= len(value) <= most:
        raise PeerError(code, f"{name} must have {least} to {most} bytes, not {len(value)}")
    return value


def one_of(name: str, value: object, allowed: Collection[str]) -> str:
    if type(value) is not str:
        raise of_wrong_type(
            "bad_request", f"{name} must be one of {', '.join(allowed)}; not {shown(value)}"
        )
    if value not in allowed:
        choices = ", ".join(allowed)
        raise PeerError("bad_request", f"{name} must be one of {choices}; not {shown(value)}")
    return value


def string_map(name: str, value: object) -> dict[str, str]:
    """Attributes: text to text, each within its bound."""
    if type(value) is not dict:
        raise of_wrong_type("bad_request", f"{name} must be a map, not {type(value).__name__}")
    if len(value) > limits.ATTRIBUTES_MAX:
        raise PeerError(
            "bad_request", f"{name} has {len(value)} entries, over {limits.ATTRIBUTES_MAX}"
        )
    for key, held in value.items():
        text(f"a key of {name}", key, limits.ATTRIBUTE_BYTES_MAX, least=0)
        text(f"the value of {name} {shown(key)}", held, limits.ATTRIBUTE_BYTES_MAX, least=0)
    return value


def tuple_of(
    name: str, value: object, most: int, code: str = "bad_request", least: int = 1
) -> tuple[object, ...]:
    """A list or tuple of bounded length, as a tuple; what is in it is still to be checked."""
    if type(value) is not tuple and type(value) is not list:
        raise of_wrong_type(code, f"{name} must be a list, not {type(value).__name__}")
    if not least <= len(value) <= most:
        raise PeerError(code, f"{name} must have {least} to {most} entries, not {len(value)}")
    return tuple(value)


def topic_name(value: object, name: str = "topic") -> str:
    """A topic's name: any text of 1 to 255 bytes without control characters.

    A door whose queues are topics may have one with the empty name; it maps that to a name of its
    own, so that here a name is never empty.
    """
    topic = text(name, value, limits.TOPIC_BYTES_MAX)
    if _CONTROL.search(topic):
        raise PeerError("bad_request", f"{name} must have no control characters")
    return topic
