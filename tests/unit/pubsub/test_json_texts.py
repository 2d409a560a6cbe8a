"""JSON that clients send."""

import pytest

from asterism.gateways.pubsub.json_texts import read_json


def test_json_is_read() -> None:
    assert read_json(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00", "b": "\\\\ud800"}') == {
        "a": "\U0001f600",
        "b": "\\ud800",
    }


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b'"\\ud800"', b'{"\\uDC00": 1}', b'"\xed\xa0\x80"']
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_json(data)
