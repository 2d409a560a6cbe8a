"""Which pages may use this door, and by which names it is called. Pure.

To be on this machine, or in this network, is a credential here, and every page in a browser has it:
whoever wrote the page could publish, read and delete through that browser. So a request that a
page of another origin has made is refused, whatever its method: ``order`` takes a message with a
plain GET. Browsers say by themselves, in headers that no page can change, who asks:

- ``Origin``: with every WebSocket, every request of another method than GET and HEAD, and every
  fetch whose answer a page could read. It decides where it is there.
- ``Sec-Fetch-Site``: with the rest, images, scripts, frames, links and ``no-cors`` requests; but
  only to ``https`` and to this machine by one of its own names.
- ``Referer``: with the rest of that rest, unless the page asks that it be left out.

Other programs send none of them, and are served as ever. ``Host`` is checked as well: a page whose
own name leads to this machine all at once (DNS rebinding) is of the same origin to its browser.
"""

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar
from urllib.parse import urlsplit

from asterism.gateways.http.protocol import RefusedError

ANY: Final = "*"
LOOPBACK: Final = "loopback"
KNOWN_MAX: Final = 1_024  # values of Host and Origin that are remembered as good
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_WILDCARDS: Final = ("0.0.0.0", "::")
_ONE: Final = ipaddress.IPv6Address("::1")
_T = TypeVar("_T")

Headers = Mapping[bytes, bytes]


