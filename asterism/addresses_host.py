"""Which addresses a host stands for, and whether only this machine can reach them.

A name is judged by what it resolves to, never by how it is spelled, and what was judged is what is
bound: nobody resolves the name a second time.
"""

import socket
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

EVERYWHERE: Final = "*"  # every address of the machine, as ZeroMQ writes it


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
