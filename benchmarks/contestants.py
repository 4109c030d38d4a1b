"""The state backends that are compared, and the session each of them runs in.

Everything but the backend is the same for all: cores, partitions, memory, maintenance interval and
retention. It must never tune one contestant: apart from what names the backend, defaults hold.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CORES = 2
PARTITIONS = 4
REFERENCE = "rocksdb"
JAR_VARIABLE = "SPARKCKPT_JAR"
"""Names a jar to measure instead of the one that `sparkckpt.configure` would choose."""

_STORE = "spark.sql.streaming.stateStore"
_STATE_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_ROCKSDB = {
    f"{_STORE}.providerClass": f"{_STATE_PACKAGE}.RocksDBStateStoreProvider",
    f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
}


@dataclass(frozen=True)
class Contestant:
    """A backend: its settings, and the metrics by which its progress reports are known."""

    name: str
    title: str
    settings: Mapping[str, str]
    signature_metric: str
    """Present in progress reports only when this backend really ran."""
    load_metric: str | None = None
    is_sparkckpt: bool = False
    on_request: bool = False
    """It runs only if it is named: it is not another backend."""


CONTESTANTS: dict[str, Contestant] = {
    contestant.name: contestant
    for contestant in (
        Contestant(
            "sparkckpt",
            "sparkckpt, RocksDB",
            {f"{_STORE}.sparkckpt.engine": "rocksdb"},
            "sparkckptDeltaBytes",
            "sparkckptLoadTimeMs",
            is_sparkckpt=True,
        ),
        Contestant(
            "memory",
            "sparkckpt, memory",
            {f"{_STORE}.sparkckpt.engine": "auto"},
            "sparkckptMemoryPageBytes",
            "sparkckptLoadTimeMs",
            is_sparkckpt=True,
        ),
        Contestant(
            "uncoordinated",
            "sparkckpt, no coordinator",
            {
                f"{_STORE}.sparkckpt.engine": "rocksdb",
                f"{_STORE}.sparkckpt.coordinator.enabled": "false",
            },
            "sparkckptDeltaBytes",
            "sparkckptLoadTimeMs",
            is_sparkckpt=True,
            on_request=True,
        ),
        Contestant(REFERENCE, "Spark RocksDB", _ROCKSDB, "rocksdbPutCount", "rocksdbLoadLatencyMs"),
        Contestant(
            "rocksdb-zstd",
            "Spark RocksDB, zstd",
            _ROCKSDB | {f"{_STORE}.compression.codec": "zstd"},
            "rocksdbPutCount",
            "rocksdbLoadLatencyMs",
        ),
        Contestant(
            "hdfs",
            "Spark HDFS-backed",
            {f"{_STORE}.providerClass": f"{_STATE_PACKAGE}.HDFSBackedStateStoreProvider"},
            "loadedMapCacheHitCount",
        ),
    )
}


def start_session(
    contestant: Contestant,
    memory: str,
    maintenance_interval: str,
    local_dir: str,
    master: str = f"local[{CORES}]",
    extra: Mapping[str, str] = MappingProxyType({}),
) -> "SparkSession":
    """A session in a JVM of this process, on the contestant's backend."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": memory,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": local_dir,
        "spark.sql.warehouse.dir": os.path.join(local_dir, "warehouse"),  # noqa: PTH118
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        f"{_STORE}.maintenanceInterval": maintenance_interval,
        # Nothing is deleted during a run, so what was written can be counted afterwards.
        "spark.sql.streaming.minBatchesToRetain": "100000",
        **contestant.settings,
        **extra,
    }
    builder = SparkSession.builder.master(master).appName(f"bench {contestant.name}")
    for key, value in settings.items():
        builder = builder.config(key, value)
    if contestant.is_sparkckpt:
        builder = _with_sparkckpt(builder)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    return session


def _with_sparkckpt(builder: "SparkSession.Builder") -> "SparkSession.Builder":
    import sparkckpt
    from sparkckpt.session import PLUGIN

    if jar := os.environ.get(JAR_VARIABLE):
        return builder.config("spark.jars", jar).config("spark.plugins", PLUGIN)
    return sparkckpt.configure(builder)
