"""A broker for the tests of programs that use one: real processes, a folder and ports of its own.

    with asterism.testing.Broker() as broker:
        with asterism.connect_blocking(broker.address) as node: ...

It takes a second at most to start, keeps nothing, and restarts what dies, as supervisord would.
"""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import asterism
from asterism.config import CONFIG_VARIABLE, ConfigError, unknown_variables
from asterism.running import READY_S, Processes, StartError, all_doors, checked_doors
from asterism.variables import PREFIX

ANY_PORT: Final = "127.0.0.1:0"
STOP_S: Final = 5  # nothing of it is kept, so nobody need wait long for a clean end

__all__ = ["Broker", "StartError"]


class NoDoorError(StartError, AttributeError):
    """What a door would say of itself was asked of a broker without it."""


class Broker:
    """A whole broker, from entering the context to leaving it.

    ``config`` is what a configuration file would say, ``env`` are environment variables, which win
    over it. Of the variables of this process nothing is taken that would configure a broker or a
    door. Every door takes a free port.
    With ``keep`` the folder stays when the broker has gone.
    """

    def __init__(
        self,
        workers: int = 2,
        doors: Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        keep: bool = False,
    ) -> None:
        self._doors = (doors,) if isinstance(doors, str) else tuple(doors)
        checked_doors(self._doors)
        for name, text in (env or {}).items():
            if not isinstance(text, str):
                kind = type(text).__name__
                raise TypeError(f"a variable is text, and {name} in env is of type {kind}")
        if wrong := unknown_variables(env or {}):
            raise ConfigError(f"there is no variable {', '.join(wrong)}")
        self._config = {"workers": workers, "listen": "tcp://127.0.0.1:0", **(config or {})}
        for door in self._doors:
            table = self._config.get(door) or {}
            if isinstance(table, Mapping):  # whatever else it is, it is refused by its name
                self._config[door] = {"listen": ANY_PORT, **table}
        self._env = dict(env or {})
        self._keep = keep
        self._folder: Path | None = None
        self._processes: Processes | None = None

    # --- from start to stop -------------------------------------------------------------------

    def start(self) -> Self:
        """Starts every process; returns when all are ready. Entering the context does this."""
        assert self._processes is None, "this broker runs already"
        # Short, because sockets live beneath it and the system limits the length of their paths.
        self._folder = Path(tempfile.mkdtemp(prefix="asterism-"))
        try:
            file = self._folder / "asterism.toml"
            file.write_text(toml({"data_dir": str(self._folder / "data"), **self._config}))
            customary = {name for door in all_doors().values() for name in door.customary}
            kept = {
                name: text
                for name, text in os.environ.items()
                if not name.startswith(PREFIX) and name not in customary
            }
            environ = {**kept, CONFIG_VARIABLE: str(file), **self._env}
            processes = Processes(environ, self._doors, self._folder / "log")
            processes.start()
        except BaseException:
            self._remove()
            raise
        self._processes = processes
        return self

    def stop(self) -> None:
        """Ends every process and removes the folder. Leaving the context does this."""
        if self._processes is not None:
            self._processes.stop(STOP_S)
            self._processes = None
        self._remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _remove(self) -> None:
        if self._folder is not None and not self._keep:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _running(self) -> Processes:
        if self._processes is None:
            raise RuntimeError("this broker does not run: use it as a context manager, or start it")
        return self._processes

    # --- where it is --------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where clients connect; the same for as long as the broker runs."""
        return self._running.address

    @property
    def data_dir(self) -> Path:
        return self._running.data_dir

    @property
    def log_dir(self) -> Path:
        """The folder with the log of each process."""
        folder = self._running.log_folder
        assert folder is not None
        return folder

    def logs(self) -> str:
        """What all processes have logged, one after the other."""
        texts = [path.read_text(errors="replace") for path in sorted(self.log_dir.glob("*.log"))]
        return "".join(texts)

    def door(self, name: str) -> dict[str, Any]:
        """What a door says of itself: its addresses, by the names that it gives them."""
        if name not in self._doors:
            raise NoDoorError(f"this broker is without the door {name!r}: name it in doors")
        return self._running.said(name)

    def __getattr__(self, name: str) -> Any:
        """A door's name, ``_`` and ``url``, ``address`` or another thing that it says of itself."""
        door, _, field = name.partition("_")
        if door and field and door in all_doors():
            said = self.door(door)
            if field in said:
                return said[field]
        raise AttributeError(f"a broker has no {name}")

    # --- its processes ------------------------------------------------------------------------

    def pids(self) -> dict[str, list[int]]:
        """The processes of the moment by kind: ``frontend``, ``interests``, ``worker``, doors."""
        return self._running.pids()

    def kill(self, kind: str, index: int | None = None, number: int = signal.SIGKILL) -> list[int]:
        """Signals every process of a kind, or one; those that end by it are started again."""
        return self._running.send_signal(kind, number, index)

    def restart(
        self, kind: str, index: int | None = None, number: int = signal.SIGKILL, s: float = READY_S
    ) -> None:
        """Ends every process of a kind, or one, and waits until new ones are ready."""
        self._running.restart(kind, index, number, s)

    def wait_ready(self, s: float = READY_S) -> None:
        """Waits until every process runs and is ready, after kills for example."""
        self._running.wait_ready(s)

    def reset(self) -> None:
        """Deletes every topic, with its messages and receivers: the broker is as it began.

        Clients that are connected stay so; their inboxes end with ``topic_gone``.
        """
        with asterism.connect_blocking(self.address, name="reset") as node:
            for topic in list(node.list_topics()):
                try:
                    node.delete_topic(topic)
                except asterism.PeerError as error:
                    if error.code != "no_such_topic":  # a client may have been quicker
                        raise

    def snapshot(self) -> Path:
        """Takes a snapshot of every store; the folder that holds it."""
        from asterism.cli.snapshot import take

        with asterism.connect_blocking(self.address, name="snapshot") as node:
            return take(node, self.data_dir / "snapshots").folder


# --- a configuration as text --------------------------------------------------------------------


def toml(values: Mapping[str, Any]) -> str:
    """A configuration file of these values, of which those that are none are left out."""
    return "\n".join(_lines("", values)) + "\n"


def _lines(table: str, values: Mapping[str, Any]) -> list[str]:
    given = {name: value for name, value in values.items() if value is not None}
    tables = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    lines = [
        f"{_key(name)} = {_value(value)}" for name, value in given.items() if name not in tables
    ]
    if table:
        lines.insert(0, f"[{table}]")
    for name, value in tables.items():
        lines += _lines(f"{table}.{_key(name)}" if table else _key(name), value)
    return lines


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(name)} = {_value(held)}" for name, held in value.items())
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str | bool | int):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return repr(value)  # also inf and nan, which the configuration then refuses by name
    raise TypeError(f"a configuration cannot hold a value of type {type(value).__name__}")
