"""Names of Google's resources, and the names that the broker has for them. Pure.

    Google    projects/shop/topics/orders    projects/shop/subscriptions/billing
    broker    topic shop/orders              receiver shop/billing

A name of Google's is told from any other by its shape, so a broker's topic that any door made is a
topic of Pub/Sub where its name is a project and an id with a slash between; other topics have no
name here. A broker's name is shorter than Google's may be: what is too long ends in ``#`` and a
digest instead. No id has a ``#``, so no two resources share a name; the way back from such a
name is in the catalogue alone.
"""

import hashlib
import re
from enum import Enum
from typing import Final, NamedTuple

from asterism import checks, limits
from asterism.gateways.pubsub.errors import invalid

DELETED_TOPIC: Final = "_deleted-topic_"
DELETED_SCHEMA: Final = "_deleted-schema_"
PROJECT_CHARACTERS_MAX: Final = 100  # Google's have 30; emulators are given longer ones
_DIGEST_DIGITS: Final = 32
_BROKER_BYTES_MAX: Final = min(limits.TOPIC_BYTES_MAX, limits.NAME_BYTES_MAX)

_PROJECT: Final = re.compile(rf"[A-Za-z0-9._~%+:-]{{1,{PROJECT_CHARACTERS_MAX}}}")
_ID: Final = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~%+-]{2,254}")
_ID_RULE: Final = (
    "an id has 3 to 255 letters, digits and -._~%+, begins with a letter, and not with goog"
)


class Kind(Enum):
    """The kinds of resources, by the segment that their names have."""

    TOPIC = "topics"
    SUBSCRIPTION = "subscriptions"
    SNAPSHOT = "snapshots"
    SCHEMA = "schemas"

    @property
    def singular(self) -> str:
        return self.value[:-1]


class Name(NamedTuple):
    """The name of a resource, in its parts; ``str`` makes it whole."""

    project: str
    kind: Kind
    id: str

    def __str__(self) -> str:
        return f"projects/{self.project}/{self.kind.value}/{self.id}"


def read_name(text: str, kind: Kind) -> Name:
    """The parts of a resource's name; refuses what is no name of this kind."""
    parts = text.split("/")
    if len(parts) == 4 and parts[0] == "projects" and parts[2] == kind.value:
        project, found = parts[1], parts[3]
        if _PROJECT.fullmatch(project) and _ID.fullmatch(found):
            return Name(project, kind, found)
    raise invalid(
        f"{checks.shown(text)} is not the name of a {kind.singular}: it must be "
        f"projects/PROJECT/{kind.value}/ID, where {_ID_RULE}."
    )


def name_of(project: str, kind: Kind, id: str) -> Name:
    """A name made of its parts; refuses parts that no name has."""
    return read_name(f"projects/{project}/{kind.value}/{id}", kind)


def read_project(text: str) -> str:
    """The project in ``projects/PROJECT``; refuses anything else."""
    head, slash, project = text.partition("/")
    if head == "projects" and slash and _PROJECT.fullmatch(project):
        return project
    raise invalid(f"{checks.shown(text)} is not the name of a project: it must be projects/ID.")


def broker_name(name: Name) -> str:
    """What the broker calls a topic, or the receiver of a subscription."""
    whole = f"{name.project}/{name.id}"
    if len(whole) <= _BROKER_BYTES_MAX:
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{whole[: _BROKER_BYTES_MAX - _DIGEST_DIGITS - 1]}#{digest}"


def resource_name(broker: str, kind: Kind) -> Name | None:
    """The resource that the broker calls by this name; none where it is no resource's name."""
    project, slash, id = broker.partition("/")
    if slash and _PROJECT.fullmatch(project) and _ID.fullmatch(id):
        return Name(project, kind, id)
    return None
