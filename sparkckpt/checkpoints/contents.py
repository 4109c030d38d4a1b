"""Reads one file of a checkpoint from its first byte to its last and says what is wrong with it.

Goes on after a problem, as far as what follows can be found without what is damaged. Never holds
more of a large file than a record batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from sparkckpt.checkpoints.problems import FILE_ERRORS, FileError
from sparkckpt.errors import CorruptStateError
from sparkckpt.format.handle import StateFileRef, StateHandle, check_unread_bytes, read_handle
from sparkckpt.format.operatorstate import OperatorStateHandle, check_blob
from sparkckpt.format.resolve import APPEND, DELETE
from sparkckpt.format.statefile import BatchIndex, ReadRange, StateFile
from sparkckpt.storage import Storage

READ_AT_ONCE = 8 << 20
"""Up to so many bytes a file is read in one call."""


@dataclass(frozen=True)
class ExpectedState:
    """A state file as handles describe it."""

    ref: StateFileRef
    family: str
    multi_valued: bool
    max_parallelism: int
    is_own: bool = False
    """It is the change set of the handle itself, and so all of it counts, not only a slice."""

    @classmethod
    def all_of(cls, handle: StateHandle) -> Iterator["ExpectedState"]:
        for family in handle.families:
            for ref in family.files:
                yield cls(
                    ref,
                    family.family,
                    family.multi_valued,
                    handle.max_parallelism,
                    ref.level == 0 and ref.last_version == handle.version,
                )

    @property
    def place(self) -> tuple[object, ...]:
        """What is the same for all slices of one file."""
        ref = self.ref
        return (
            *(ref.offset, ref.length, ref.tail_length, ref.tail_crc32, ref.rows),
            *(self.family, self.multi_valued, self.max_parallelism),
        )


@dataclass
class ReferredFile:
    """A file at one path, what checkpoints say it is, and which of them say so."""

    path: str
    handles: list[StateHandle] = field(default_factory=list)
    states: dict[ExpectedState, None] = field(default_factory=dict)
    operator_states: dict[OperatorStateHandle, None] = field(default_factory=dict)
    checkpoints: set[int] = field(default_factory=set)

    def problems(self, storage: Storage) -> Iterator[FileError]:
        """Everything that is wrong with it; `storage` is at the state root."""
        try:
            yield from self._problems(storage)
        except FILE_ERRORS as error:
            yield error

    def _problems(self, storage: Storage) -> Iterator[FileError]:
        where = storage.where(self.path)
        inlined = any(state.ref.inlined for state in self.states)
        inlined |= any(state.inlined for state in self.operator_states)
        if self.handles or inlined:
            data = storage.read_all(self.path)
            yield from _handle_problems(data, where, self)
            return
        if self.operator_states:
            data = storage.read_all(self.path)
            yield from _operator_state_problems(data, self.operator_states, where)
        for slices in _slices_of_files(self.states):
            ref = slices[0].ref
            read_range, size = _open(storage, ref)
            if size != ref.length:
                what = f"it has {size} bytes, its handle says {ref.length}"
                yield CorruptStateError(where, what)
            yield from _state_problems(read_range, slices, where)


def _slices_of_files(states: Iterable[ExpectedState]) -> Iterable[Sequence[ExpectedState]]:
    """The states of each file together: it is read once, however many slices there are of it."""
    by_place: dict[object, list[ExpectedState]] = {}
    for state in states:
        by_place.setdefault(state.place, []).append(state)
    return by_place.values()


def _open(storage: Storage, ref: StateFileRef) -> tuple[ReadRange, int]:
    """How to read a file, and its size."""

    def read_range(offset: int, length: int) -> bytes:
        return storage.read_range(ref.path, offset, length)

    if ref.length > READ_AT_ONCE:
        return read_range, storage.size(ref.path)
    data = storage.read_all(ref.path)
    return _slices(data), len(data)


def _slices(data: bytes) -> ReadRange:
    return lambda offset, length: data[offset : offset + length]


def _handle_problems(data: bytes, where: str, expected: ReferredFile) -> Iterator[FileError]:
    """A handle may be a checkpoint's own, or the container of older state, or both."""
    states, operator_states = dict(expected.states), dict(expected.operator_states)
    try:
        handle = read_handle(data, where)
        states.update(
            (state, None) for state in ExpectedState.all_of(handle) if state.ref.path == handle.path
        )
        own = handle.operator_state
        if own is not None and own.path == handle.path:
            operator_states[own] = None
        check_unread_bytes(data, handle, where)
        if any(handle != other for other in expected.handles):
            raise CorruptStateError(where, "it is not the handle that the checkpoint was made of")
    except FILE_ERRORS as error:
        yield error
    for slices in _slices_of_files(states):
        yield from _state_problems(_slices(data), slices, where)
    yield from _operator_state_problems(data, operator_states, where)


def _operator_state_problems(
    data: bytes, states: Iterable[OperatorStateHandle], where: str
) -> Iterator[FileError]:
    for state in states:
        blob = data[state.offset : state.offset + state.length] if state.inlined else data
        try:
            check_blob(blob, state, where)
        except FILE_ERRORS as error:
            yield error


def _state_problems(
    read_range: ReadRange, states: Sequence[ExpectedState], where: str
) -> Iterator[FileError]:
    """`states` are slices of the same file."""
    state = states[0]
    try:
        file = StateFile(read_range, state.ref, where)
    except FILE_ERRORS as error:
        yield error
        return
    yield from _family_problems(file, state)
    yield from _slice_problems(file, states)
    try:
        file.check_unread_bytes()
    except FILE_ERRORS as error:
        yield error
    is_base = any(other.ref.base for other in states)
    for batch in file.batches:
        try:
            rows = file.read_batch(batch)
        except FILE_ERRORS as error:
            yield error
        else:
            yield from _operation_problems(rows, batch, state.multi_valued, is_base, where)


def _family_problems(file: StateFile, state: ExpectedState) -> Iterator[FileError]:
    found = file.metadata.family
    is_, wanted = (
        (found.family, found.multi_valued, found.max_parallelism),
        (state.family, state.multi_valued, state.max_parallelism),
    )
    if is_ != wanted:
        what = f"its family, multiValued and maxParallelism are {is_}, its handle says {wanted}"
        yield CorruptStateError(file.where, what)


def _slice_problems(file: StateFile, states: Iterable[ExpectedState]) -> Iterator[FileError]:
    for state in states:
        try:
            file.check_slice(state.ref)
        except FILE_ERRORS as error:
            yield error
        else:
            if state.is_own and state.ref.key_groups != file.span:
                what = f"it spans {file.span}, its handle says {state.ref.key_groups}"
                yield CorruptStateError(file.where, what)


def _operation_problems(
    rows: pa.RecordBatch, batch: BatchIndex, multi_valued: bool, is_base: bool, where: str
) -> Iterator[FileError]:
    ops = rows["op"].to_numpy()
    what = f"the record batch of the key groups {batch.key_groups}"
    if is_base and (ops == DELETE).any():
        yield CorruptStateError(where, f"{what} holds deletes, though the file is a base")
    if not multi_valued and (ops == APPEND).any():
        yield CorruptStateError(where, f"{what} holds appends, though keys have one value")
