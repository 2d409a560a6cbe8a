"""What a client sends to ``/v1``, made into plain values; what cannot be one is refused. Pure."""

import base64
import binascii
import json
import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from asterism import checks, limits
from asterism.gateways.http.protocol import RefusedError, Request
from asterism.options import unknown

QUERY_FIELDS_MAX: Final = 1_200  # enough for as many interests as there may be
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,30})?(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
STATUSES: Final = ("received", "processed", "failed")


# --- bodies -------------------------------------------------------------------------------------


def body_of(request: Request, *allowed: str) -> dict[str, Any]:
    """The fields of a JSON body; none is as good as an empty one."""
    if not request.body:
        return {}
    value = request.json()
    if b"\\u" in request.body:
        _check_characters(value)
    return fields_of("the body", value, allowed)


def fields_of(what: str, value: object, allowed: Collection[str]) -> dict[str, Any]:
    """An object of JSON with no fields but those that there are."""
    if type(value) is not dict:
        raise RefusedError(400, f"{what} must be a JSON object with {', '.join(allowed)}")
    for name in value:
        if name not in allowed:
            told = f"{what}: {unknown('field', name, allowed)}"
            raise RefusedError(400, f"{told}. There are {', '.join(allowed)}")
    return value


def _check_characters(value: object) -> None:
    """Escapes can write half of a character, which nothing behind this could encode."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise RefusedError(400, "the body has text that is not valid Unicode") from None


def texts(name: str, value: object, most: int) -> tuple[str, ...]:
    """A list of text."""
    found = checks.tuple_of(name, value, most, least=0)
    for entry in found:
        if type(entry) is not str:
            raise RefusedError(400, f"{name} must be a list of text")
    return found  # type: ignore[return-value]


def octets_of(encoded: object) -> bytes:
    if type(encoded) is not str:
        raise RefusedError(400, "payload_base64 must be text")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise RefusedError(400, "payload_base64 is not base64 with its padding") from None


# --- reports ------------------------------------------------------------------------------------


class Report(NamedTuple):
    """Deliveries that came to the same; ``attempts`` are none, or one for each."""

    status: str
    reason: str
    sequences: list[int]
    attempts: list[int]


def reports_of(body: dict[str, Any]) -> list[Report]:
    """The reports in a body, those alike together, in the order of the steps."""
    reports: dict[tuple[str, str, bool], Report] = {}
    for status in STATUSES:
        for entry in checks.tuple_of(
            status, body.get(status, ()), limits.BATCH_MESSAGES_MAX, least=0
        ):
            sequence, attempt, reason = _reported(status, entry)
            key = (status, reason, attempt is not None)
            report = reports.setdefault(key, Report(status, reason, [], []))
            report.sequences.append(sequence)
            if attempt is not None:
                report.attempts.append(attempt)
    return list(reports.values())


def _reported(status: str, entry: object) -> tuple[int, int | None, str]:
    if type(entry) is int:
        entry = {"sequence": entry}
    allowed = ("sequence", "attempt", "reason") if status == "failed" else ("sequence", "attempt")
    told = fields_of(f"what was {status}", entry, allowed)
    sequence = checks.whole("sequence", told.get("sequence"), 0, limits.SEQUENCE_MAX)
    attempt = checks.maybe_whole("attempt", told.get("attempt"), 0, limits.SEQUENCE_MAX)
    reason = checks.text("reason", told.get("reason", ""), limits.HEADER_BYTES_MAX, least=0)
    return sequence, attempt, reason


# --- paths and queries --------------------------------------------------------------------------


def sequence_of(request: Request) -> int:
    name = request.names["sequence"]
    if _WHOLE.fullmatch(name) is None or not 0 < int(name) <= limits.SEQUENCE_MAX:
        raise RefusedError(400, "a message is named by its sequence, a whole number from 1 on")
    return int(name)


class Query:
    """The query of a request."""

    def __init__(self, request: Request, *allowed: str) -> None:
        self._values: dict[str, list[str]] = {}
        try:
            pairs = parse_qsl(
                request.query.decode(),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=QUERY_FIELDS_MAX,
            )
        except ValueError:
            raise RefusedError(
                400, f"the query is UTF-8, percent-encoded, with {QUERY_FIELDS_MAX} fields at most"
            ) from None
        for name, value in pairs:
            if name not in allowed:
                raise RefusedError(400, unknown("field of the query", name, allowed))
            self._values.setdefault(name, []).append(value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def many(self, name: str) -> tuple[str, ...]:
        return tuple(self._values.get(name, ()))

    def text(self, name: str) -> str | None:
        values = self._values.get(name)
        if values is not None and len(values) > 1:
            raise RefusedError(400, f"give {name} once")
        return None if values is None else values[0]

    def whole(self, name: str) -> int | None:
        given = self.text(name)
        if given is not None and _WHOLE.fullmatch(given) is None:
            raise RefusedError(400, f"{name} must be a whole number, not {checks.shown(given)}")
        return None if given is None else int(given)

    def number(self, name: str) -> float | None:
        given = self.text(name)
        if given is not None and _NUMBER.fullmatch(given) is None:
            raise RefusedError(
                400, f"{name} must be a number of seconds, not {checks.shown(given)}"
            )
        return None if given is None else float(given)

    def flag(self, name: str) -> bool | None:
        given = self.text(name)
        if given not in (None, "true", "false"):
            raise RefusedError(400, f"{name} must be true or false, not {checks.shown(given)}")
        return None if given is None else given == "true"


def seconds_within(name: str, value: object, most: float) -> float:
    """So many seconds, as a number."""
    if type(value) not in (int, float) or not 0 <= value <= most:  # type: ignore[operator]
        raise RefusedError(400, f"{name} must be a number of seconds from 0 to {most:g}")
    return float(value)  # type: ignore[arg-type]
