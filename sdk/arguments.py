"""Arguments of verbs, checked before anything is sent. Pure.

What is wrong with one is a ``TypeError`` where its type is wrong, a ``ValueError`` else, with a
sentence. A ``BrokerError`` is what the broker said; it has not been asked here.
"""

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from asterism import checks, limits
from asterism.errors import PeerError, told
from asterism.options import milliseconds as _milliseconds
from asterism.subjects import split_interest

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ArgumentTypeError(TypeError):
    """An argument of the wrong type. ``refusal`` is what the broker would have said."""

    def __init__(self, refusal: PeerError) -> None:
        super().__init__(_sentence(refusal))
        self.refusal = refusal


class ArgumentValueError(ValueError):
    """An argument with a value that cannot be. ``refusal`` is what the broker would have said."""

    def __init__(self, refusal: PeerError) -> None:
        super().__init__(_sentence(refusal))
        self.refusal = refusal


ARGUMENT_ERRORS: Final = (ArgumentTypeError, ArgumentValueError)


def _sentence(refusal: PeerError) -> str:
    """What is wrong, and how it should have been; nothing was sent that could be sent again."""
    if refusal.code == "bad_request" and refusal.detail:
        return refusal.detail
    return told(refusal.code, refusal.detail)


def wrong(refusal: PeerError) -> ArgumentTypeError | ArgumentValueError:
    """The exception of an argument that would be refused so."""
    return ArgumentTypeError(refusal) if refusal.is_about_type else ArgumentValueError(refusal)


def refusal_of(error: PeerError | ArgumentTypeError | ArgumentValueError) -> PeerError:
    """What a door tells its own clients, whoever has found the mistake."""
    return error if isinstance(error, PeerError) else error.refusal


def local(check: Callable[_P, _T]) -> Callable[_P, _T]:
    """A check of what peers send, as a check of an argument."""

    @wraps(check)
    def checked(*arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return check(*arguments, **named)
        except PeerError as refusal:
            raise wrong(refusal) from None

    return checked


topic_name = local(checks.topic_name)
whole = local(checks.whole)
maybe_whole = local(checks.maybe_whole)
one_of = local(checks.one_of)
octets = local(checks.octets)
string_map = local(checks.string_map)
milliseconds = local(_milliseconds)


@local
def receiver_name(value: object) -> str:
    return checks.text("receiver", value, limits.NAME_BYTES_MAX)


@local
def maybe_name(name: str, value: object) -> str | None:
    return checks.maybe_text(name, value, limits.NAME_BYTES_MAX)


@local
def interests(values: Iterable[object]) -> None:
    for interest in values:
        split_interest(interest)


@local
def sequence(value: object) -> int:
    return checks.whole("sequence", value, 0, limits.SEQUENCE_MAX)


@local
def producer(value: object) -> bytes:
    return checks.octets("producer", value, limits.PRODUCER_ID_BYTES, limits.PRODUCER_ID_BYTES)
