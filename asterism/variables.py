"""Environment variables: what the variable of a key is called, and how its text is read. Pure.

Text that cannot be read as what a key wants is left as it is: the check of the key then refuses it
and names the variable.
"""

import re
from typing import Final

PREFIX: Final = "ASTERISM_"


def variable_of(key: str) -> str:
    """The environment variable that overrides a key."""
    return PREFIX + key.upper().replace(".", "__")


def as_text(text: str) -> object:
    return text


def as_flag(text: str) -> object:
    return {"true": True, "false": False}.get(text, text)


def as_whole(text: str) -> object:
    return int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else text


def as_seconds(text: str) -> object:
    return float(text) if re.fullmatch(r"-?[0-9]{1,19}\.[0-9]{1,19}", text) else as_whole(text)
