"""Finds the front doors: those of asterism by their folders, others by the packages installed.

A folder of ``asterism.gateways`` with a module ``door`` is one of asterism. Another package has an
entry point of the group ``asterism.doors`` that names its record. Every process looks for doors
when it starts, so the look is cheap: ``importlib.metadata``, which takes 20 ms to load, is asked
only about packages that speak of such a group.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

from asterism.doors import Door

GROUP: Final = "asterism.doors"
RECORD: Final = "DOOR"
_GATEWAYS: Final = "asterism.gateways"
_FOLDER: Final = os.path.join(os.path.dirname(__file__), "gateways")
_POINTS_BYTES_MAX: Final = 1_048_576  # of a package's entry points; what is behind is not read


class DoorError(Exception):
    """A package has a door that cannot be used: which package, and what to do."""


def doors() -> Mapping[str, Door[Any]]:
    """Every door that there is, by its name; whether it is installed is another question."""
    return _doors(tuple(sys.path))


def is_installed(door: Door[Any]) -> bool:
    """Whether the module of a door is there, and what it needs."""
    try:
        return all(find_spec(name) is not None for name in (door.module, *door.needs))
    except ModuleNotFoundError:
        return False


@cache
def _doors(places: tuple[str, ...]) -> Mapping[str, Door[Any]]:
    found = {door.name: door for door in _own()}
    for door, package in _of_others(places):
        # One package may be described twice, by a checkout and where that is installed.
        if found.get(door.name, door) is not door:
            raise DoorError(
                f"{package} has a door named {door.name}, as another package has: uninstall one"
            )
        found[door.name] = door
    return MappingProxyType(found)


def _own() -> Iterator[Door[Any]]:
    for name in sorted(os.listdir(_FOLDER)):
        if os.path.isfile(os.path.join(_FOLDER, name, "door.py")):
            door: Door[Any] = getattr(import_module(f"{_GATEWAYS}.{name}.door"), RECORD)
            yield door


def _of_others(places: tuple[str, ...]) -> Iterator[tuple[Door[Any], str]]:
    """The doors of other packages, each with the name of its package."""
    for info in _with_doors(places):
        from importlib.metadata import PathDistribution
        from pathlib import Path

        package = PathDistribution(Path(info))
        for point in package.entry_points.select(group=GROUP):
            named = f"the package {package.metadata['Name']}"
            try:
                door = point.load()
            except Exception as error:  # of others: whatever it is, somebody has to be told of it
                raise DoorError(
                    f"{named} has a door {point.name} that cannot be loaded: {error!r}. Install "
                    "another version of it, or uninstall it."
                ) from error
            if not isinstance(door, Door):
                raise DoorError(f"{named}: {point.value} is not an asterism.doors.Door")
            yield door, named


def _with_doors(places: tuple[str, ...]) -> Iterator[str]:
    """The descriptions of installed packages that speak of doors, each package once."""
    seen = set()
    for place in places:
        try:
            names = os.listdir(place or os.curdir)
        except OSError:  # a zip file, or nothing at all
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) and name not in seen:
                seen.add(name)
                info = os.path.join(place, name)
                if GROUP.encode() in _entry_points(info):
                    yield info


def _entry_points(info: str) -> bytes:
    with (
        contextlib.suppress(OSError),
        open(os.path.join(info, "entry_points.txt"), "rb") as file,
    ):
        return file.read(_POINTS_BYTES_MAX)
    return b""
