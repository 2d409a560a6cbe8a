"""A disk with a volatile cache, whose power can be cut: an ext4 file system on a disk of our own.

    file, held by a server process  ->  FUSE, one file  ->  loop device  ->  ext4, mounted

The server sees every write and every flush that ext4 sends to its disk, in order. A write is
durable once a later flush was answered; until then it is in the disk's cache, and a cut decides of
each such write whether it reached the disk, and of some of them which sectors did. That is what a
real disk promises and no more, and it is stricter than a copy of an image file, which always has
everything that was sent to the disk.

I1  A cut is one moment: no request is served while the server decides what is left.
I2  From the cut on no request is answered, so nobody can be told that anything is synced. Once
    everybody who could tell is dead, writes are answered and forgotten, so that the file system
    can be unmounted. What it writes then is lost, as it has to be.

It needs Linux, root, loop devices, FUSE and e2fsprogs; ``unavailable`` says what of it is missing.

    python -m tests.fault.volatile_disk MOUNT_FILE IMAGE FLUSH_MS   is the server
"""

import contextlib
import ctypes
import errno
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parents[2]
BLOCK_BYTES: Final = 4_096  # what is remembered of a disk's state before a write
SECTOR_BYTES: Final = 512  # what a disk writes whole, or not at all
WRITE_BYTES_MAX: Final = 1 << 20
TORN_PART: Final = 0.2  # of the writes that reach a disk in a cut
ANSWER_S: Final = 60.0
PROGRAMS: Final = ("losetup", "mkfs.ext4", "e2fsck", "mount", "umount")

# What becomes of the writes that were not flushed: all, none, the first of them, or any.
ALL, NONE, FIRST, ANY = "all", "none", "first", "any"
FATES: Final = (ALL, NONE, FIRST, ANY, ANY, ANY)

# FUSE, as in linux/fuse.h; the root of the file system is one file, node 1.
_IN: Final = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_OUT: Final = struct.Struct("<IiQ")  # length, error, unique
_INIT_IN: Final = struct.Struct("<IIII")
_INIT_OUT: Final = struct.Struct("<IIIIHHIIHHII24x")
_ATTRIBUTES: Final = struct.Struct("<QIIQQQQQQIIIIIIIIII")
_OPEN_OUT: Final = struct.Struct("<QII")
_RANGE_IN: Final = struct.Struct("<QQI")  # handle, offset, size: of a read or a write
_WRITE_IN_BYTES: Final = 40
_WRITE_OUT: Final = struct.Struct("<II")
_BIG_WRITES, _MAX_PAGES = 1 << 5, 1 << 22
_GETATTR, _SETATTR, _OPEN, _READ, _WRITE = 3, 4, 14, 15, 16
_RELEASE, _FSYNC, _FLUSH, _INIT = 18, 20, 25, 26
_UNANSWERED: Final = (2, 36, 38, 42)  # FORGET, INTERRUPT, DESTROY, BATCH_FORGET


# --- the disk, which knows nothing of FUSE --------------------------------------------------------


