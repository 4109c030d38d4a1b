"""Spark's Murmur3 hash of typed values, on Arrow columns: what SQL's `hash(...)` returns.

It decides a key's group, so that it must agree with Spark in every bit, also where Spark's hash is
not the published one: the last bytes of a text are mixed in one by one and signed. The Arrow type
of a column says how its values are hashed; text with a collation that is not binary is none of its
business, since Spark takes no such text for a key of state.
"""

from collections.abc import Iterable
from decimal import Context

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkckpt.errors import UnhashableKeyError

SEED = 42

Hashes = npt.NDArray[np.uint32]

_WORD = 0xFFFFFFFF
_LONGEST_AT_ONCE = 256
"""Texts up to so many bytes are hashed all at once, word by word; a longer one by itself."""
_MAX_LONG_DIGITS = 18
_EXACT = Context(prec=76)


def hash_columns(columns: Iterable[pa.Array], rows: int) -> npt.NDArray[np.int32]:
    """The hash of each row of these columns, which have so many rows."""
    hashes = np.full(rows, SEED, np.uint32)
    for column in columns:
        hashes = _hash(column, hashes)
    return hashes.view(np.int32)


def _hash(values: pa.Array, seeds: Hashes) -> Hashes:
    """A null leaves the hash as it is."""
    if pa.types.is_null(values.type):
        return seeds
    if values.null_count == 0:
        return _hash_present(values, seeds)
    present = values.is_valid().to_numpy(zero_copy_only=False)
    hashes = seeds.copy()
    hashes[present] = _hash_present(values.drop_null(), seeds[present])
    return hashes


def _hash_present(values: pa.Array, seeds: Hashes) -> Hashes:
    kind = values.type
    if pa.types.is_struct(kind):
        for field in values.flatten():
            seeds = _hash(field, seeds)
        return seeds
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([values.keys, values.items], names=["key", "value"])
        return _hash_items(values.offsets, entries, seeds)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _hash_items(values.offsets, values.values, seeds)
    if pa.types.is_decimal(kind):
        if kind.precision > _MAX_LONG_DIGITS:
            return _hash_bytes(_big_integers(values), seeds)
        return _hash_longs(_unscaled(values).astype(np.int64), seeds)
    if any(check(kind) for check in _TEXTS):
        return _hash_bytes(values.cast(pa.large_binary()), seeds)
    if pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind.bit_width < 64):
        return _hash_ints(values.cast(pa.int32()).to_numpy(), seeds)
    if pa.types.is_date32(kind):
        return _hash_ints(values.view(pa.int32()).to_numpy(), seeds)
    if pa.types.is_floating(kind) and kind.bit_width >= 32:
        bits = _canonical_bits(values.to_numpy())
        return _hash_ints(bits, seeds) if kind.bit_width == 32 else _hash_longs(bits, seeds)
    if any(check(kind) for check in _LONGS):
        return _hash_longs(values.view(pa.int64()).to_numpy(), seeds)
    raise UnhashableKeyError(str(kind))


_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)
_LONGS = (
    pa.types.is_int64,
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_time64,
)


def _hash_items(offsets: pa.Array, items: pa.Array, seeds: Hashes) -> Hashes:
    """Of lists without nulls: the hash of an item is the seed of the next."""
    starts = offsets.to_numpy()
    lengths = np.diff(starts)
    hashes = seeds.copy()
    for position in range(int(lengths.max(initial=0))):
        (longer,) = np.nonzero(lengths > position)
        hashes[longer] = _hash(items.take(pa.array(starts[longer] + position)), hashes[longer])
    return hashes


def _canonical_bits(values: npt.NDArray[np.floating]) -> npt.NDArray[np.signedinteger]:
    """Spark knows one zero and one NaN."""
    canonical = np.where(values == 0, values.dtype.type(0), values)
    canonical[np.isnan(values)] = values.dtype.type(np.nan)
    return canonical.view(np.int32 if values.dtype == np.float32 else np.int64)


