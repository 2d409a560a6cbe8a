"""Spark on snapshots: a data source, jobs, and a session that finds Java.

    spark = asterism.spark.session()
    spark.read.format("asterism").option("table", "messages").load("snapshots")

Importing it imports no Spark: that is done when one of these is first asked for.
"""

from importlib import import_module
from typing import Any, Final

# What this package gives by its own name, and the module that has it.
_LAZY: Final = {"package": "sessions", "register": "sessions", "session": "sessions"}

__all__ = ["package", "register", "session"]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("asterism"):
            raise
        raise ImportError(
            f"asterism.spark needs {error.name}, which is not installed: "
            "pip install 'asterism[spark]'",
            name=error.name,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
