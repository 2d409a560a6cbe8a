"""Imports point one way, and what decides touches nothing.

The kernel (``asterism/*.py``, the shared vocabulary) imports none of the folders; ``router`` and
``storage`` import the kernel alone; ``sdk`` adds the interest matcher and where topics live;
``actors`` add the pure part
of ``router``, and of ``storage`` the layouts, which only turn values into bytes and back. What is
around the broker (``tree.AROUND``: the command line, what starts processes) may import all of
these, and none of these imports it.
"""

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy import tree

# Sockets, files, processes, threads, clocks, chance, logs: all of it belongs to hosts.
IO_MODULES = frozenset(
    {
        *("asyncio", "concurrent", "contextvars", "multiprocessing", "queue", "sched", "signal"),
        *("subprocess", "threading", "_thread"),
        *("ctypes", "fcntl", "fileinput", "glob", "io", "mmap", "os", "pathlib", "pty", "resource"),
        *("shelve", "shutil", "sqlite3", "tempfile", "dbm"),
        *("ftplib", "http", "imaplib", "select", "selectors", "smtplib", "socket", "socketserver"),
        *("ssl", "urllib", "xmlrpc"),
        *("calendar", "datetime", "time", "zoneinfo"),
        *("random", "secrets", "uuid"),
        *("getpass", "logging", "platform", "syslog", "warnings"),
        *("psutil", "rocksdict", "zmq"),
    }
)
IO_CALLS = frozenset({"breakpoint", "exec", "eval", "input", "open", "print"})


def is_pure(module: str) -> bool:
    """Whether one of our modules is of the part that may be imported by what decides."""
    last = module.rpartition(".")[2]
    return last not in ("host", "__main__") and not last.endswith("_host")


def of(module: str, folder: str) -> bool:
    return module == f"asterism.{folder}" or module.startswith(f"asterism.{folder}.")


def is_kernel(module: str) -> bool:
    return not any(of(module, folder) for folder in (*tree.FOLDERS, *tree.AROUND))


# What keys and values look like in bytes. Pure, so that what decides may name rows; the store that
# holds the rows reaches it as an argument.
LAYOUTS = ("asterism.storage.keys", "asterism.storage.records")

# What a folder may import besides the kernel and itself.
ALSO: dict[str, Callable[[str], bool]] = {
    "actors": lambda module: (of(module, "router") and is_pure(module)) or module in LAYOUTS,
    "router": lambda module: False,
    "storage": lambda module: False,
    "sdk": lambda module: module in ("asterism.router.interest", "asterism.router.placement"),
    # A door is a client like any other; one that serves its own clients matches as the SDK may.
    "gateways": lambda module: of(module, "sdk") or module == "asterism.router.interest",
    # It reads stores, and publishes as any client does; of the broker it runs nothing.
    "spark": lambda module: (
        of(module, "storage") or of(module, "sdk") or module == "asterism.router.interest"
    ),
}


def ours(path: Path) -> list[str]:
    """The modules of ours that a file imports."""
    return sorted(m for m in tree.imports(path) if m == "asterism" or m.startswith("asterism."))


def test_every_folder_has_its_rule() -> None:
    assert set(ALSO) == set(tree.FOLDERS)


@pytest.mark.parametrize("path", tree.kernel_sources(), ids=tree.relative)
def test_the_kernel_imports_nothing_of_the_folders(path: Path) -> None:
    outside = [module for module in ours(path) if not is_kernel(module)]
    if path == tree.ROOT / "asterism" / "__init__.py":  # for type checkers; nothing is loaded
        outside = [module for module in outside if not of(module, "sdk")]
    assert not outside, f"{tree.relative(path)} imports {outside}"


@pytest.mark.parametrize(
    ("folder", "path"),
    [(folder, path) for folder in tree.FOLDERS for path in tree.folder_sources(folder)],
    ids=lambda value: tree.relative(value) if isinstance(value, Path) else "",
)
def test_a_folder_imports_only_what_it_may(folder: str, path: Path) -> None:
    if folder == "actors" and tree.does_io(path):
        return  # the worker's host is where the actor, the store and the sockets meet
    for module in ours(path):
        allowed = is_kernel(module) or of(module, folder) or ALSO[folder](module)
        assert allowed, f"{tree.relative(path)} must not import {module}"


HARMLESS = {"asterism/packing.py": {"threading"}}  # for a packer of each thread, and no more
PURE = [
    path
    for path in [
        *tree.kernel_sources(),
        *tree.folder_sources("actors"),
        *tree.folder_sources("router"),
        *(path for path in tree.folder_sources("storage") if tree.module_name(path) in LAYOUTS),
    ]
    if not tree.does_io(path)
]


@pytest.mark.parametrize("path", PURE, ids=tree.relative)
def test_what_decides_touches_nothing(path: Path) -> None:
    touched = {module.partition(".")[0] for module in tree.imports(path)} & IO_MODULES
    touched -= HARMLESS.get(tree.relative(path), set())
    assert not touched, f"{tree.relative(path)} is pure, and imports {sorted(touched)}"
    for node in ast.walk(tree.parsed(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = node.func.id
            assert called not in IO_CALLS, (
                f"{tree.relative(path)}:{node.lineno} is pure, and calls {called}()"
            )


@pytest.mark.parametrize("path", PURE, ids=tree.relative)
def test_what_decides_imports_no_host(path: Path) -> None:
    hosts = [module for module in ours(path) if not is_pure(module) or module == "asterism.config"]
    assert not hosts, f"{tree.relative(path)} is pure, and imports {hosts}"


def test_one_file_to_write_and_one_to_read_know_the_store_beneath() -> None:
    users = {
        tree.relative(path)
        for path in tree.package_sources()
        if any(module.partition(".")[0] == "rocksdict" for module in tree.imports(path))
    }
    assert users <= {"storage/store.py", "storage/reading.py"}


@pytest.mark.parametrize("path", tree.all_sources(), ids=tree.relative)
def test_a_module_is_imported_by_its_one_name(path: Path) -> None:
    bare = {module.partition(".")[0] for module in tree.imports(path)} & set(tree.FOLDERS)
    assert not bare, f"{tree.relative(path)} imports {sorted(bare)} without asterism in front"