def _unscaled(values: pa.Array) -> npt.NDArray[np.signedinteger]:
    """The numbers that decimals up to 18 digits are a power of ten of."""
    if values.type.bit_width != 128:
        values = values.cast(pa.decimal128(values.type.precision, values.type.scale))
    words = np.frombuffer(values.buffers()[1], np.int64)
    return words[2 * values.offset : 2 * (values.offset + len(values)) : 2]


def _big_integers(values: pa.Array) -> pa.Array:
    """The same in the bytes of Java's BigInteger: the fewest that are enough, the first signed."""
    scale = values.type.scale
    numbers = (int(value.scaleb(scale, _EXACT)) for value in values.to_pylist())
    return pa.array(
        [
            n.to_bytes((n if n >= 0 else ~n).bit_length() // 8 + 1, "big", signed=True)
            for n in numbers
        ],
        pa.large_binary(),
    )


def _hash_ints(values: npt.NDArray[np.signedinteger], seeds: Hashes) -> Hashes:
    return _finish(_mix(seeds, values.astype(np.int32).view(np.uint32)), 4)


def _hash_longs(values: npt.NDArray[np.signedinteger], seeds: Hashes) -> Hashes:
    words = np.ascontiguousarray(values).view(np.uint64)
    low, high = (words & _WORD).astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
    return _finish(_mix(_mix(seeds, low), high), 8)


def _hash_bytes(values: pa.Array, seeds: Hashes) -> Hashes:
    """Of large binary values without nulls."""
    _, offsets_buffer, data_buffer = values.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[
        values.offset : values.offset + len(values) + 1
    ]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    lengths = np.diff(offsets)
    hashes = seeds.copy()
    (long,) = np.nonzero(lengths > _LONGEST_AT_ONCE)
    for row in long:
        text = data[offsets[row] : offsets[row + 1]].tobytes()
        hashes[row] = _hash_of_one(text, int(seeds[row]))
    (rest,) = np.nonzero(lengths <= _LONGEST_AT_ONCE)
    if len(rest):
        hashes[rest] = _hash_short(data, offsets[rest], lengths[rest], seeds[rest])
    return hashes


def _hash_short(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    seeds: Hashes,
) -> Hashes:
    """All texts at once: first their words, then the bytes that are left over."""
    hashes = seeds.copy()
    words = lengths // 4
    for word in range(int(words.max())):
        (longer,) = np.nonzero(words > word)
        at = starts[longer] + 4 * word
        value = data[at].astype(np.uint32)
        for byte in (1, 2, 3):
            value |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
        hashes[longer] = _mix(hashes[longer], value)
    for byte in range(3):
        (longer,) = np.nonzero(lengths % 4 > byte)
        at = starts[longer] + 4 * words[longer] + byte
        signed = data[at].view(np.int8).astype(np.int32).view(np.uint32)
        hashes[longer] = _mix(hashes[longer], signed)
    return _finish(hashes, lengths.astype(np.uint32))


def _hash_of_one(text: bytes, seed: int) -> int:
    """Some ten times as fast for a long text, which would take a step of numpy's for each word."""
    hashed = seed
    aligned = len(text) - len(text) % 4
    words = np.frombuffer(text[:aligned], "<u4").tolist()
    tail = [byte - 256 if byte > 127 else byte for byte in text[aligned:]]
    for word in (*words, *tail):
        mixed = (word * 0xCC9E2D51) & _WORD
        mixed = ((mixed << 15) | (mixed >> 17)) & _WORD
        hashed ^= (mixed * 0x1B873593) & _WORD
        hashed = ((hashed << 13) | (hashed >> 19)) & _WORD
        hashed = (hashed * 5 + 0xE6546B64) & _WORD
    return int(_finish(np.array([hashed], np.uint32), len(text) & _WORD)[0])


def _mix(hashes: Hashes, words: Hashes) -> Hashes:
    mixed = _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
    return _rotated(hashes ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _rotated(words: Hashes, bits: int) -> Hashes:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _finish(hashes: Hashes, lengths: Hashes | int) -> Hashes:
    hashes = hashes ^ np.asarray(lengths, np.uint32)
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))
