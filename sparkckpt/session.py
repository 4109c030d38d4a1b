"""Enables the backend on a session builder: the one place that knows what Spark must be told.

Spark loads jars and plugins only when its JVM starts, so everything is put on the builder before
that, appended to what the user has set. It must never replace a user's setting, start a JVM, or
return a builder that would silently run without the plugin.
"""

import os
import shlex
import shutil
import site
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from sparkckpt.conf import PREFIX, Value, settings_of
from sparkckpt.errors import JavaNotFoundError, SessionAlreadyRunningError, UnsupportedSparkError
from sparkckpt.jar import JAR_NAME, SparkInstallation, jar_path
from sparkckpt.launch import JARS_KEY, MASTER_KEY, PLUGINS_KEY, LaunchSettings, append_item

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLUGIN = "org.apache.spark.sql.sparkckpt.SparkckptPlugin"
PYTHON_KEY = "spark.pyspark.python"
COORDINATOR_PYTHON_KEY = PREFIX + "coordinator.python"
PACKAGE_PATH_KEY = PREFIX + "internal.packagePath"


def configure(builder: "SparkSession.Builder", **options: Value) -> "SparkSession.Builder":
    """The builder with sparkckpt enabled; `options` are those of `sparkckpt options`.

    >>> spark = sparkckpt.configure(SparkSession.builder, max_parallelism=4096).getOrCreate()
    """
    settings = settings_of(options)
    _refuse_remote(builder)
    spark = SparkInstallation.in_use()
    jar = jar_path(spark)
    if not _runs_with_plugin():
        launch = _launch_settings(spark, jar)
        settings |= enabling_settings(jar, launch, builder._options)
        settings |= _worker_python(launch, builder._options)
        settings |= _coordinator_python(launch, {**builder._options, **settings})
        if launch.submit_args:
            _append_to_submit_args(launch, settings)
    for key, value in settings.items():
        builder.config(key, value)
    return builder


def enabling_settings(
    jar: Path, launch: LaunchSettings, builder_options: dict[str, object]
) -> dict[str, str]:
    """Jar and plugin, each appended to the value that would otherwise take effect."""
    jars = launch.value_of(JARS_KEY, builder_options)
    plugins = launch.value_of(PLUGINS_KEY, builder_options)
    return {
        JARS_KEY: jars if jars and _names_our_jar(jars) else append_item(jars, str(jar)),
        PLUGINS_KEY: append_item(plugins, PLUGIN),
    }


def _names_our_jar(jars: str) -> bool:
    return any(JAR_NAME.fullmatch(entry.strip().rpartition("/")[2]) for entry in jars.split(","))


def _append_to_submit_args(launch: LaunchSettings, settings: dict[str, str]) -> None:
    """Words of PYSPARK_SUBMIT_ARGS win over the builder, so what they set is extended there too."""
    for key in (JARS_KEY, PLUGINS_KEY):
        words = launch.submit_args_with(key, settings[key])
        launch = LaunchSettings(words, launch.defaults)
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(launch.submit_args)


def _worker_python(launch: LaunchSettings, builder_options: dict[str, object]) -> dict[str, str]:
    """Local workers run this very interpreter; on a cluster only the user knows the right path."""
    master = launch.value_of(MASTER_KEY, builder_options) or os.environ.get("MASTER", "local")
    chosen = "PYSPARK_PYTHON" in os.environ or launch.value_of(PYTHON_KEY, builder_options)
    if chosen or not master.startswith("local"):
        return {}
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return {PYTHON_KEY: sys.executable}


def _coordinator_python(
    launch: LaunchSettings, builder_options: dict[str, object]
) -> dict[str, str]:
    """The coordinator runs beside the driver, so this very interpreter and package will do."""
    if not sys.executable or launch.value_of(COORDINATOR_PYTHON_KEY, builder_options):
        return {}
    settings = {COORDINATOR_PYTHON_KEY: sys.executable}
    package_path = str(Path(__file__).resolve().parent.parent)
    if package_path not in (sysconfig.get_path("purelib"), site.getusersitepackages()):
        settings[PACKAGE_PATH_KEY] = package_path
    return settings


def _refuse_remote(builder: "SparkSession.Builder") -> None:
    url = builder._options.get("spark.remote") or os.environ.get("SPARK_REMOTE")
    if url or builder._options.get("spark.api.mode") == "connect":
        raise UnsupportedSparkError.remote(str(url or "spark.api.mode=connect"))


def _runs_with_plugin() -> bool:
    """Whether an application runs already, with the plugin; one without it is refused."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return False
    if PLUGIN not in (context.getConf().get(PLUGINS_KEY) or "").split(","):
        raise SessionAlreadyRunningError.without_plugin(str(context.applicationId), PLUGIN)
    return True


def _launch_settings(spark: SparkInstallation, jar: Path) -> LaunchSettings:
    """What a JVM would be launched with, or what spark-submit has launched the present one with."""
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _require_java()
        return LaunchSettings.read(os.environ, spark.home)
    SparkContext._ensure_initialized()
    assert SparkContext._jvm is not None
    if not SparkContext._jvm.org.apache.spark.util.Utils.classIsLoadable(PLUGIN):
        raise SessionAlreadyRunningError.without_jar(jar)
    return LaunchSettings((), dict(SparkConf().getAll()))


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home) / "bin" / "java") if home else "java") is None:
        raise JavaNotFoundError(f"JAVA_HOME={home}" if home else "PATH")
