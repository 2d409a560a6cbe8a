"""Deliveries with names for their fields; the core makes plain tuples, which is faster."""

from typing import NamedTuple

from asterism.effects import Deliver


class Delivered(NamedTuple):
    """One message as a receiver gets it."""

    sequence: int
    attempt: int
    id: bytes
    header: bytes
    payload: bytes


def deliveries_of(effect: Deliver) -> list[Delivered]:
    """What an endpoint is sent."""
    return [Delivered(*fields) for fields in effect.deliveries]
