"""Subjects and interests: how they are split and what is refused.

A subject (``order/17/paid``) is what a message carries; an interest (``order/*/paid``) is a glob
over subjects. ``*`` stands for exactly one segment, ``**`` for one or more; a star counts only as
a whole segment. Leading, trailing and doubled slashes are dropped on both sides alike.
"""

from asterism import checks, limits
from asterism.errors import PeerError

ONE = "*"
MANY = "**"


def split_subject(subject: object) -> tuple[str, ...]:
    """The segments of a subject; ``bad_subject`` for an empty one or one with a wildcard."""
    segments = _split("a subject", subject, "bad_subject")
    if ONE in segments or MANY in segments:
        raise PeerError("bad_subject", f"{subject!r} has a wildcard segment")
    return segments


def split_interest(interest: object) -> tuple[str, ...]:
    """The segments of an interest; ``bad_interest`` for an empty one."""
    return _split("an interest", interest, "bad_interest")


def _split(what: str, value: object, code: str) -> tuple[str, ...]:
    # Short ASCII text is what nearly every message has: its bytes need no counting.
    if type(value) is str and value.isascii() and len(value) <= limits.SUBJECT_BYTES_MAX:
        whole = value
    else:
        whole = checks.text(what, value, limits.SUBJECT_BYTES_MAX, code)
    segments = tuple(filter(None, whole.split("/")))
    if not 1 <= len(segments) <= limits.SEGMENTS_MAX:
        raise PeerError(
            code, f"{what} needs 1 to {limits.SEGMENTS_MAX} segments, {whole!r} has {len(segments)}"
        )
    return segments
