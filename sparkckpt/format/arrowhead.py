"""The head of an Arrow IPC file, which has no checksum: magic, and the message with the schema.

Readers take the schema from the footer, so that damage to the head does not matter to them, but it
does to tools that read a file from its beginning. Both writers build the schema first, back to
front, in the message as in the footer: its bytes are the same and end both. What precedes it in
the message depends on the writer alone.
"""

_MAGIC = b"ARROW1\0\0"
_CONTINUATION = b"\xff\xff\xff\xff"
_ALIGNMENT = 8
_FOOTER_END = 10
"""The length of the footer and the magic without its padding."""

_MESSAGES = tuple(
    map(
        bytes.fromhex,
        (
            # Arrow for C++ and Python
            "10000000 00000a00 0c000600 05000800 0a000000 00010400 0c000000",
            # Arrow for Java
            "10000000 00000a00 0e000600 0d000800 0a000000 00000400 10000000 0001",
        ),
    )
)
"""What precedes the schema: a message of version 5 with a schema as header and no body."""


def is_head_of(head: bytes, tail: bytes) -> bool:
    """Whether these bytes, up to the first record batch, belong to a file with this tail."""
    start = len(_MAGIC) + len(_CONTINUATION) + 4
    message = head[start:]
    length = len(message).to_bytes(4, "little")
    if head[:start] != _MAGIC + _CONTINUATION + length or len(head) % _ALIGNMENT:
        return False
    footer_length = int.from_bytes(tail[-_FOOTER_END : 4 - _FOOTER_END], "little")
    footer = tail[-_FOOTER_END - footer_length : -_FOOTER_END]
    return any(
        message.startswith(prefix) and _ends_as(message[len(prefix) :], footer)
        for prefix in _MESSAGES
    )


def _ends_as(schema: bytes, footer: bytes) -> bool:
    """Whether the footer ends with the schema, which is padded with zeros."""
    return any(
        footer.endswith(schema[: len(schema) - padding])
        and not any(schema[len(schema) - padding :])
        for padding in range(min(_ALIGNMENT, len(schema)))
    )
