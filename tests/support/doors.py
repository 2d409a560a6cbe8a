"""Doors in tests: where they listen when it does not matter where."""

from asterism.doors_host import doors
from asterism.variables import variable_of


def any_ports() -> dict[str, str]:
    """The variables by which every door that there is takes a free port."""
    return {variable_of(door.listen_key): "127.0.0.1:0" for door in doors().values()}
