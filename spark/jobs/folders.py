"""Folders that jobs write to, on whatever file system Spark knows: a disk, HDFS, a bucket.

Spark's own view of files is used, so that the driver sees what its executors have written.
"""

from typing import Any

from pyspark.sql import SparkSession


class Folders:
    """Files of one file system, by path."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        configuration = spark.sparkContext._jsc.hadoopConfiguration()
        self._fs: Any = self._path(path).getFileSystem(configuration)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def make(self, path: str) -> None:
        self._fs.mkdirs(self._path(path))

    def names(self, path: str) -> list[str]:
        """What lies in a folder; nothing if it is not there."""
        if not self.exists(path):
            return []
        return sorted(
            status.getPath().getName() for status in self._fs.listStatus(self._path(path))
        )

    def files(self, path: str) -> list[str]:
        """Every file beneath a folder, from there."""
        if not self.exists(path):
            return []
        root = self._fs.resolvePath(self._path(path)).toUri().getPath()
        walk = self._fs.listFiles(self._path(path), True)
        found = []
        while walk.hasNext():
            found.append(walk.next().getPath().toUri().getPath()[len(root) + 1 :])
        return sorted(found)

    def move(self, source: str, target: str) -> bool:
        """Moves a file to where none is; false if it could not be."""
        parent = self._path(target).getParent()
        if not self._fs.exists(parent):
            self._fs.mkdirs(parent)
        return bool(self._fs.rename(self._path(source), self._path(target)))

    def delete(self, path: str) -> None:
        self._fs.delete(self._path(path), True)

    def read(self, path: str) -> str:
        stream = self._fs.open(self._path(path))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_new(self, path: str, text: str) -> bool:
        """Writes a file whole, or not at all; false if there is one already."""
        draft = f"{path}.draft"
        stream = self._fs.create(self._path(draft), True)
        try:
            stream.write(bytearray(text.encode("utf-8")))
        finally:
            stream.close()
        if self.exists(path):
            return False
        return self.move(draft, path)

    def write(self, path: str, text: str) -> None:
        """Writes a file in the place of another."""
        if self.exists(path):
            self.delete(path)
        self.write_new(path, text)
