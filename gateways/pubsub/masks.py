"""Field masks: which fields of a resource an update replaces. Pure.

A path names a field as the protocol does (``push_config``), or a field within one
(``push_config.push_endpoint``); a map or list is replaced whole. A named field that the update
does not have is cleared.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

from asterism import checks
from asterism.gateways.pubsub.errors import invalid

PATHS_MAX: Final = 100
TOPIC_FIELDS: Final = frozenset(
    {
        *("labels", "message_storage_policy", "message_retention_duration", "schema_settings"),
        *("ingestion_data_source_settings", "message_transforms"),
    }
)
SUBSCRIPTION_FIELDS: Final = frozenset(
    {
        *("push_config", "bigquery_config", "cloud_storage_config", "bigtable_config"),
        *("ack_deadline_seconds", "retain_acked_messages", "message_retention_duration", "labels"),
        *("expiration_policy", "dead_letter_policy", "retry_policy"),
        *("enable_exactly_once_delivery", "message_transforms"),
    }
)
SNAPSHOT_FIELDS: Final = frozenset({"labels", "expire_time"})


def updated(current: Any, update: Any, paths: Iterable[str], mutable: Collection[str]) -> Any:
    """A copy of a resource with the fields that ``paths`` name replaced by those of ``update``.

    Refuses no paths at all, fields that there are not, and fields that cannot be changed.
    """
    asked = sorted(set(paths))  # a field comes before what is within it
    kind = current.DESCRIPTOR.name
    if not asked:
        raise invalid(f"update_mask must name the fields of the {kind} to update, at least one.")
    if len(asked) > PATHS_MAX:
        raise invalid(f"update_mask names {len(asked)} fields, over {PATHS_MAX}.")
    result = type(current)()
    result.CopyFrom(current)
    for path in asked:
        first, *inner = path.split(".")
        _check(current.DESCRIPTOR, path)
        if first not in mutable:
            raise invalid(f"update_mask names {first}, which cannot be changed in a {kind}.")
        _replace(result, update, [first, *inner])
    return result


def _check(descriptor: Any, path: str) -> None:
    """Refuses a path that leads to no field."""
    kind = descriptor.name
    for name in path.split("."):
        field = None if descriptor is None else descriptor.fields_by_name.get(name)
        if field is None:
            raise invalid(
                f"update_mask names {checks.shown(path)}, and no field of a {kind} has that path: "
                "paths are written as in push_config, not as in pushConfig."
            )
        # Nothing within a list or a map can be named.
        descriptor = None if field.is_repeated else field.message_type


def _replace(target: Any, update: Any, path: list[str]) -> None:
    name, *inner = path
    field = target.DESCRIPTOR.fields_by_name[name]
    if inner:
        # An update without the outer field clears the inner one, if there is one to clear.
        if update.HasField(name) or target.HasField(name):
            _replace(getattr(target, name), getattr(update, name), inner)
        return
    target.ClearField(name)
    if field.is_repeated:
        getattr(target, name).MergeFrom(getattr(update, name))
    elif field.message_type is None:
        if not field.has_presence or update.HasField(name):
            setattr(target, name, getattr(update, name))
    elif update.HasField(name):
        getattr(target, name).CopyFrom(getattr(update, name))
