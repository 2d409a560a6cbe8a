"""Headers of NATS and attributes of the broker, each made into the other. Pure.

    NATS/1.0[ status]CRLF  Name: valueCRLF  Name: another valueCRLF  CRLF

A name is an attribute. Several values of one name are the lines of its attribute, since no value
has a line end. The status is the attribute ``:status``, a name that no header can have. Where an
answer goes to is said by the attributes that ``request`` and ``reply`` of the SDK use, so that
either side may answer the other.

Between clients of this door headers travel byte by byte, whatever they hold; what is here is for
all others. A block that is no list of headers is the attribute ``:headers`` as it stands.
"""

import re
from typing import Final

from asterism import limits

VERSION_LINE: Final = b"NATS/1.0"
STATUS: Final = ":status"
OPAQUE: Final = ":headers"
_NAME: Final = re.compile(r"[!-9;-~]+")  # printable, and no colon
_LINE_ENDS: Final = re.compile(r"\r\n|\r|\n")


# A larger block, or one of more lines, is not told to others than clients of this door: to read it
# would take longer than one message may hold up the next.
BLOCK_BYTES_MAX: Final = limits.HEADER_BYTES_MAX
LINES_MAX: Final = 1_024


class UntellableError(ValueError):
    """Headers that are too many, or too long, for the attributes of a message."""


def attributes_of(block: bytes) -> dict[str, str]:
    """The attributes for a block of headers; ``UntellableError`` where they are too much."""
    if len(block) > BLOCK_BYTES_MAX:
        raise UntellableError
    try:
        found = _read(block)
    except UntellableError:
        raise
    except ValueError:
        found = {OPAQUE: block.decode("latin-1")}
    _check(found)
    return found


def _read(block: bytes) -> dict[str, str]:
    first, *lines = block.decode().split("\r\n")
    version = VERSION_LINE.decode()
    if not first.startswith(version) or lines[-2:] != ["", ""][: len(lines)]:
        raise ValueError(first)
    if len(lines) > LINES_MAX:
        raise UntellableError
    found: dict[str, list[str]] = {}
    status = first.removeprefix(version).strip()
    if status:
        found[STATUS] = [status]
    for line in filter(None, lines):
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None:
            raise ValueError(line)
        found.setdefault(name, []).append(value.strip(" \t"))
    return {name: "\n".join(values) for name, values in found.items()}


def _check(found: dict[str, str]) -> None:
    size_max = limits.ATTRIBUTE_BYTES_MAX
    too_long = any(len(text.encode()) > size_max for pair in found.items() for text in pair)
    if too_long or len(found) > limits.ATTRIBUTES_MAX:
        raise UntellableError


def block_of(attributes: dict[str, str]) -> bytes:
    """The block of headers for attributes; empty where there are none."""
    if not attributes:
        return b""
    if OPAQUE in attributes:
        return attributes[OPAQUE].encode("latin-1", "replace")
    status = attributes.get(STATUS, "")
    lines = [VERSION_LINE.decode() + (f" {_one_line(status)}" if status else "")]
    for name, text in attributes.items():
        if name != STATUS:
            header = _name(name)
            lines += [f"{header}: {value}" for value in _LINE_ENDS.split(text)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _one_line(text: str) -> str:
    return _LINE_ENDS.sub(" ", text)


def _name(attribute: str) -> str:
    """A name that a header can have, of one that an attribute has."""
    if _NAME.fullmatch(attribute):
        return attribute
    shown = (char if _NAME.fullmatch(char) and char != "%" else _quoted(char) for char in attribute)
    return "".join(shown) or "%"


def _quoted(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode())
