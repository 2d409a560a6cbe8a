"""What tests of the Pub/Sub door say of refusals."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from asterism.gateways.pubsub.errors import Code, Refusal


@contextmanager
def refused(part: str = "", code: Code = Code.INVALID_ARGUMENT) -> Iterator[None]:
    """What is in it is refused with this code, by a sentence with this part."""
    with pytest.raises(Refusal) as caught:
        yield
    assert caught.value.code is code, caught.value
    assert part in caught.value.detail, caught.value
    assert caught.value.detail[-1] in ".?", caught.value