def check_once(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuses a request that names its host or its origin twice: others may take the other one."""
    named = [name for name, _ in headers if name in (b"host", b"origin")]
    if len(named) != len(set(named)):
        raise RefusedError(403, "a request has one Host and one Origin at most")


class Origins:
    """Whose requests are taken."""

    def __init__(
        self,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (LOOPBACK,),
        listens: str = "127.0.0.1",
    ) -> None:
        """The names that it has beside those of this machine, the pages that may, its address."""
        self._hosts = {*(host.lower() for host in hosts), listens.lower()}
        self._takes_addresses = listens in _WILDCARDS
        self._origins = {origin.lower() for origin in origins}
        self._good_hosts: set[bytes] = set()
        self._good_origins: set[tuple[bytes, bytes]] = set()

    def check_host(self, headers: Headers) -> None:
        """Refuses a request to a name that is not one of this door's; without a name it passes."""
        given = headers.get(b"host")
        if given is None or given in self._good_hosts:
            return
        if not self._is_own(given.decode("latin-1").lower()):
            shown = given[:100].decode("ascii", "replace")
            raise RefusedError(
                403,
                f"this service is not known by the name {shown!r}: use localhost or its address, "
                "or add the name to http.hosts (MQ_HOSTS)",
            )
        _remember(self._good_hosts, given)

    def _is_own(self, given: str) -> bool:
        found = _HOST.fullmatch(given)
        if found is None:
            return False
        host = found[1].strip("[]")
        if ANY in self._hosts or host in self._hosts or is_loopback_name(host):
            return True
        # Nobody's page can be rebound to an address: it has no name that could lead elsewhere.
        return self._takes_addresses and _is_address(host)

    def allows(self, headers: Headers) -> bool:
        """May the origin that a request names use this door? Of those that name one."""
        origin = headers.get(b"origin", b"")
        key = (origin, headers.get(b"host", b""))
        if key not in self._good_origins:
            if not self._is_allowed(*(value.decode("latin-1").lower() for value in key)):
                return False
            _remember(self._good_origins, key)
        return True

    def _is_allowed(self, origin: str, host: str) -> bool:
        if ANY in self._origins:
            return True
        found = _ORIGIN.fullmatch(origin)
        if found is None:
            return False
        scheme, name, port = found[1], found[2], found[3] or ""
        if host in (name + port, name + (port or _DEFAULT_PORTS.get(scheme, ""))):
            return self._is_own(host)  # a page of this door itself
        is_near = scheme in _DEFAULT_PORTS and is_loopback_name(name.strip("[]"))
        return origin in self._origins or (is_near and LOOPBACK in self._origins)

    def check(self, headers: Headers, safe: bool) -> None:
        """Refuses what a page of another origin asks; ``safe`` is a GET that changes nothing."""
        if b"origin" in headers:
            if not self.allows(headers):
                raise _foreign(headers[b"origin"])
            return
        if ANY in self._origins:
            return
        site = headers.get(b"sec-fetch-site")
        if site is None:
            self._check_referer(headers, safe)
        elif _is_link(headers):
            # Whoever follows a link, from a mail or by a redirect say, has not chosen to do this.
            if not safe:
                raise RefusedError(
                    403, "a link does not do this: try it on the page /docs, or with a program"
                )
        elif site not in (b"same-origin", b"none"):
            raise _foreign(headers.get(b"referer", b""))

    def _check_referer(self, headers: Headers, safe: bool) -> None:
        """Browsers say no more than this to a name that is not this machine's, without TLS."""
        if safe:
            return
        page = headers.get(b"referer")
        if page is not None:
            parts = _split(page)
            if not self.allows({**headers, b"origin": parts}):
                raise _foreign(parts)
        elif _is_browser(headers) and not _is_to_loopback(headers):
            raise RefusedError(
                403, "a browser does not say here which page asks this: use https, or a program"
            )


def is_loopback_name(host: str) -> bool:
    """Is it a name of this machine alone, by which browsers tell it who asks?

    Not so ``::ffff:127.0.0.1`` and ``0.0.0.0``, which lead here as well.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address == _ONE if address.version == 6 else address.is_loopback


def hosts_of(given: str) -> tuple[str, ...]:
    """The names in a setting, with commas between them."""
    hosts = tuple(filter(None, (entry.strip().lower().strip("[]") for entry in given.split(","))))
    for host in hosts:
        address = f"[{host}]" if ":" in host else host
        found = _HOST.fullmatch(address)
        if host != ANY and (found is None or found[2] is not None):
            raise ValueError(f"{host[:64]!r} is not the name of a host, without a port")
    return hosts


def origins_of(given: str) -> tuple[str, ...]:
    """The origins in a setting, with commas between them; with none, those of loopback."""
    origins = tuple(filter(None, (entry.strip().lower() for entry in given.split(","))))
    for origin in origins:
        found = _ORIGIN.fullmatch(origin)
        if origin in (ANY, LOOPBACK):
            continue
        if found is None:
            raise ValueError(
                f"{origin[:64]!r} is not an origin like https://app.example, nor loopback, nor *"
            )
        if found[3] is not None and found[3] == _DEFAULT_PORTS.get(found[1]):
            raise ValueError(f"{origin[:64]!r} is written without {found[3]} by browsers")
    return origins or (LOOPBACK,)


def _remember(good: set[_T], value: _T) -> None:
    if len(good) >= KNOWN_MAX:
        good.clear()
    good.add(value)


def _foreign(origin: bytes) -> RefusedError:
    shown = origin[:100].decode("ascii", "replace")
    named = f" of {shown}" if shown else " of another origin"
    return RefusedError(
        403,
        f"a page{named} may not use this service: serve it from localhost, or add its origin to "
        "http.cors_origins (MQ_CORS_ORIGINS)",
    )


def _is_link(headers: Headers) -> bool:
    """Does somebody open this in a window of its own?"""
    mode, where = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return mode == b"navigate" and where == b"document"


def _is_browser(headers: Headers) -> bool:
    """Browsers say so, all of them; the shell of Windows too, which has no pages."""
    agent = headers.get(b"user-agent", b"")
    return agent.startswith(b"Mozilla/") and b"PowerShell" not in agent


def _is_to_loopback(headers: Headers) -> bool:
    found = _HOST.fullmatch(headers.get(b"host", b"").decode("latin-1").lower())
    return found is not None and is_loopback_name(found[1].strip("[]"))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _split(page: bytes) -> bytes:
    """The origin of a page."""
    try:
        parts = urlsplit(page.decode("latin-1"))
    except ValueError:
        return b"null"
    return f"{parts.scheme}://{parts.netloc}".encode("latin-1")