class Cache:
    """The writes to a file that no flush has made durable, and what was there before them."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._before: dict[int, bytes] = {}  # by block
        self._writes: list[tuple[int, bytes]] = []

    def write(self, offset: int, content: bytes) -> None:
        first, last = offset // BLOCK_BYTES, (offset + len(content) - 1) // BLOCK_BYTES
        for block in range(first, last + 1):
            if block not in self._before:
                self._before[block] = os.pread(self._file, BLOCK_BYTES, block * BLOCK_BYTES)
        self._writes.append((offset, content))
        os.pwrite(self._file, content, offset)

    def flush(self) -> None:
        self._before.clear()
        self._writes.clear()

    def cut(self, chance: random.Random) -> tuple[str, int, int]:
        """Leaves what the disk has after the power was cut; the fate, and of how many writes."""
        fate = chance.choice(FATES)
        for block, content in self._before.items():
            os.pwrite(self._file, content, block * BLOCK_BYTES)
        kept = _kept(self._writes, fate, chance)
        for offset, content in kept:
            if fate != ALL and chance.random() < TORN_PART:
                self._write_torn(offset, content, chance)
            else:
                os.pwrite(self._file, content, offset)
        unflushed = len(self._writes)
        self.flush()
        return fate, unflushed, len(kept)

    def _write_torn(self, offset: int, content: bytes, chance: random.Random) -> None:
        for start in range(0, len(content), SECTOR_BYTES):
            if chance.random() < 0.5:
                os.pwrite(self._file, content[start : start + SECTOR_BYTES], offset + start)


def _kept(
    writes: list[tuple[int, bytes]], fate: str, chance: random.Random
) -> list[tuple[int, bytes]]:
    if fate == ANY:
        share = chance.random()
        return [write for write in writes if chance.random() < share]
    count = {ALL: len(writes), NONE: 0, FIRST: chance.randint(0, len(writes))}[fate]
    return writes[:count]


# --- the server -----------------------------------------------------------------------------------


class Server:
    """Serves one file by FUSE, and obeys its owner, who is on standard input.

    ``cut SEED AT_FLUSH`` stops the disk: at once, or when the next flush is asked for and before it
    is done. ``void`` answers again, and forgets. ``on`` is a disk as before.
    """

    def __init__(self, device: int, image: int, flush_s: float) -> None:
        self._device = device
        self._image = image
        self._size = os.fstat(image).st_size
        self._flush_s = flush_s
        self._cache = Cache(image)
        self._is_stopped = False
        self._is_void = False
        self._cut_at_flush: int | None = None
        self._held_flush: int | None = None  # it was under way when the power was cut
        self._handlers: dict[int, Callable[[memoryview], bytes]] = {
            _INIT: self._on_init,
            _GETATTR: self._on_attributes,
            _SETATTR: self._on_attributes,
            _OPEN: lambda _: _OPEN_OUT.pack(0, 0, 0),
            _READ: self._on_read,
            _WRITE: self._on_write,
            _FSYNC: self._on_flush,
            _FLUSH: lambda _: b"",
            _RELEASE: lambda _: b"",
        }

    def run(self) -> None:
        """Serves until standard input ends or the file is unmounted."""
        buffer = bytearray(WRITE_BYTES_MAX + (1 << 16))
        while True:
            waiting = [0] if self._is_stopped else [0, self._device]
            ready, _, _ = select.select(waiting, [], [])
            if 0 in ready:
                line = sys.stdin.readline()
                if not line:
                    return
                self._obey(line.split())
            elif not self._serve(buffer):
                return

    def _obey(self, words: list[str]) -> None:
        if words[0] == "cut":
            if words[2] == "1":
                self._cut_at_flush = int(words[1])
            else:
                self._cut(int(words[1]))
            return
        self._is_stopped, self._is_void = False, words[0] == "void"
        if self._held_flush is not None:
            self._answer(self._held_flush, b"")
            self._held_flush = None
        self._say("done")

    def _cut(self, seed: int) -> None:
        self._cut_at_flush = None
        self._is_stopped = True
        self._say(*map(str, self._cache.cut(random.Random(seed))))

    def _say(self, *words: str) -> None:
        sys.stdout.write(" ".join(words) + "\n")
        sys.stdout.flush()

    def _serve(self, buffer: bytearray) -> bool:
        """Takes one request; ``False`` when there is nobody left to ask."""
        try:
            length = os.readv(self._device, [buffer])
        except OSError as error:
            if error.errno == errno.ENODEV:
                return False
            if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                return True  # the request was taken back
            raise
        _, opcode, unique, *_ = _IN.unpack_from(buffer)
        if opcode in _UNANSWERED:
            return True
        if opcode == _FSYNC and self._cut_at_flush is not None:
            self._cut(self._cut_at_flush)
            self._held_flush = unique
            return True
        handler = self._handlers.get(opcode)
        content = memoryview(buffer)[_IN.size : length]
        answer, error_number = (b"", errno.ENOSYS) if handler is None else (handler(content), 0)
        self._answer(unique, answer, error_number)
        return True

    def _answer(self, unique: int, answer: bytes, error_number: int = 0) -> None:
        head = _OUT.pack(_OUT.size + len(answer), -error_number, unique)
        with contextlib.suppress(FileNotFoundError):  # whoever asked was killed
            os.writev(self._device, [head, answer])

    def _on_init(self, content: memoryview) -> bytes:
        major, minor, readahead, _ = _INIT_IN.unpack_from(content)
        assert major == 7 and minor >= 31, f"FUSE {major}.{minor} is not the one this was made for"
        flags = _BIG_WRITES | _MAX_PAGES
        pages = WRITE_BYTES_MAX // os.sysconf("SC_PAGE_SIZE")
        return _INIT_OUT.pack(7, 31, readahead, flags, 16, 12, WRITE_BYTES_MAX, 1, pages, 0, 0, 0)

    def _on_attributes(self, _: memoryview) -> bytes:
        blocks, mode = self._size // 512, 0o100600
        times = (0, 0, 0, 0, 0, 0)
        return _ATTRIBUTES.pack(
            *(3_600, 0, 0, 1, self._size, blocks), *times, mode, 1, 0, 0, 0, BLOCK_BYTES, 0
        )

    def _on_read(self, content: memoryview) -> bytes:
        _, offset, size = _RANGE_IN.unpack_from(content)
        return os.pread(self._image, size, offset)

    def _on_write(self, content: memoryview) -> bytes:
        _, offset, size = _RANGE_IN.unpack_from(content)
        if not self._is_void:
            self._cache.write(offset, bytes(content[_WRITE_IN_BYTES : _WRITE_IN_BYTES + size]))
        return _WRITE_OUT.pack(size, 0)

    def _on_flush(self, _: memoryview) -> bytes:
        if self._flush_s:
            time.sleep(self._flush_s)  # nothing is served meanwhile, as by a disk that seeks
        self._cache.flush()
        return b""


def serve(mounted: str, image: str, flush_ms: float) -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=100600,user_id=0,group_id=0"
    call_mount = ctypes.CDLL(None, use_errno=True).mount
    if call_mount(b"volatile", mounted.encode(), b"fuse", ctypes.c_ulong(0), options.encode()):
        raise OSError(ctypes.get_errno(), f"{mounted}: FUSE cannot be mounted here")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        Server(device, os.open(image, os.O_RDWR), flush_ms / 1_000).run()
    finally:
        os.close(device)  # whatever still waits for this disk gets an error
        _remove(mounted)


def _remove(file: str) -> None:
    """Takes away what was made of a disk whose owner has gone, however it went."""
    found = subprocess.run(["losetup", "-j", file], capture_output=True, text=True).stdout
    for line in found.splitlines():
        device = line.partition(":")[0]
        subprocess.run(["umount", "--lazy", "--all-targets", device], capture_output=True)
        subprocess.run(["losetup", "-d", device], capture_output=True)
    subprocess.run(["umount", "--lazy", file], capture_output=True)


# --- the owner's side -----------------------------------------------------------------------------


class DiskError(Exception):
    """The disk itself went wrong: nothing can be said of what was on it."""


def unavailable() -> str:
    """Why there can be no such disk here; nothing if there can."""
    if sys.platform != "linux" or os.geteuid():
        return "a disk whose power can be cut takes Linux and root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    for device in ("/dev/fuse", "/dev/loop-control"):
        if not os.path.exists(device):
            return f"this system has no {device}"
    done = subprocess.run(["losetup", "-f"], capture_output=True, text=True)
    return f"no loop device: {done.stderr.strip()}" if done.returncode else ""


def _run(*command: str, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S)
    if done.returncode not in codes:
        raise DiskError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class VolatileDisk:
    """A mounted ext4 file system on such a disk, from entering the context to leaving it."""

    def __init__(self, folder: Path, size_bytes: int, flush_ms: float = 0.0) -> None:
        self.mounted = folder / "m"  # short: sockets live beneath it
        self.flush_ms = flush_ms
        self._file = folder / "disk"
        self._image = folder / "image"
        self._size_bytes = size_bytes
        self._loop = ""
        self._is_mounted = False
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        try:
            self.mounted.mkdir()
            self._file.touch()
            with open(self._image, "wb") as image:
                image.truncate(self._size_bytes)
            self._server = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.fault.volatile_disk"),
                    *(str(self._file), str(self._image), str(self.flush_ms)),
                ],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                process_group=0,  # Ctrl-C in a terminal is the owner's to handle
            )
            self._heard()
            self._attach()
            _run("mkfs.ext4", "-q", "-E", "nodiscard,lazy_itable_init=0", self._loop)
            self._mount()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def cut(self, seed: int, at_flush: bool) -> None:
        """Cuts the power: from now on nothing that asks the disk is answered."""
        self._tell(f"cut {seed} {int(at_flush)}")

    def cut_was(self) -> str:
        """Waits for the cut, and says what it did to what was not flushed."""
        fate, unflushed, kept = self._heard().split()
        return f"{kept} of {unflushed} unflushed writes left ({fate})"

    def back(self) -> str:
        """Power again, once nobody works on the file system any more; what e2fsck says of it.

        The file system is mounted again when its journal was recovered. It must be whole then:
        ext4 promises as much of a disk that keeps what it flushed.
        """
        self._tell("void")
        self._heard()
        self._unmount()
        self._detach()
        self._tell("on")
        self._heard()
        self._attach()
        said = _run("e2fsck", "-fy", self._loop, codes=(0, 1))
        if "UNEXPECTED INCONSISTENCY" in said:
            raise DiskError(f"the file system was damaged: {said}")
        self._mount()
        return said

    def close(self) -> None:
        """Takes away all that was made, whatever state it is in."""
        with contextlib.suppress(DiskError, subprocess.TimeoutExpired, OSError):
            if self._server is not None and self._server.poll() is None:
                self._tell("void")  # nobody waits for a disk that was cut
                self._heard()
            self._unmount()
        if self._server is not None:
            for pipe in (self._server.stdin, self._server.stdout):
                assert pipe is not None
                with contextlib.suppress(OSError):
                    pipe.close()  # it ends, and removes what is left
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(ANSWER_S)
            self._server.kill()
            self._server.wait()
            self._server = None
            _remove(str(self._file))
        self._image.unlink(missing_ok=True)

    def _tell(self, line: str) -> None:
        assert self._server is not None and self._server.stdin is not None
        self._server.stdin.write(line + "\n")
        self._server.stdin.flush()

    def _heard(self) -> str:
        assert self._server is not None and self._server.stdout is not None
        ready, _, _ = select.select([self._server.stdout], [], [], ANSWER_S)
        line = self._server.stdout.readline() if ready else ""
        if not line:
            raise DiskError("the disk's server does not answer")
        return line.strip()

    def _attach(self) -> None:
        self._loop = _run("losetup", "--find", "--show", str(self._file)).strip()

    def _detach(self) -> None:
        """Takes the device away, and waits until it is gone.

        Where another namespace of mounts has the file system too (``unshare`` copies all mounts),
        it lives on, and would write into the disk after the cut.
        """
        _run("losetup", "-d", self._loop)
        deadline = time.monotonic() + ANSWER_S
        while _run("losetup", "-j", str(self._file)):
            if time.monotonic() > deadline:
                raise DiskError(f"somebody else still has {self._loop} mounted or open")
            time.sleep(0.02)
        self._loop = ""

    def _mount(self) -> None:
        _run("mount", "-t", "ext4", self._loop, str(self.mounted))
        self._is_mounted = True

    def _unmount(self) -> None:
        deadline = time.monotonic() + ANSWER_S
        while self._is_mounted:
            try:
                _run("umount", str(self.mounted))
                self._is_mounted = False
            except DiskError as error:
                # A process that was killed lets go of its files a moment later.
                if "busy" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], float(sys.argv[3]))
