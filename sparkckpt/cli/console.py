"""The `sparkckpt` command: thin click commands over the Python API.

A command parses its arguments, makes one call and hands the result to an `Output`. No decision and
no formatting belongs here, so that all that the command line can do can be done from Python.
"""

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import pyarrow as pa

import sparkckpt
from sparkckpt import checkpoints, conf, demo
from sparkckpt.cli.looking import diff_command, read_command, report_command
from sparkckpt.cli.moving import export_command, import_command
from sparkckpt.cli.output import ForPeople, JsonOutput, Output, TextOutput
from sparkckpt.cli.savepoints import dispose_command, savepoint_command
from sparkckpt.errors import SparkckptError
from sparkckpt.jar import SparkInstallation, jar_path
from sparkckpt.launch import JARS_KEY, LaunchSettings
from sparkckpt.session import enabling_settings

SHOWN_ROWS = 30
"""So many rows of each of a checkpoint's tables are printed for people who do not ask for all."""
SHOWN_FILE_COLUMNS = (
    "path",
    "kind",
    "bytes",
    "rows",
    "first_key_group",
    "last_key_group",
    "first_version",
    "last_version",
    "base",
    "foreign",
)

SPARED_COLUMNS = ("new_files", "operators", "duration_ms", "files", "delta_bytes", "completed")
"""What a narrow terminal need not show of a list of checkpoints, in the order in which it goes."""


def _choose_output(ctx: click.Context, _: click.Parameter, form: str | None) -> None:
    """Sets the output of a command and, for its errors, of the group."""
    if form is not None:
        ctx.obj = ctx.find_root().obj = JsonOutput() if form == "json" else TextOutput()


def _output_option(**settings: Any) -> click.Option:
    return click.Option(
        ["--output"],
        type=click.Choice(["text", "json"]),
        expose_value=False,
        is_eager=True,
        callback=_choose_output,
        **settings,
    )


