"""Restores and rescales for a query that starts, through the storage of Spark's driver.

The same restoring and rescaling as that of the commands, with two differences: the target is that
of a query which has its id already, and the query takes its directory over from whoever ran there.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

from sparkckpt.conf import OPTIONS, Value
from sparkckpt.coordinator.preparation import Preparation
from sparkckpt.coordinator.restored import RESTORING_PATH, read_restored
from sparkckpt.restoration.inplace import rescale_in
from sparkckpt.restoration.materialize import restore_into
from sparkckpt.restoration.report import RescaleReport, RestoreReport
from sparkckpt.restoration.request import RestoreOptions
from sparkckpt.restoration.source import Source, open_storage
from sparkckpt.restoration.state import Logs
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0


def prepare(filesystem: Any, preparation: Preparation) -> str:
    """Does what was asked for and says what that was."""
    progress = _Progress(preparation.location)
    if preparation.source is None:
        assert preparation.parallelism is not None, "a rescaling is to some parallelism"
        rescaled = rescale_in(
            Storage(filesystem, preparation.location),
            preparation.parallelism,
            run_id=preparation.run_id,
            progress=progress,
        )
        return _rescaled(rescaled)
    values = restore_values(preparation.options)
    source = Source.at(preparation.source, _number(values["restore.checkpointId"]), filesystem)
    target, url = open_storage(preparation.location, filesystem)
    if is_restored(target, source):
        return f"{url} was restored from {source.url} before this start of the query asked for it."
    restored = restore_into(
        source,
        target,
        url,
        restore_options(values, preparation.parallelism),
        run_id=preparation.run_id,
        progress=progress,
    )
    for warning in restored.warnings:
        logger.warning("%s: %s", preparation.location, warning)
    return _restored(restored)


def is_restored(target: Storage, source: Source) -> bool:
    """Whether an earlier request has done it, and nobody heard of it: its query was stopped, or the
    process was killed before it could answer."""
    restored = read_restored(target)
    if restored is None or restored.source != source.url:
        return False
    return bool(Logs.read(target).offsets_log) and not target.exists(RESTORING_PATH)


def restore_values(options: Mapping[str, str]) -> dict[str, Value]:
    """The options of restore by name, from the texts that a session has for some."""
    return {
        option.name: option.value_of(options.get(option.name, option.default))
        for option in OPTIONS
        if option.name.startswith("restore.")
    }


def restore_options(values: Mapping[str, Value], parallelism: int | None) -> RestoreOptions:
    """How to restore; `parallelism` is what counts if the options say nothing of it."""
    return RestoreOptions(
        parallelism=_number(values["restore.parallelism"]) or parallelism,
        mode=str(values["restore.mode"]),
        allow_non_restored_state=bool(values["restore.allowNonRestoredState"]),
        map_operators={o: int(n) for o, n in _pairs(values["restore.mapOperators"]).items()},
        drop_operators=tuple(map(int, _items(values["restore.dropOperators"]))),
        add_operators=_pairs(values["restore.addOperators"]),
        max_parallelism=_number(values["restore.maxParallelism"]),
    )


def _number(value: Value) -> int | None:
    return value if isinstance(value, int) else None


def _items(value: Value) -> list[str]:
    return [part.strip() for part in str(value).split(",") if part]


def _pairs(value: Value) -> dict[int, str]:
    pairs = (part.split("=") for part in _items(value))
    return {int(key): text.strip() for key, text in pairs}


def _rescaled(report: RescaleReport) -> str:
    if not report.changed:
        return f"{report.path} has {report.parallelism} partitions already."
    return (
        f"{report.path} was rescaled from {report.former_parallelism} to {report.parallelism} "
        f"partitions, in {report.seconds:.2f} s."
    )


def _restored(report: RestoreReport) -> str:
    of = "the last committed batch"
    if report.checkpoint_id is not None:
        of = f"checkpoint {report.checkpoint_id}"
    return (
        f"{report.target} was restored from {of} of {report.source} ({report.mode}), which is the "
        f"state after batch {report.batch_id}, with {report.parallelism} partitions (it had "
        f"{report.former_parallelism}), in {report.seconds:.2f} s."
    )


class _Progress:
    """Says now and then how far a long work is."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said >= PROGRESS_SECONDS:
            self._said = now
            logger.info("%s: %d of %d files are done", self._location, done, total)
