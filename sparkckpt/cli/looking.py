"""The commands that look into state: `read`, `diff` and `report`.

Like all commands they parse, call and print. Rows for programs go to standard output, or a file, as
they are read, so that state of any size can be piped.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

import click
import pyarrow as pa

import sparkckpt
from sparkckpt.cli.output import JsonOutput, Output
from sparkckpt.cli.values import (
    fits_csv,
    fits_parquet,
    fitted,
    fitted_schema,
    json_value,
    python_rows,
)
from sparkckpt.errors import UnwritableFileError
from sparkckpt.tables.reader import kept_state

SHOWN_ROWS = 20
"""So many rows are printed for people who do not say how many."""

_FORMS = ("table", "csv", "json", "parquet", "arrow")


def _operator_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option(
            "--to",
            "target",
            type=click.Path(path_type=Path, dir_okay=False),
            help="A file for the rows.  [default: standard output]",
        ),
        click.option(
            "--as",
            "form",
            type=click.Choice(_FORMS),
            default="table",
            show_default=True,
            help="How rows are printed; json has one object a line.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(0),
            metavar="ROWS",
            help=f"Only so many rows.  [default: {SHOWN_ROWS} in a table, else all]",
        ),
        click.option("--state", "state", metavar="NAME", help="Which state, if there are several."),
        click.option(
            "--operator",
            "operator_id",
            type=int,
            metavar="ID",
            help="Which stateful operator, if there are several.",
        ),
    ):
        command = option(command)
    return command


@click.command("read")
@click.argument("path")
@_operator_options
@click.option("--id", "checkpoint_id", type=int, help="Which checkpoint.  [default: the newest]")
@click.option("--key", metavar="JSON", help="Only the rows of this key, such as '{\"k\": 7}'.")
@click.option("--key-groups", metavar="RANGE", help="Only these key groups, such as 0-99 or 7,12.")
@click.option("--operator-state", is_flag=True, help="Print operator state, which has no keys.")
@click.option("--list", "listed", is_flag=True, help="List the states instead.")
@click.pass_obj
def read_command(
    output: Output,
    /,
    path: str,
    operator_id: int | None,
    state: str | None,
    checkpoint_id: int | None,
    key: str | None,
    key_groups: str | None,
    operator_state: bool,
    listed: bool,
    **how: Any,
) -> None:
    """Print the state of an operator as a table.

    PATH is a checkpointLocation, or one of its checkpoints (.../_sparkckpt/chk-41), local or a URL
    that fsspec can open. Neither Spark nor a running query is needed; a running one is not
    disturbed, and its newest completed checkpoint is read.

    With --key only the key's own key group is read, which takes no time in state of any size.
    Times in it are written in ISO 8601, binary in hexadecimal, and a struct as an object.
    """
    with kept_state(path, checkpoint_id) as reader:
        if listed:
            operators = reader if operator_id is None else reader.operator(operator_id)
            output.table(f"States in {path}", operators.states(), f"{path} has no state.")
            return
        if operator_state:
            if state or key or key_groups:
                raise click.UsageError("--operator-state goes with no --state, --key, --key-groups")
            found = reader.operator(operator_id).operator_state()
            title = f"Operator state in {reader.snapshot}"
            _print(output, title, lambda rows: found.slice(0, rows), found.to_reader, **how)
            return
        table = reader.operator(operator_id).table(state, key_groups)
        title = f"State {table}"
        if key is None:
            _print(output, title, table.head, table.to_reader, **how)
        else:
            found = table.lookup(key)
            _print(output, title, lambda rows: found.slice(0, rows), found.to_reader, **how)


@click.command("diff")
@click.argument("before")
@click.argument("after")
@_operator_options
@click.option("--summary", is_flag=True, help="Print only how many keys have changed.")
@click.pass_obj
def diff_command(
    output: Output,
    /,
    before: str,
    after: str,
    operator_id: int | None,
    state: str | None,
    summary: bool,
    **how: Any,
) -> None:
    """Print which keys were added, removed or changed from one checkpoint to another.

    BEFORE and AFTER are checkpointLocations or single checkpoints (.../_sparkckpt/chk-41). Files
    that both refer to are not read.
    """
    difference = sparkckpt.diff(before, after, operator_id, state)
    if summary:
        counts = [{"change": name, "keys": count} for name, count in difference.summary().items()]
        output.rows(f"From {before} to {after}", counts)
        return
    title = f"Changes from {difference.before} to {difference.after}"
    _print(output, title, difference.head, difference.to_reader, **how)


@click.command("report")
@click.argument("path")
@click.option(
    "-o", "--out", "target", type=click.Path(path_type=Path, dir_okay=False),
    default="report.html", show_default=True, help="The file to write.",
)  # fmt: skip
@click.pass_obj
def report_command(output: Output, path: str, target: Path) -> None:
    """Make an HTML page of a query's checkpoints and its state.

    It shows the history of checkpoints, the state of each operator, how its keys are spread over
    key groups, and the largest keys. The page is one file, which needs no network. All state of
    the newest checkpoint is read.
    """
    with output.progress("States") as progress:
        written = sparkckpt.write_report(path, target, progress=progress)
    output.value("report", str(written))


def _print(
    output: Output,
    title: str,
    head: Callable[[int], pa.Table],
    stream: Callable[[], pa.RecordBatchReader],
    form: str,
    limit: int | None,
    target: Path | None,
) -> None:
    if form == "table" and target is None:
        shown = SHOWN_ROWS if limit is None else limit
        all_for_program = isinstance(output, JsonOutput) and limit is None
        rows = stream().read_all() if all_for_program else head(shown + 1)
        cut = rows if all_for_program else rows.slice(0, shown)
        output.data(title, cut, "No rows.")
        if cut.num_rows < rows.num_rows and limit is None:
            output.note(f"Only the first {shown} rows: --limit shows more, --as csv all of them.")
        return
    if form == "table":
        raise click.BadParameter("a file needs one of csv, json, parquet, arrow", param_hint="--as")
    reader = stream() if limit is None else head(limit).to_reader()
    if target is None:
        _WRITERS[form](reader, _standard_output(form))
        return
    # What was there is replaced only when all rows are written.
    unfinished = target.with_name(f".{target.name}.tmp")
    try:
        with unfinished.open("wb") as sink:
            _WRITERS[form](reader, sink)
        unfinished.replace(target)
    except OSError as error:
        raise UnwritableFileError.write(str(target), error.strerror or str(error)) from error
    finally:
        unfinished.unlink(missing_ok=True)


def _standard_output(form: str) -> BinaryIO:
    if form in ("parquet", "arrow") and sys.stdout.isatty():
        raise click.BadParameter(
            f"{form} is not for a terminal: use --to or a pipe", param_hint="--as"
        )
    return sys.stdout.buffer


def _write_csv(reader: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    from pyarrow.csv import CSVWriter

    with CSVWriter(sink, fitted_schema(reader.schema, fits_csv)) as writer:
        for batch in reader:
            writer.write_batch(fitted(batch, fits_csv))


def _write_json(reader: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    for batch in reader:
        for row in python_rows(batch):
            sink.write(json.dumps(json_value(row), ensure_ascii=False).encode() + b"\n")


def _write_parquet(reader: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    from pyarrow.parquet import ParquetWriter

    with ParquetWriter(sink, fitted_schema(reader.schema, fits_parquet)) as writer:
        for batch in reader:
            writer.write_batch(fitted(batch, fits_parquet))


def _write_arrow(reader: pa.RecordBatchReader, sink: IO[bytes]) -> None:
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        for batch in reader:
            writer.write_batch(batch)


_WRITERS: dict[str, Callable[[pa.RecordBatchReader, IO[bytes]], None]] = {
    "csv": _write_csv,
    "json": _write_json,
    "parquet": _write_parquet,
    "arrow": _write_arrow,
}
