"""What a peer can be told went wrong: one table of codes, and an exception for each of them.

An error a peer causes is a ``PeerError``; it never ends a process. An error of ours is an
``assert``: it ends the process, and the ordinary start is the recovery.

Users know the base as ``asterism.BrokerError``, and a code by the class that has its name in
capitals: ``overflow`` is ``asterism.Overflow``.
"""

import re
from typing import Any, ClassVar, Final, Self

ERRORS: Final[dict[str, str]] = {
    "bad_request": "The request is malformed; correct it as the detail says and send it again.",
    "bad_subject": "A subject needs at least one segment and no segment that is * or **.",
    "bad_interest": "An interest is a glob of segments between slashes; it needs at least one.",
    "unsupported_version": "The broker does not speak this version; use one that it lists.",
    "unauthorized": "Say who you are: this broker wants credentials, and yours are not known.",
    "forbidden": "Your role does not allow this on this topic; ask for the role you need.",
    "no_such_topic": "There is no topic of that name; create it, or allow auto_create.",
    "no_such_receiver": "There is no receiver of that name on the topic; subscribe first.",
    "no_such_message": "There is no such message on the topic; it is over, or never was.",
    "wrong_state": "The message, or the sender, is not in a state that allows this.",
    "not_yours": "Another receiver holds this delivery; only its holder may report on it.",
    "topic_exists": "A topic of that name exists already; configure it instead.",
    "no_receiver": "Nobody who is interested is online; publish it durable, or try later.",
    "overflow": "The topic holds as many messages as it may; consume some, or raise the size.",
    "duplicate": "The topic is unique, and holds a message with this payload already.",
    "too_large": "The payload or the batch is over its limit; send less, or raise the limit.",
    "topic_gone": "The topic was cleared or deleted while you waited; begin anew.",
    "busy": "The broker cannot take this now; try again after the time in the hint.",
    "internal": "Something is wrong in the broker itself; its log says what.",
}

# What is left to say where a detail says what was wrong: what to do, or how it should have been.
ADVICE: Final[dict[str, str]] = {
    "bad_request": "Correct it and send it again.",
    "bad_subject": ERRORS["bad_subject"],
    "bad_interest": ERRORS["bad_interest"],
    "unsupported_version": "Use a version that the broker speaks.",
    "unauthorized": ERRORS["unauthorized"],
    "forbidden": "Ask for the role you need.",
    "no_such_topic": "Create it, or allow auto_create.",
    "no_such_receiver": "Subscribe first.",
    "no_such_message": "It is over, or never was.",
    "wrong_state": "",
    "not_yours": "Only the holder of a delivery may report on it.",
    "topic_exists": "Configure it instead.",
    "no_receiver": "Publish it durable, or try later.",
    "overflow": "Consume some, or raise the size.",
    "duplicate": "",
    "too_large": "Send less, or raise the limit.",
    "topic_gone": "Begin anew.",
    "busy": "Try again after the time in the hint.",
    "internal": "The broker's log says more.",
}


def told(code: str, detail: str = "") -> str:
    """What was wrong and what to do, each said once: a detail stands for the sentence of its code,
    which says the same of no message in particular."""
    if not detail:
        return ERRORS[code]
    end = "" if detail[-1] in ".?!" else "."
    return f"{detail}{end} {ADVICE[code]}".rstrip()


class BrokerError(Exception):
    """A refusal: ``code`` is one of the table, ``detail`` says what exactly was wrong.

    Whoever makes one by its code gets the class of that code.
    """

    # What became of each message, where this is raised by a verb that publishes many.
    receipt: Any = None
    # Is what was wrong the type of a value? An SDK says so by a TypeError.
    is_about_type = False

    _classes: ClassVar[dict[str, type["BrokerError"]]] = {}

    def __init_subclass__(cls) -> None:
        code = "_".join(re.findall("[A-Z][a-z]*", cls.__name__)).lower()
        if code in ERRORS:  # else it is a kind of refusal that some part of the broker has
            BrokerError._classes[code] = cls

    def __new__(cls, code: str, detail: str = "", retry_after_ms: int | None = None) -> Self:
        assert code in ERRORS, f"{code!r} is not in the table of errors"
        found = BrokerError._classes[code]
        assert found is cls or cls not in BrokerError._classes.values(), (
            f"{cls.__name__} is not the class of {code!r}"
        )
        return super().__new__(found if issubclass(found, cls) else cls, code, detail)

    def __init__(self, code: str, detail: str = "", retry_after_ms: int | None = None) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.retry_after_ms = retry_after_ms

    @property
    def retry_after(self) -> float | None:
        """When to try again, in seconds from now, where the broker says so."""
        return None if self.retry_after_ms is None else self.retry_after_ms / 1_000

    def __reduce__(self) -> tuple[Any, ...]:
        # Without ``receipt``: that belongs to a connection, which no copy can have.
        return BrokerError, (self.code, self.detail, self.retry_after_ms)

    def __str__(self) -> str:
        return f"{self.code}: {told(self.code, self.detail)}"


PeerError = BrokerError
"""The name that the broker's own code has for it."""


def of_wrong_type(code: str, detail: str) -> BrokerError:
    """The refusal of a value whose type is wrong already."""
    error = BrokerError(code, detail)
    error.is_about_type = True
    return error


class BadRequest(BrokerError):
    """The broker finds the request malformed; ``detail`` names the field."""


class BadSubject(BrokerError):
    """A subject is empty, too long, or has a wildcard segment."""


class BadInterest(BrokerError):
    """An interest is empty or too long."""


class UnsupportedVersion(BrokerError):
    """The broker does not speak this client's version."""


class Unauthorized(BrokerError):
    """The broker wants credentials, and does not know these."""


class Forbidden(BrokerError):
    """The role of this client does not allow this."""


class NoSuchTopic(BrokerError):
    """There is no topic of that name."""


class NoSuchReceiver(BrokerError):
    """There is no receiver of that name on the topic."""


class NoSuchMessage(BrokerError):
    """There is no such message on the topic: it is over, or never was."""


class WrongState(BrokerError):
    """The message, or the client, is not in a state that allows this."""


class NotYours(BrokerError):
    """Another receiver holds this delivery."""


class TopicExists(BrokerError):
    """There is a topic of that name already."""


class NoReceiver(BrokerError):
    """Nobody who is interested is online to take a push message."""


class Overflow(BrokerError):
    """The topic holds as many messages as it may."""


class Duplicate(BrokerError):
    """The topic is unique, and holds a message with this payload already."""


class TooLarge(BrokerError):
    """The payload or the batch is over its limit."""


class TopicGone(BrokerError):
    """The topic was cleared or deleted while this was under way."""


class Busy(BrokerError):
    """The broker cannot take this now; ``retry_after`` says when to try again."""


class Internal(BrokerError):
    """Something is wrong in the broker itself; its log says what."""
