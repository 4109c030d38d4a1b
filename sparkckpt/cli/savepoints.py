"""The commands about savepoints: `savepoint` and `dispose`.

Like all commands they parse, call and print.
"""

from dataclasses import asdict
from typing import Any

import click
import pyarrow as pa

import sparkckpt
from sparkckpt.cli.moving import spark_confs
from sparkckpt.cli.output import ForPeople, Output


@click.command("savepoint")
@click.argument("checkpoint")
@click.argument("target")
@click.option("--checkpoint-id", type=int, help="Which checkpoint.  [default: the newest]")
@click.option("--name", help="What the savepoint is called.  [default: the last part of TARGET]")
@click.option("--stop", is_flag=True, help="Stop the running query at exactly this state.")
@click.option(
    "--timeout",
    type=click.IntRange(min=1),
    default=600,
    show_default=True,
    help="With --stop: seconds in which the query must finish its batch.",
)
@click.option("--spark", is_flag=True, help="Merge the state as a Spark job, for big state.")
@click.option("--master", help="With --spark: where it runs.  [default: its settings, local[*]]")
@click.option(
    "--conf",
    "confs",
    multiple=True,
    metavar="NAME=VALUE",
    help="With --spark: a setting for Spark.",
)
@click.pass_obj
def savepoint_command(
    output: Output,
    /,
    checkpoint: str,
    target: str,
    checkpoint_id: int | None,
    name: str | None,
    stop: bool,
    timeout: int,
    spark: bool,
    master: str | None,
    confs: tuple[str, ...],
) -> None:
    """Take a savepoint of a query: a snapshot that is yours, in the new directory TARGET.

    CHECKPOINT is the checkpointLocation of a query, running or stopped, or one of its checkpoints
    (.../_sparkckpt/chk-41). The savepoint needs nothing else: it can be moved, copied to another
    storage, and restored there with `sparkckpt restore`. sparkckpt never deletes it; you do, with
    `sparkckpt dispose`. Both may be URLs that fsspec can open.

    With --stop the running query finishes its batch, the savepoint is taken of the state after it,
    and the query stops. If no savepoint comes about, the query goes on.

    One that was broken off can be taken again with the same TARGET.
    """
    options: dict[str, Any] = {"name": name}
    if spark:
        options |= {"spark": True, "confs": spark_confs(master, confs)}
    elif master or confs:
        raise click.UsageError("--master and --conf are for --spark")
    if stop and checkpoint_id is not None:
        raise click.UsageError("--stop takes the last checkpoint: it goes without --checkpoint-id")
    with output.progress("Parts") as progress:
        if stop:
            report = sparkckpt.stop_with_savepoint(
                checkpoint, target, timeout=timeout, progress=progress, **options
            )
        else:
            report = sparkckpt.savepoint(
                checkpoint, target, checkpoint_id=checkpoint_id, progress=progress, **options
            )
    facts = {key: value for key, value in asdict(report).items() if key != "operators"}
    output.report(
        {**facts, "seconds": round(report.seconds, 3)},
        {"operators": pa.Table.from_pylist([asdict(operator) for operator in report.operators])},
        ForPeople({}),
    )
    output.note(
        f"{'The query was stopped. ' if stop else ''}Go on from the savepoint with: "
        f"sparkckpt restore {target} NEW_CHECKPOINT"
    )


@click.command("dispose")
@click.argument("savepoint")
@click.option("--force", is_flag=True, help="Also if something may still need its files.")
@click.pass_obj
def dispose_command(output: Output, /, savepoint: str, force: bool) -> None:
    """Delete a savepoint, or what is left of one that was broken off.

    Refused for any other directory, and while a query that was restored from it with --mode
    no-claim or claim still needs its files.
    """
    report = sparkckpt.dispose(savepoint, force=force)
    output.report(asdict(report), {}, ForPeople({}))