class _Commands(click.Group):
    """Turns an error of ours into its message and exit status 1; --output may follow a command."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        cmd.params.append(_output_option(help="How results are printed."))
        super().add_command(cmd, name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SparkckptError as error:
            ctx.obj.error(error)
            ctx.exit(1)


@click.group(
    cls=_Commands,
    params=[_output_option(default="text", show_default=True, help="How results are printed.")],
)
@click.version_option(sparkckpt.__version__, prog_name="sparkckpt")
def main() -> None:
    """State backend, checkpoints and savepoints for Spark Structured Streaming."""


@main.command("jar")
@click.pass_obj
def show_jar(output: Output) -> None:
    """Print the path of the jar that fits the installed Spark."""
    output.value("jar", str(jar_path()))


@main.command()
@click.option("--properties", is_flag=True, help="Print lines of a properties file instead.")
@click.option("--jars", metavar="JARS", help="Jars of the job, as for spark-submit, to go along.")
@click.option(
    "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="Also set this option."
)
@click.pass_obj
def submit_args(
    output: Output, properties: bool, jars: str | None, assignments: tuple[str, ...]
) -> None:
    """Print what spark-submit needs to run a job on sparkckpt.

    Jars and plugins that spark-defaults.conf sets are kept: spark-submit would replace them. Give
    further jars here: where spark-submit is given --jars, it ignores spark.jars.
    """
    spark = SparkInstallation.in_use()
    launch = LaunchSettings.read({**os.environ, "PYSPARK_SUBMIT_ARGS": ""}, spark.home)
    settings = enabling_settings(jar_path(spark), launch, {JARS_KEY: jars} if jars else {})
    settings |= conf.settings_of(dict(_assignment(text) for text in assignments))
    if properties:
        text = "\n".join(f"{key} {value}" for key, value in settings.items())
    else:
        text = shlex.join(
            word for key, value in settings.items() for word in ("--conf", f"{key}={value}")
        )
    output.settings(settings, text)


def _assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"{text!r} is not of the form NAME=VALUE", param_hint="--set")
    return name, value


@main.command("options")
@click.pass_obj
def show_options(output: Output) -> None:
    """List every option with its type, default and meaning."""
    output.rows(
        f"Options, each named {conf.PREFIX}<option>",
        [
            {
                "option": option.name,
                "type": option.kind,
                "default": option.default_text,
                "meaning": option.doc,
            }
            for option in conf.OPTIONS
        ],
    )


@main.command("demo")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where to put input, output and checkpoint.  [default: a new temporary directory]",
)
@click.pass_obj
def run_demo(output: Output, directory: Path | None) -> None:
    """Run a streaming job, restart it from its checkpoint, and look into its state."""
    demo.run(output, directory)


PATH = click.argument("path")


@main.command("list")
@PATH
@click.pass_obj
def show_list(output: Output, path: str) -> None:
    """List the checkpoints of the query with this checkpointLocation.

    PATH may be local or a URL that fsspec can open (s3://, gs://, hdfs://, ...). Neither Spark nor
    a running query is needed; a running one is not disturbed.
    """
    table = sparkckpt.list_checkpoints(path)
    why = "" if table.num_rows else checkpoints.why_empty(path)
    empty = f"{path} has no checkpoint yet. {why}"
    output.table(f"Checkpoints in {path}", table, empty, SPARED_COLUMNS)


@main.command("show")
@PATH
@click.option("--id", "checkpoint_id", type=int, help="Which checkpoint.  [default: the newest]")
@click.option("--all", "everything", is_flag=True, help="Print long tables to their end.")
@click.pass_obj
def show(output: Output, path: str, checkpoint_id: int | None, everything: bool) -> None:
    """Show what a checkpoint consists of: operators, key groups, sources and files."""
    report = sparkckpt.show_checkpoint(path, checkpoint_id)
    output.report(
        {
            "checkpoint_id": report.checkpoint_id,
            "batch_id": report.batch_id,
            "query_id": report.query_id,
            "path": report.path,
            "completed": report.completed,
            "watermark": report.watermark,
            "savepoint": report.savepoint,
            **asdict(report.statistics),
            **asdict(report.source),
        },
        {
            "operators": report.operators,
            "key_groups": report.key_groups,
            "operator_states": report.operator_states,
            "sources": report.sources,
            "confs": report.confs,
            "files": report.files,
        },
        ForPeople({"files": SHOWN_FILE_COLUMNS}, None if everything else SHOWN_ROWS),
    )


@main.command("verify")
@PATH
@click.option("--id", "checkpoint_id", type=int, help="Which checkpoint.  [default: all]")
@click.pass_context
def verify(ctx: click.Context, path: str, checkpoint_id: int | None) -> None:
    """Read every byte of checkpoints; exit status 1 if anything is wrong."""
    output: Output = ctx.obj
    with output.progress("Files") as progress:
        problems = sparkckpt.verify(path, checkpoint_id, progress)
    which = "Every checkpoint" if checkpoint_id is None else f"Checkpoint {checkpoint_id}"
    output.table(f"Problems in {path}", problems, empty=f"{which} in {path} is sound.")
    ctx.exit(1 if problems.num_rows else 0)


@main.command("clean")
@PATH
@click.option(
    "--dry-run/--delete", default=True, help="List orphans only, or delete them.  [default: list]"
)
@click.pass_obj
def clean(output: Output, path: str, dry_run: bool) -> None:
    """List the state files that nothing needs any more, and with --delete delete them.

    A running query cleans up by itself: --delete is refused until it has ended.
    """
    output.table(
        f"Orphaned files in {path}",
        sparkckpt.clean(path, dry_run),
        empty=f"{path} has no orphaned files.",
    )


@main.command("rescale")
@PATH
@click.option(
    "--parallelism", type=int, required=True, metavar="N", help="The new number of partitions."
)
@click.pass_obj
def rescale(output: Output, path: str, parallelism: int) -> None:
    """Give the stopped query with this checkpointLocation N state partitions.

    It goes on with them when it is started again, whatever spark.sql.shuffle.partitions says. No
    state is rewritten, and a batch that was planned keeps its offsets. Killed at any moment, the
    checkpoint is as before or rescaled, and the command can be run again. N is from 1 to the
    checkpoint's number of key groups (maxParallelism).
    """
    with output.progress("Handles") as progress:
        report = sparkckpt.rescale(path, parallelism, progress=progress)
    _show_outcome(output, report)
    output.note(
        f"The query on {path} goes on with {parallelism} state partitions when it is started."
        if report.changed
        else f"The query on {path} has {parallelism} state partitions already: nothing was changed."
    )


@main.command("restore")
@click.argument("source")
@click.argument("target")
@click.option(
    "--parallelism", type=int, metavar="N", help="State partitions.  [default: as the source]"
)
@click.option(
    "--mode",
    type=click.Choice(["no-claim", "claim", "copy"]),
    default="no-claim",
    show_default=True,
    help="What becomes of the source's files: used until replaced, taken over, or copied.",
)
@click.option("--checkpoint-id", type=int, help="Which checkpoint.  [default: the newest]")
@click.option(
    "--allow-non-restored-state", is_flag=True, help="State of operators may be left behind."
)
@click.option(
    "--map-operator", "mapped", multiple=True, metavar="OLD=NEW", help="Move state to another id."
)
@click.option(
    "--drop-operator", "dropped", type=int, multiple=True, metavar="ID", help="Leave out."
)
@click.option(
    "--add-operator",
    "added",
    multiple=True,
    metavar="ID=NAME",
    help="Start an operator empty; NAME:TIMEMODE:OUTPUTMODE for transformWithState, NAME:global "
    "for an aggregation without keys.",
)
@click.option("--max-parallelism", type=int, metavar="M", help="Another number of key groups.")
@click.pass_obj
def restore(
    output: Output,
    /,
    source: str,
    target: str,
    mapped: tuple[str, ...],
    dropped: tuple[int, ...],
    added: tuple[str, ...],
    **options: Any,
) -> None:
    """Make TARGET a checkpointLocation from which a query goes on where SOURCE was.

    SOURCE is a checkpointLocation, or one of its checkpoints (.../_sparkckpt/chk-41); TARGET is a
    directory that does not exist or is empty. Both may be URLs that fsspec can open. With an older
    checkpoint this is a rollback.

    With --mode no-claim the source stays as it is, and its query may go on: the target uses its
    files until its own have replaced them. With claim they become the target's, and no query may
    run on the source any more. With copy they are copied, and the target depends on nothing.

    Operators keep their ids and state unless told otherwise. Spark numbers them by their place in
    the plan: where one is dropped, others move up, and the error says what to add.

    A restore that was broken off can be run again.
    """
    with output.progress("Files") as progress:
        report = sparkckpt.restore(
            source,
            target,
            map_operators=dict(_number_pair(text, "--map-operator") for text in mapped),
            drop_operators=dropped,
            add_operators=dict(_pair(text, "--add-operator", "ID=NAME") for text in added),
            progress=progress,
            **options,
        )
    _show_outcome(output, report)
    for text in report.warnings:
        output.warning(text)
    output.note(
        f"Start the query with {target} as its checkpointLocation: it goes on after batch "
        f"{report.batch_id} with {report.parallelism} state partitions."
    )


def _show_outcome(
    output: Output, report: sparkckpt.RescaleReport | sparkckpt.RestoreReport
) -> None:
    facts = {name: value for name, value in vars(report).items() if name != "operators"}
    facts["seconds"] = round(report.seconds, 3)
    operators = [asdict(operator) for operator in report.operators]
    output.report(facts, {"operators": pa.Table.from_pylist(operators)}, _WARNED)


_WARNED = ForPeople({}, told=("warnings",))


def _pair(text: str, option: str, form: str) -> tuple[int, str]:
    key, separator, value = text.partition("=")
    if not (separator and key.isascii() and key.isdecimal() and value):
        raise click.BadParameter(f"{text!r} is not of the form {form}", param_hint=option)
    return int(key), value


def _number_pair(text: str, option: str) -> tuple[int, int]:
    form = "OLD=NEW"
    key, value = _pair(text, option, form)
    if not (value.isascii() and value.isdecimal()):
        raise click.BadParameter(f"{text!r} is not of the form {form}", param_hint=option)
    return key, int(value)


main.add_command(import_command)
main.add_command(export_command)
main.add_command(read_command)
main.add_command(diff_command)
main.add_command(report_command)
main.add_command(savepoint_command)
main.add_command(dispose_command)
