"""Subjects of NATS and of the broker: each has a name of its own on the other side. Pure.

    NATS     a.b.c    a.*    a.>     a/b     v1%2E2    *  (published)    **       >  (published)
    broker   a/b/c    a/*    a/**    a~2Fb   v1.2      ~2A               ~2A*     ~3E

A token may hold a slash and a segment may hold a dot or a blank, which the other side cannot say.
They are quoted, each way with a mark of its own: ``%2E`` in a token is a dot of the broker's,
``~2F`` in a segment is a slash of NATS. What only looks quoted has its mark quoted, once more than
it had: the segment ``%2E`` is the token ``%252E``, and that segment is ``%25252E``. So no two names
become one, and each comes back as it was.
"""

import re
from typing import Final

from asterism import limits

# Bytes that no token of NATS can have: blanks, line ends, the dot.
_IN_TOKENS: Final = rb"%((?:25)*)(09|0A|0D|20|2E)"
_QUOTED_BYTE: Final = re.compile(_IN_TOKENS)
_UNSPEAKABLE_BYTE: Final = re.compile(rb"[\t\n\r .]|" + _IN_TOKENS)
_QUOTED_SLASH: Final = re.compile(r"~((?:7E)*)2F")
_SLASH: Final = re.compile(r"/|~((?:7E)*)2F")
# Whole tokens and segments that mean something else on the other side.
_STARS: Final = {b"*": "~2A", b"**": "~2A*", b">": "~3E"}
_QUOTED_STARS: Final = {segment: token for token, segment in _STARS.items()}
_STAR_LIKE: Final = re.compile(r"~(?:7E)*(?:2A\*?|3E)")
_ARROW: Final = (b"%3E", ">")
_ARROW_LIKE: Final = re.compile(rb"%(?:25)*3E")


class UnspeakableError(ValueError):
    """A subject that the broker has no name for: too long, too deep, or no UTF-8."""


def segment_of(token: bytes) -> str:
    """The segment of the broker that a literal token of NATS is."""
    if token in _STARS:
        return _STARS[token]
    if _ARROW_LIKE.fullmatch(token):
        return _ARROW[1] if token == _ARROW[0] else token.decode().replace("%25", "%", 1)
    try:
        segment = _QUOTED_BYTE.sub(_byte, token).decode()
    except UnicodeDecodeError:
        raise UnspeakableError(token) from None
    if _STAR_LIKE.fullmatch(segment):
        return segment.replace("~", "~7E", 1)
    return _SLASH.sub(lambda at: "~2F" if at[0] == "/" else f"~7E{at[1]}2F", segment)


def token_of(segment: str) -> bytes:
    """The token of NATS that a literal segment of the broker is."""
    if segment in _QUOTED_STARS:
        return _QUOTED_STARS[segment]
    if segment == _ARROW[1]:
        return _ARROW[0]
    if _STAR_LIKE.fullmatch(segment):
        text = segment.replace("~7E", "~", 1).encode()
    else:
        text = _QUOTED_SLASH.sub(lambda at: f"~{at[1][2:]}2F" if at[1] else "/", segment).encode()
    if _ARROW_LIKE.fullmatch(text):
        return text.replace(b"%", b"%25", 1)
    return _UNSPEAKABLE_BYTE.sub(_quoted, text)


def _byte(quoted: "re.Match[bytes]") -> bytes:
    if quoted[1]:
        return b"%" + quoted[1][2:] + quoted[2]
    return bytes((int(quoted[2], 16),))


def _quoted(found: "re.Match[bytes]") -> bytes:
    if found[2]:
        return b"%25" + found[1] + found[2]
    return b"%%%02X" % found[0][0]


def subject_of(subject: bytes) -> str:
    """The broker's subject for one of NATS; ``UnspeakableError`` where there is none."""
    return _joined([segment_of(token) for token in _tokens(subject)])


def interest_of(pattern: bytes) -> str:
    """The broker's interest for what a client of NATS subscribes to."""
    tokens = _tokens(pattern)
    segments = ["*" if token == b"*" else segment_of(token) for token in tokens]
    if tokens[-1] == b">":
        segments[-1] = "**"
    return _joined(segments)


def _tokens(subject: bytes) -> list[bytes]:
    if subject.count(b".") >= limits.SEGMENTS_MAX:
        raise UnspeakableError(subject)  # each token would take a while to read
    return subject.split(b".")


def _joined(segments: list[str]) -> str:
    joined = "/".join(segments)
    if len(segments) > limits.SEGMENTS_MAX or len(joined.encode()) > limits.SUBJECT_BYTES_MAX:
        raise UnspeakableError(joined)
    return joined


def nats_subject_of(subject: str) -> bytes:
    """The subject of NATS for one of the broker."""
    return b".".join([token_of(segment) for segment in subject.split("/") if segment])
