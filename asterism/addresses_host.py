"""Where a broker is: its default address and the variable that names another; and which addresses a
host stands for, and whether only this machine can reach them.

A name is judged by what it resolves to, never by how it is spelled, and what was judged is what is
bound: nobody resolves the name a second time.
"""

import re
import socket
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from asterism import checks
from asterism.limits import PORT_MAX

DEFAULT_ADDRESS: Final = "tcp://127.0.0.1:7700"
ADDRESS_VARIABLE: Final = "ASTERISM_ADDRESS"  # of the broker, for clients that are told of none
_ADDRESS: Final = re.compile(r"tcp://[^/]+:([0-9]{1,5})|ipc://.+")
EVERYWHERE: Final = "*"  # every address of the machine, as ZeroMQ writes it


def checked_address(name: str, address: str) -> str:
    """An address that clients can connect to. Of another, a ``ValueError`` says where it was given;
    what ZeroMQ says of it helps nobody."""
    parts = _ADDRESS.fullmatch(address)
    if parts is None or int(parts[1] or 0) > PORT_MAX:
        raise ValueError(f"{name} must be like {DEFAULT_ADDRESS}, not {checks.shown(address)}")
    return address


def address_in(environ: Mapping[str, str]) -> str | None:
    """The broker's address by its variable; none where that is not set, or empty."""
    found = environ.get(ADDRESS_VARIABLE)
    return checked_address(ADDRESS_VARIABLE, found) if found else None


class Place(NamedTuple):
    """Where to listen."""

    host: str  # an address; where none is known, the name of an interface, or what was given
    is_local: bool  # can this machine alone connect there?


def place_of(host: str) -> Place:
    """The place of a host: of an address, a name, or ``*``.

    A name is local only if all of its addresses are. One that does not resolve is not.
    """
    if host == EVERYWHERE:
        return Place(host, False)
    if host == "localhost":  # by its definition, whatever a resolver says
        return Place("127.0.0.1", True)
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return Place(host, False)
    addresses = sorted((str(address[0]) for *_, address in found), key=lambda each: ":" in each)
    return Place(addresses[0], all(map(_is_loopback, addresses)))


def _is_loopback(address: str) -> bool:
    parsed = ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback
