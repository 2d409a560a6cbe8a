"""One packer for all values leaves nothing of one in the next, and does not grow for ever."""

from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest

from asterism.packing import KEPT_BYTES_MAX, Packing


def test_each_value_is_packed_by_itself() -> None:
    packing = Packing()
    values: list[object] = [1, [1, "a", b"b", None], {"a": {}}, (1, (2, [3]))]
    for value in values:
        assert packing.pack(value) == msgpack.packb(value)


def test_what_cannot_be_packed_leaves_nothing_behind() -> None:
    packing = Packing()
    with pytest.raises(TypeError):
        packing.pack([1, 2, object()])
    with pytest.raises(OverflowError):
        packing.pack([1, {"a": 1 << 65}])
    assert packing.pack([3]) == msgpack.packb([3])


def test_each_thread_has_a_packer_of_its_own() -> None:
    packing = Packing()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: packing._pack).result() != packing._pack


def test_a_packer_that_has_grown_is_not_kept() -> None:
    packing = Packing()
    kept = packing._pack
    packing.pack(b"x" * (KEPT_BYTES_MAX // 2))
    assert packing._pack == kept
    large = b"x" * (KEPT_BYTES_MAX + 1)
    assert packing.pack(large) == msgpack.packb(large)
    assert packing._pack != kept
