"""The commands that move checkpoints in and out: `import` and `export`.

Both start Spark, which moves the state; like all commands they parse, call and print.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import click
import pyarrow as pa

import sparkckpt
from sparkckpt.cli.output import ForPeople, Output
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM
from sparkckpt.launch import MASTER_KEY

_WITH_FORMAT_2 = " and with spark.sql.streaming.stateStore.checkpointFormatVersion=2"
_LOG_LEVEL_KEY = "spark.log.level"


def _spark_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--conf", "confs", multiple=True, metavar="NAME=VALUE", help="A setting for Spark."
        ),
        click.option(
            "--master", help="Where Spark runs.  [default: that of its settings, local[*]]"
        ),
        click.option(
            "--parallelism", type=int, help="Number of state partitions.  [default: as it is]"
        ),
        click.argument("target"),
        click.argument("source"),
    ):
        command = option(command)
    return command


@click.command("import")
@_spark_options
@click.option(
    "--max-parallelism",
    type=int,
    default=DEFAULT_MAX_PARALLELISM,
    show_default=True,
    help="Number of key groups, the bound of parallelism from now on.",
)
@click.pass_obj
def import_command(
    output: Output, /, source: str, target: str, max_parallelism: int, **options: Any
) -> None:
    """Bring a checkpoint of Spark's own state stores into sparkckpt.

    SOURCE is the checkpointLocation of a stopped query that runs on Spark's RocksDB or HDFS-backed
    state store; it is only read. TARGET is a new directory: start the same query with it as its
    checkpointLocation, and with sparkckpt enabled.
    """
    _run(
        output,
        sparkckpt.import_checkpoint,
        source,
        target,
        options,
        "and with sparkckpt enabled",
        max_parallelism=max_parallelism,
    )


@click.command("export")
@_spark_options
@click.option(
    "--checkpoint-format",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="Spark's spark.sql.streaming.stateStore.checkpointFormatVersion.",
)
@click.option(
    "--drop-operator-state",
    is_flag=True,
    help="Leave operator state behind, which Spark's state stores cannot hold.",
)
@click.pass_obj
def export_command(
    output: Output,
    /,
    source: str,
    target: str,
    checkpoint_format: int,
    drop_operator_state: bool,
    **options: Any,
) -> None:
    """Turn a checkpoint back into one for Spark's own RocksDB state store.

    SOURCE is the checkpointLocation of a stopped query that runs on sparkckpt; it is only read, at
    its last committed batch. TARGET is a new directory: start the same query with it as its
    checkpointLocation, without sparkckpt.
    """
    _run(
        output,
        sparkckpt.export_checkpoint,
        source,
        target,
        options,
        "without sparkckpt" + (_WITH_FORMAT_2 if checkpoint_format == 2 else ""),
        checkpoint_format=checkpoint_format,
        drop_operator_state=drop_operator_state,
    )


def _run(
    output: Output,
    move: Callable[..., sparkckpt.TransferReport],
    source: str,
    target: str,
    options: Mapping[str, Any],
    how: str,
    **further: object,
) -> None:
    with output.progress("Partitions") as progress:
        report = move(
            source,
            target,
            parallelism=options["parallelism"],
            confs=spark_confs(options["master"], options["confs"]),
            progress=progress,
            **further,
        )
    operators = [asdict(operator) for operator in report.operators]
    facts = {name: value for name, value in asdict(report).items() if name != "operators"}
    output.report(
        {**facts, "rows": report.rows, "seconds": round(report.seconds, 1)},
        {"operators": pa.Table.from_pylist(operators)},
        ForPeople({}),
    )
    output.note(f"Start the query with {target} as its checkpointLocation, {how}.")


def spark_confs(master: str | None, assignments: tuple[str, ...]) -> dict[str, str]:
    """The settings that the options --master and --conf of a command give."""
    confs = {_LOG_LEVEL_KEY: "ERROR"}
    for text in assignments:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--conf")
        confs[name] = value
    if master is not None:
        confs[MASTER_KEY] = master
    return confs
