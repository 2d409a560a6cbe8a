"""What the process of every door has: a name, a socket that it listens on, a way to the front-end.

Whether others than this machine may connect is decided here, for all doors alike: by the addresses
that a name resolves to, and what was judged is what is bound.
"""

import argparse
import asyncio
import contextlib
import errno
import logging
import os
import re
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from asterism.addresses_host import EVERYWHERE, place_of
from asterism.config import AddressTakenError, Config, ConfigError
from asterism.doors import Door, listen_text, read_listen
from asterism.process_host import (
    SOCKET_PATH_MAX,
    fields_of,
    is_ours,
    read_run_file,
    run_folder,
    run_process,
    say_ready,
    socket_address,
    socket_folder,
)

BACKLOG: Final = 2_048  # connections that wait to be taken; further ones wait outside
CONNECT_S: Final = 30.0  # to reach the broker when the door starts; then the process ends
FIND_S: Final = 0.02  # between looks for the front-end's file
SILENT_S: Final = 30  # a client that is not heard of is asked whether it is there, and again
ASK_S: Final = 10
ASKED_MAX: Final = 3
FILES_WANTED: Final = 65_536  # each connection is one
log = logging.getLogger("asterism.doors")


def run_door(door: Door[Any], run: Callable[[Config, str], None]) -> None:
    """The main function of a door: ``run`` is given the configuration and the process's name.

    Several processes of one door may share a data folder: each has a name, and a file of that name
    in the run folder.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {door.module}", description=f"The {door.title} door."
    )
    parser.add_argument(
        "--name",
        type=lambda text: _name(door, text),
        default=door.name,
        help="what this process is called, also its file in the run folder: "
        f"{door.name}, or {door.name}-…",
    )
    run_process(
        lambda options: str(options.name),
        lambda config, options: run(config, options.name),
        parser,
    )


def _name(door: Door[Any], text: str) -> str:
    """Names begin alike, so that none is that of another process of the broker."""
    if re.fullmatch(rf"{door.name}(-[a-zA-Z0-9_.-]{{1,64}})?", text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not {door.name}, or {door.name}- and letters or digits"
        )
    return text


# --- where it listens -----------------------------------------------------------------------------


def listener(config: Config, door: Door[Any]) -> socket.socket:
    """A socket bound to where the configuration says; others than this machine have to be allowed.

    It does not listen yet: ``open_door`` does that, when the door can serve.
    """
    listen = config.door(door).listen
    host, port = read_listen(listen)
    place = place_of(host)
    if not place.is_local and not config.insecure:
        raise ConfigError(
            f"{door.listen_key} is {listen}: others than this machine could connect, and nothing "
            "asks them who they are. Use 127.0.0.1, or set insecure = true."
        )
    found = None
    try:
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        # With its protocol named, asyncio sends at once what it is given: without, every answer
        # would wait 40 ms for the client to acknowledge its first part.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _ask_the_silent(found)
        found.bind(("0.0.0.0" if place.host == EVERYWHERE else place.host, port))
    except OSError as error:
        if found is not None:
            found.close()
        raise cannot_listen(door, listen, error) from None
    return found


def open_door(
    config: Config, door: Door[Any], name: str, listening: socket.socket, **said: str
) -> None:
    """Listens, and tells everybody that the door is open and what it says of itself.

    ``said`` has at least what the record shows. The process that takes this one's place is told to
    listen on the same port: clients look for it there.
    """
    try:
        listening.listen(BACKLOG)
    except OSError as error:  # two may be bound to one port, of which one can listen
        host, _ = read_listen(config.door(door).listen)
        where = listen_text(host, listening.getsockname()[1])
        raise cannot_listen(door, where, error) from None
    say_open(config, door, name, listening.getsockname()[1], **said)


def say_open(config: Config, door: Door[Any], name: str, port: int, **said: str) -> None:
    """Tells everybody that the door listens on this port: for doors whose server does that."""
    host, _ = read_listen(config.door(door).listen)
    say_ready(config, name, **said, listen=listen_text(host, port))
    log.info("listens %s", fields_of(**said))


def own_socket(config: Config, name: str) -> Path | None:
    """Where a process of a door may be asked by this machine's commands alone, if it has a place.

    ``name`` is that of the process. One that is longer than the system allows has none.
    """
    path = socket_folder(config) / f"{name}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        log.warning("%s is too long a path for a socket: commands cannot ask this process", path)
        return None
    return path


def cannot_listen(door: Door[Any], where: str, error: OSError) -> ConfigError:
    """What to raise where a door cannot listen: it says what else may be done."""
    said = f"cannot listen on {where}: {error.strerror}."
    names = [name for name, customary in door.customary.items() if customary.key == "listen"]
    others = f" ({', '.join(names)})" if names else ""
    other = f"Name another address by {door.listen_key}{others} or `asterism up --{door.name} PORT`"
    if error.errno != errno.EADDRINUSE:
        return ConfigError(f"{said} {other}.")
    return AddressTakenError(
        f"{said} {other}, leave this door out by `asterism up --no-{door.name}`, or stop the "
        "program that listens there, perhaps another broker."
    )


def _ask_the_silent(listening: socket.socket) -> None:
    """Has the system ask clients that say nothing, and hang up on those that are gone.

    A client whose machine or network went away never hangs up by itself, and what is sent to it
    would go nowhere. Connections have the options of the socket that they came in by.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", SILENT_S),
        ("TCP_KEEPINTVL", ASK_S),
        ("TCP_KEEPCNT", ASKED_MAX),
    ):
        if hasattr(socket, name):  # not on every system
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def allow_many_files() -> int:
    """Raises the number of files that the process may have open, where it can; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return FILES_WANTED if soft == resource.RLIM_INFINITY else soft


# --- the broker behind it -------------------------------------------------------------------------


async def find_broker(config: Config) -> str:
    """The way to the front-end: the short one where it runs here, of the same data folder."""
    for _ in range(round(CONNECT_S / FIND_S)):
        if is_ours(read_run_file(run_folder(config), "frontend").get("pid")):
            return socket_address(config, "clients")
        address = config.addresses[0]
        if address.port or address.path:
            return address.text.replace("*", "127.0.0.1")
        await asyncio.sleep(FIND_S)
    raise ConnectionError("there is no front-end")
