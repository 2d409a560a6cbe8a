"""The record of the toy door."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from asterism import checks
from asterism.doors import Customary, Door, listen_address, read_listen, setting, with_port


@dataclass(frozen=True, slots=True)
class Settings:
    """The table ``[toy]``."""

    listen: str = setting("127.0.0.1:7070", listen_address, "where it listens")
    greeting: str = setting("hello", lambda n, v: checks.text(n, v, 100), "its first line")
    echoes: int = setting(1, lambda n, v: checks.whole(n, v, 1, 9), "how often it says an answer")


def health(said: Mapping[str, Any], timeout_s: float) -> str | None:
    try:
        with socket.create_connection(read_listen(str(said["address"])), timeout_s) as asked:
            asked.settimeout(timeout_s)
            return None if asked.recv(1) else "it hangs up"
    except OSError as error:
        return f"it does not answer: {error}"


DOOR: Final = Door(
    name="toy",
    title="toy",
    settings=Settings,
    module="asterism_toy",
    health=health,
    customary={"TOY_PORT": Customary("listen", with_port), "TOY_GREETING": Customary("greeting")},
)
