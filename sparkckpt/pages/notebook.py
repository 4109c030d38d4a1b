"""How checkpoints and state show themselves in a notebook: the fewest rows that tell what they are.

Only what is asked for is read: a few rows, never all of a state, except to count what has changed.
"""

import pyarrow as pa

from sparkckpt.checkpoints.report import CheckpointReport
from sparkckpt.pages.html import element, facts_of, rows_of, text
from sparkckpt.tables.difference import StateDiff
from sparkckpt.tables.table import StateTable

SHOWN_ROWS = 10


def html_of_states(title: str, states: pa.Table) -> str:
    """The states that there are."""
    if not states.num_rows:
        return _titled(title, "No state yet.")
    return _titled(title, facts_of(states.drop_columns(["store", "family"])))


def html_of_table(table: StateTable) -> str:
    """The first rows of a state."""
    rows = table.head(SHOWN_ROWS + 1)
    more = " More rows follow." if rows.num_rows > SHOWN_ROWS else ""
    note = element("small", f"Key: {text(', '.join(table.key_schema.names) or 'none')}.{more}")
    return _titled(str(table), rows_of(rows.slice(0, SHOWN_ROWS)) + note)


def html_of_diff(difference: StateDiff) -> str:
    """How much has changed, and some of it."""
    counts = ", ".join(f"{count:,} {change}" for change, count in difference.summary().items())
    rows = difference.head(SHOWN_ROWS)
    shown = rows_of(rows) if rows.num_rows else ""
    return _titled(f"{difference.before} to {difference.after}: {counts}", shown)


def html_of_history(path: str, checkpoints: pa.Table) -> str:
    """The checkpoints of a query."""
    if not checkpoints.num_rows:
        return _titled(path, "No checkpoint yet.")
    return _titled(f"Checkpoints in {path}", facts_of(checkpoints))


def html_of_checkpoint(report: CheckpointReport) -> str:
    """What a checkpoint consists of."""
    title = (
        f"Checkpoint {report.checkpoint_id} of {report.path}, batch {report.batch_id}, "
        f"completed {report.completed:%Y-%m-%d %H:%M:%S} UTC"
    )
    return _titled(title, facts_of(report.operators) + facts_of(report.sources))


def _titled(title: str, inner: str) -> str:
    return element("div", element("b", text(title)), inner, class_="sparkckpt")
