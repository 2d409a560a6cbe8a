"""The filter language of subscriptions: which messages they get, by attributes alone. Pure.

    filter     = term { "AND" term } | term { "OR" term }
    term       = { "NOT" | "-" } ( "(" filter ")" | test )
    test       = "attributes" ":" key                       the message has the attribute
               | "attributes" "." key ( "=" | "!=" ) text   it has this value, or has not
               | "hasPrefix" "(" "attributes" "." key "," text ")"
    key        = letters, digits, "_" and "-", or a text
    text       = '"' characters and escapes '"'

NOT binds strongest. AND and OR are not mixed without parentheses, as it would not be plain which of
them comes first. ``!=`` is the opposite of ``=``: a message without the attribute passes.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from asterism.checks import shown
from asterism.gateways.pubsub.errors import Refusal, invalid

FILTER_BYTES_MAX: Final = 256

Filter = Callable[[Mapping[str, str]], bool]  # of a message's attributes: does it pass?

_TOKEN: Final = re.compile(
    r'(?P<word>[\w-]+)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<sign>!=|[.:=(),])', re.DOTALL
)
_BLANKS: Final = re.compile(r"\s*")
_ESCAPE: Final = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPED: Final = {
    **{char: char for char in "\\\"'`?"},
    **{"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"},
}
_JOINED: Final[Mapping[str, Callable[..., bool]]] = {"AND": all, "OR": any}


class _Token(NamedTuple):
    kind: str  # word, text, sign, or end
    value: str
    begin: int


_NOTHING: Final = "the end"


def read_filter(text: str) -> Filter | None:
    """The filter that a subscription's text stands for: none where every message passes.

    Refuses a text that is too long, or not of the language.
    """
    size = len(text.encode())
    if size > FILTER_BYTES_MAX:
        raise invalid(f"filter has {size} bytes, over {FILTER_BYTES_MAX}.")
    if not text.strip():
        return None
    parser = _Parser(text)
    found = parser.read_filter()
    parser.expect("end", "", "AND, OR or the end")
    return found


class _Parser:
    """Reads one filter, from its first character to its last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._token = self._next(0)

    def read_filter(self) -> Filter:
        terms = [self._read_term()]
        operator = ""
        while self._token.kind == "word" and self._token.value in _JOINED:
            if operator and self._token.value != operator:
                raise self._refusal("AND and OR cannot be mixed without parentheses")
            operator = self._take().value
            terms.append(self._read_term())
        return _joined(operator, terms) if operator else terms[0]

    def expect(self, kind: str, value: str, wanted: str) -> _Token:
        if self._token.kind != kind or (value and self._token.value != value):
            raise self._refusal(f"expected {wanted}")
        return self._take()

    def _read_term(self) -> Filter:
        is_opposite = False
        while self._take_not():
            is_opposite = not is_opposite
        if self._token[:2] == ("sign", "("):
            self._take()
            found = self.read_filter()
            self.expect("sign", ")", "AND, OR or a closing parenthesis")
        else:
            found = self._read_test()
        return _opposite(found) if is_opposite else found

    def _take_not(self) -> bool:
        """Takes a NOT if there is one; a minus is one too, and may stand close to what follows."""
        kind, value, begin = self._token
        if kind != "word" or not (value == "NOT" or value.startswith("-")):
            return False
        self._token = self._next(begin + (1 if value.startswith("-") else len(value)))
        return True

    def _read_test(self) -> Filter:
        if self._token[:2] == ("word", "hasPrefix"):
            return self._read_prefix()
        self.expect("word", "attributes", "attributes, hasPrefix, NOT or an opening parenthesis")
        if self._token[:2] == ("sign", ":"):
            self._take()
            return _has(self._read_key())
        self.expect("sign", ".", "a colon or a dot")
        key = self._read_key()
        if self._token[:2] not in (("sign", "="), ("sign", "!=")):
            raise self._refusal("expected = or !=")
        is_opposite = self._take().value == "!="
        found = _equals(key, self._read_text())
        return _opposite(found) if is_opposite else found

    def _read_prefix(self) -> Filter:
        self._take()
        self.expect("sign", "(", "an opening parenthesis")
        self.expect("word", "attributes", "attributes")
        self.expect("sign", ".", "a dot")
        key = self._read_key()
        self.expect("sign", ",", "a comma")
        prefix = self._read_text()
        self.expect("sign", ")", "a closing parenthesis")
        return _begins(key, prefix)

    def _read_key(self) -> str:
        if self._token.kind == "word":
            return self._take().value
        if self._token.kind == "text":
            return self._read_text()
        raise self._refusal("expected the key of an attribute")

    def _read_text(self) -> str:
        token = self._token
        self.expect("text", "", "a text in double quotes")
        try:
            return _ESCAPE.sub(_unescaped, token.value[1:-1])
        except ValueError:
            raise self._refusal("a text has an escape sequence that there is not", token) from None

    # --- tokens ---------------------------------------------------------------------------------

    def _take(self) -> _Token:
        taken = self._token
        self._token = self._next(taken.begin + len(taken.value))
        return taken

    def _next(self, begin: int) -> _Token:
        blanks = _BLANKS.match(self._text, begin)
        begin = blanks.end() if blanks else begin
        if begin == len(self._text):
            return _Token("end", "", begin)
        found = _TOKEN.match(self._text, begin)
        if found is None:
            if self._text[begin] == '"':
                raise invalid(f"filter: the text at character {begin + 1} has no closing quote.")
            raise invalid(
                f"filter: {shown(self._text[begin])} at character {begin + 1} means nothing here."
            )
        return _Token(str(found.lastgroup), found[0], begin)

    def _refusal(self, what: str, token: _Token | None = None) -> Refusal:
        at = token or self._token
        instead = _NOTHING if at.kind == "end" else shown(at.value)
        return invalid(f"filter: {what} at character {at.begin + 1}, where {instead} stands.")


def _unescaped(match: re.Match[str]) -> str:
    x, u, long_u, octal, char = match.groups()
    digits = x or u or long_u
    if digits or octal:
        found = chr(int(digits, 16) if digits else int(octal, 8))
        found.encode()  # half of a surrogate pair is no character
        return found
    if char not in _ESCAPED:
        raise ValueError(char)
    return _ESCAPED[char]


def _joined(operator: str, terms: list[Filter]) -> Filter:
    join = _JOINED[operator]
    return lambda attributes: join(term(attributes) for term in terms)


def _opposite(found: Filter) -> Filter:
    return lambda attributes: not found(attributes)


def _has(key: str) -> Filter:
    return lambda attributes: key in attributes


def _equals(key: str, value: str) -> Filter:
    return lambda attributes: attributes.get(key) == value


def _begins(key: str, prefix: str) -> Filter:
    return lambda attributes: key in attributes and attributes[key].startswith(prefix)
