"""Pages of listings, in the order of names and within what a client takes at a time. Pure.

A page token is the last name of the page before, quoted: what is created or deleted between two
pages neither repeats nor hides anything else.
"""

import base64
import binascii
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from asterism.gateways.pubsub.errors import invalid

PAGE_SIZE: Final = 100  # where a request does not say
PAGE_SIZE_MAX: Final = 1_000  # a larger page is asked for in vain
PAGE_BYTES_MAX: Final = 3_500_000  # of what is listed: clients take no answer over 4 MiB
TOKEN_CHARACTERS_MAX: Final = 1_024


class Page(NamedTuple):
    """A page of names; the token of the next one is empty where there is none."""

    names: list[str]
    next_page_token: str


def page_of(
    names: Iterable[str],
    page_size: int,
    page_token: str,
    bytes_of: Callable[[str], int] = len,
) -> Page:
    """The page that a request asks for, of names in any order.

    ``bytes_of`` says how large what is listed for a name is. A page has one name at least.
    """
    if page_size < 0:
        raise invalid(f"page_size must not be negative, and is {page_size}.")
    size = min(page_size or PAGE_SIZE, PAGE_SIZE_MAX)
    ordered = sorted(names)
    begin = bisect_right(ordered, _read_token(page_token)) if page_token else 0
    found = ordered[begin : begin + size]
    held = 0
    for at, name in enumerate(found):
        held += bytes_of(name)
        if held > PAGE_BYTES_MAX and at:
            del found[at:]
            break
    is_last = begin + len(found) >= len(ordered)
    return Page(found, "" if is_last else _token_of(found[-1]))


def _token_of(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _read_token(token: str) -> str:
    try:
        if len(token) > TOKEN_CHARACTERS_MAX:
            raise ValueError
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise invalid("page_token is not one that a listing returned.") from None
