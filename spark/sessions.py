"""A Spark session that knows the data source, and what executors need to know it too."""

import os
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

import asterism
from asterism.spark.java import java_home
from asterism.spark.source import AsterismSource

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_LOOPBACK: Final = "127.0.0.1"
_CONFIG: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    PUSHDOWN: "true",
}


def session(master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the data source in it; the one that this process has already, if it has.

    ``master`` is ``local[*]`` by default; ``config`` wins over what is set here.
    """
    _find_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = dict(_CONFIG)
    master = master or "local[*]"
    if master.startswith("local"):  # a driver with executors elsewhere is reached by its own name
        settings["spark.driver.bindAddress"] = settings["spark.driver.host"] = _LOOPBACK
    settings.update(config or {})
    builder = SparkSession.builder.master(master).appName("asterism")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def register(spark: SparkSession) -> SparkSession:
    """Makes ``format("asterism")`` known to a session, and lets it hand filters down."""
    # Spark looks for the name in the session that is active: another one that has the source would
    # make it refuse this one.
    active = SparkSession.getActiveSession()
    _activate(spark)
    try:
        spark.dataSource.register(AsterismSource)
    finally:
        if active is not None:
            _activate(active)
    spark.conf.set(PUSHDOWN, "true")
    return spark


def _activate(spark: SparkSession) -> None:
    """Making a frame is what makes a session the active one; there is no other public way."""
    spark.createDataFrame([], "nothing INT")


def package(folder: str | os.PathLike[str] | None = None) -> Path:
    """This package as a zip, for ``spark.sparkContext.addPyFile`` or ``--py-files``.

    For executors where it is not installed; they need rocksdict, msgpack and pyarrow of their own.
    """
    home = Path(asterism.__file__).parent
    into = Path(tempfile.mkdtemp(prefix="asterism-")) if folder is None else Path(folder)
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"asterism-{asterism.__version__}.zip"
    draft = path.with_suffix(".tmp")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as packed:
        # In a checkout, folders of it are links: they are followed.
        for at, folders, files in os.walk(home, followlinks=True):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                if name.endswith((".py", ".typed")):
                    source = Path(at) / name
                    packed.write(source, Path("asterism") / source.relative_to(home))
    os.replace(draft, path)
    return path


def _find_java() -> None:
    """Tells Spark which Java to start, unless it has started one."""
    if pyspark.SparkContext._gateway is None:
        os.environ["JAVA_HOME"] = str(java_home())
