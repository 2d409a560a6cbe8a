"""JSON that clients send, of whole characters alone. Pure.

JSON can name half a character (``"\\ud800"``), which no text can hold that is to be sent: the
protobuf library breaks over it.
"""

import json
import re
from typing import Any, Final

_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")  # two of them may be one character


def read_json(data: bytes) -> Any:
    """The value of a JSON text in UTF-8; ``ValueError`` or ``RecursionError`` where it is none."""
    text = data.decode("utf-8-sig")
    value = json.loads(text)
    if _HALF.search(text):
        json.dumps(value, ensure_ascii=False).encode()
    return value
