"""Small values: how the classes of commands and effects are made."""

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_Value = TypeVar("_Value")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(cls: type[_Value]) -> type[_Value]:
    """Makes a dataclass whose instances nobody changes: the type checker sees to that.

    One that is frozen as it runs is built by a call for each field, which takes three times as
    long, and every message costs several of them.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)
