"""A store's folder: the errors that it can give, and the note that a store was made there."""

import contextlib
from pathlib import Path
from typing import Final

from asterism.files_host import create_durably

RESTORE: Final = (
    "Restore this store from a snapshot, or open it with accept_loss=True "
    "(asterism doctor --accept-loss) to go on without them."
)


class StoreError(Exception):
    """A store cannot be used; the message says why, and what to do."""


def unusable(folder: Path, error: OSError) -> StoreError:
    """A folder that no store can be in."""
    return StoreError(
        f"{folder}: cannot be used as a store's folder: {error.strerror}. Name a folder that this "
        "user can make and write to."
    )


def in_use(folder: Path) -> StoreError:
    """A folder whose store is open."""
    return StoreError(
        f"{folder}: it is open already, here or in another process. A store has one owner; stop "
        "that one first."
    )


def made_note(folder: Path) -> Path:
    """A file beside a store's folder that says that the store was made once."""
    return folder.with_name(f"{folder.name}.made")


def check_made(folder: Path) -> None:
    """``StoreError`` if a store was here and is not any more: it is not made anew in silence."""
    if made_note(folder).exists() and not (folder / "CURRENT").exists():
        raise StoreError(f"{folder}: the store is missing, and all that was in it. {RESTORE}")


def note_made(folder: Path) -> None:
    """A store is here from now on."""
    if not made_note(folder).exists():
        with contextlib.suppress(OSError):  # a full disk: the next opening notes it
            create_durably(made_note(folder), {})
