"""Pieces of HTML: text that is made safe, and tables. What they say is decided elsewhere."""

import html
from collections.abc import Sequence

import pyarrow as pa

from sparkckpt.cli.cells import heading_of, text_of
from sparkckpt.cli.values import is_number, python_rows, value_text


def text(value: object) -> str:
    """Text as it stands on a page."""
    return html.escape(str(value))


def element(tag: str, *inner: str, **attributes: object) -> str:
    """An element of what is HTML already; `_` in the name of an attribute stands for `-`."""
    described = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{described}>{''.join(inner)}</{tag}>"


def table_of(
    headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool] = ()
) -> str:
    """A table of HTML cells; numbers stand on the right."""
    right = [*numeric, *[False] * (len(headings) - len(numeric))]
    kinds = ["num" if one else None for one in right]
    head = (element("th", text(h), class_=kind) for h, kind in zip(headings, kinds, strict=True))
    body = (
        element("tr", *(element("td", c, class_=kind) for c, kind in zip(row, kinds, strict=True)))
        for row in rows
    )
    return element("table", element("thead", element("tr", *head)), element("tbody", *body))


def rows_of(table: pa.Table) -> str:
    """Rows of a user's own, with the names of their columns as they are."""
    numeric = [is_number(field.type) for field in table.schema]
    rows = [[text(value_text(value)) for value in row.values()] for row in python_rows(table)]
    return table_of(table.column_names, rows, numeric)


def facts_of(table: pa.Table) -> str:
    """Rows of a report, whose columns say what their numbers mean; columns without values go."""
    names = [n for n in table.column_names if table[n].null_count < max(table.num_rows, 1)]
    numeric = [pa.types.is_integer(table.schema.field(name).type) for name in names]
    rows = [[text(text_of(name, row[name])) for name in names] for row in table.to_pylist()]
    return table_of([heading_of(name) for name in names], rows, numeric)
