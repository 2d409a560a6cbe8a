"""Keyword arguments that a type declares, shown where people look for them: in ``help``. Pure.

``**wishes: Unpack[Wishes]`` tells a type checker every name; at run time it tells none.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from textwrap import fill
from typing import Any, Final, TypeVar

from asterism.options import TopicOptions, topic_settings_as_user
from asterism.sdk.composing import Wishes
from asterism.sdk.consuming import SubscribeOptions
from asterism.settings import TopicSettings

_F = TypeVar("_F", bound=Callable[..., Any])

Keywords = Mapping[str, tuple[object, str]]  # name -> default, and what it is

_WISHES: Final[Keywords] = {
    "subject": (None, "what the message is about; by default the topic's name"),
    "subjects": (None, "the same, where there are several"),
    "mode": ("durable", "durable, push (one receiver that is online) or online (all of them)"),
    "expect": (None, "the step that counts as done: sent, received or processed; none: as the "
               "topic says, and that is processed of durable messages, sent of others"),
    "attributes": (None, "text to text, delivered unchanged"),
    "max_receivers": (None, "durable: over once so many receivers are done; none: as the topic "
                      "says; 'all': no bound, whatever the topic says"),
    "ttl": (None, "seconds until it expires; by default the topic's default_ttl"),
    "expires_at": (None, "the same as a time: seconds since 1970, a datetime, or 'never'"),
    "priority": (None, "0 first, none last"),
    "deliver_at": (None, "a time before which it is not delivered; none: at once"),
    "ordering_key": (None, "messages of one key are delivered one at a time, in order"),
    "receipt": (None, "whether receipt.resolved() can be awaited; by default where expect is not "
                "sent, or max_receivers is given"),
}  # fmt: skip

_SUBSCRIBE: Final[dict[str, str]] = {
    "name": "of a durable receiver; none: it lives as long as its connection",
    "group": "the same, for several who share its deliveries",
    "durable": "false: not durable, though it has a name or a group",
    "credit": "deliveries that the inbox holds at a time; none: as many as the consumer can do",
    "sent_timeout": "seconds until what is sent has to be received; by default the topic's",
    "received_timeout": "seconds until what is received has to be processed; the same",
    "max_lease": "seconds for which a delivery is kept, however slow the work; none: for ever",
    "timeout": "seconds to wait for the broker when subscribing",
}


def _settings() -> Keywords:
    held = topic_settings_as_user(TopicSettings())
    in_seconds = {field.name.removesuffix("_ms") for field in fields(TopicSettings)
                  if field.name.endswith("_ms")}  # fmt: skip
    told: dict[str, tuple[object, str]] = {}
    for name in TopicOptions.__annotations__:
        unit = ", in seconds" if name in in_seconds else ""
        default = "none" if held.get(name) is None else held[name]
        said = f"{default!s} unless the broker says otherwise{unit}"
        told[name] = (inspect.Parameter.empty, said)
    return told


def with_wishes(verb: _F) -> _F:
    """Names what may be said of a message."""
    return _spelled_out(verb, Wishes.__annotations__, _WISHES)


def with_push_wishes(verb: _F) -> _F:
    """The same of a request and its answer, which are push messages unless they say otherwise."""
    told = {**_WISHES, "mode": ("push", _WISHES["mode"][1])}
    return _spelled_out(verb, Wishes.__annotations__, told)


def with_settings(verb: _F) -> _F:
    """Names the settings of a topic; ``docs/configuration.md`` says what each is."""
    return _spelled_out(verb, TopicOptions.__annotations__, _settings())


def with_subscribe_options(subscribe: Callable[..., Any]) -> Callable[[_F], _F]:
    """Names what is handed on to ``subscribe``, with the defaults that it has there."""
    parameters = inspect.signature(subscribe).parameters
    told = {
        name: (parameters[name].default, _SUBSCRIBE.get(name, ""))
        for name in SubscribeOptions.__annotations__
    }
    return lambda verb: _spelled_out(verb, SubscribeOptions.__annotations__, told)


def _spelled_out(verb: _F, types: Mapping[str, Any], told: Keywords) -> _F:
    signature = inspect.signature(verb)
    own = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    more = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            # A setting that is not given is left to the broker; its default is in the text.
            default=... if (default := told[name][0]) is inspect.Parameter.empty else default,
            annotation=types[name],
        )
        for name in types
    ]
    verb.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    lines = [
        fill(f"{name}: {told[name][1]}", 96, initial_indent="    ", subsequent_indent="        ")
        for name in types
    ]
    verb.__doc__ = f"{inspect.getdoc(verb)}\n\nKeywords:\n\n" + "\n".join(lines) + "\n"
    return verb
