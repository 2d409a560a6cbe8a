"""Which web pages may use REST: those of this machine. Pure.

To be on this machine is a credential here, and every page in a browser has it: whoever wrote the
page could publish and acknowledge through that browser. Browsers name the page that asks in
``Origin``; a page that had its own name lead to this machine (DNS rebinding) is found by ``Host``.
Other programs send no origin, and are served.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from asterism.checks import shown
from asterism.gateways.pubsub.errors import Code, Refusal


def check_page(headers: Mapping[bytes, bytes], is_local: bool) -> None:
    """Refuses a request of a page from elsewhere; ``is_local``: only this machine can connect."""
    host = headers.get(b"host", b"").decode("latin-1")
    if is_local and host and not _is_here(f"//{host}"):
        raise Refusal(
            Code.PERMISSION_DENIED,
            f"This server is not known by the name {shown(host)}: use localhost.",
        )
    origin = headers.get(b"origin")
    if origin is not None and not _is_here(page := origin.decode("latin-1")):
        raise Refusal(Code.PERMISSION_DENIED, f"A page of {shown(page)} may not use this server.")


def _is_here(url: str) -> bool:
    """Does a URL lead to this machine, by a name that cannot lead elsewhere?"""
    try:
        host = (urlsplit(url).hostname or "").lower()
    except ValueError:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
