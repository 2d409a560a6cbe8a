"""What a peer can be told went wrong: one table of codes, one exception that carries a code.

An error a peer causes is a ``PeerError``; it never ends a process. An error of ours is an
``assert``: it ends the process, and the ordinary start is the recovery.
"""

from typing import Final

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


class PeerError(Exception):
    """A refusal that a peer is told of: a code from ``ERRORS``, and what exactly was wrong."""

    def __init__(self, code: str, detail: str = "", retry_after_ms: int | None = None) -> None:
        assert code in ERRORS, f"{code!r} is not in the table of errors"
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.code}: {told(self.code, self.detail)}"
