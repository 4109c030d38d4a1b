"""Copies files into the target of a restore, many at a time.

State files never change, so that one which is there already with its full length need not be copied
again. The files of sources may change while a query runs on them, so they are listed again until
all that were listed could be copied.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from sparkckpt.errors import FileMissingError
from sparkckpt.format.handle import StateFileRef
from sparkckpt.format.metadata import OperatorState
from sparkckpt.format.operatorstate import OperatorStateHandle
from sparkckpt.paths import StateRoot, is_absolute
from sparkckpt.restoration.state import Progress
from sparkckpt.storage import Storage

StateData = StateFileRef | OperatorStateHandle
"""What a handle refers to: where in which file it lies."""

THREADS = 16
SOURCES = "sources"
_LISTINGS = 5


@dataclass(frozen=True)
class StateCopy:
    """A file that holds state: where it lies, and where it is to lie below the new state root."""

    source: str
    """Relative to the old state root, or a URL."""
    target: str
    length: int | None
    """None if only a part of the file is referred to: it is a handle with state in it."""


def copied_states(
    operators: Sequence[OperatorState], root: StateRoot
) -> tuple[tuple[OperatorState, ...], dict[str, StateCopy]]:
    """The operators with their files below the state root they lie in, and what is to be copied.

    Files keep their names. What other partitions or directories have written lies with the
    operator, store and partition that refers to it.
    """
    copies: dict[str, StateCopy] = {}

    def copied(operator_id: int, partition: int, store: str) -> Callable[[StateData], str]:
        directory = f"{operator_id}/{partition}/" + ("" if store == "default" else f"{store}/")

        def path(file: StateData) -> str:
            name = root.name_of(file.path)
            if name not in copies:
                inside = not is_absolute(name)
                rest = name.partition("/")[2] if inside else name.rpartition("/")[2]
                target = f"{operator_id}/{rest}" if inside else directory + rest
                copies[name] = StateCopy(name, target, None if file.inlined else file.length)
            return copies[name].target

        return path

    moved = tuple(
        replace_paths(operator, lambda o, p, s: copied(o, p, s)) for operator in operators
    )
    return moved, copies


def referred_states(
    operators: Sequence[OperatorState], root: StateRoot
) -> tuple[OperatorState, ...]:
    """The operators with the URLs of their files, for use in another directory."""

    def url(file: StateData) -> str:
        name = root.name_of(file.path)
        return name if is_absolute(name) else f"{root.url}/{name}"

    return tuple(replace_paths(operator, lambda o, p, s: url) for operator in operators)


def replace_paths(
    operator: OperatorState, path_of: Callable[[int, int, str], Callable[[StateData], str]]
) -> OperatorState:
    """The operator with other paths; `path_of` gives, for an operator, partition and store, the
    function that gives that of a file."""
    subtasks = []
    for subtask in operator.subtasks:
        handles = []
        for handle in subtask.handles:
            path = path_of(operator.operator_id, handle.partition, handle.store_name)
            families = tuple(
                replace(family, files=tuple(replace(f, path=path(f)) for f in family.files))
                for family in handle.families
            )
            state = handle.operator_state
            if state is not None:
                state = replace(state, path=path(state))
            handles.append(replace(handle, families=families, operator_state=state))
        subtasks.append(replace(subtask, handles=tuple(handles)))
    return replace(operator, subtasks=tuple(subtasks))


def copy_states(
    source: Storage,
    target: Storage,
    copies: Iterable[StateCopy],
    present: Mapping[str, int],
    progress: Progress,
) -> int:
    """Copies between two state roots; `present` are files that the new one has, with lengths.

    The number of files that had to be copied.
    """
    copies = list(copies)
    missing = [c for c in copies if c.length is None or present.get(c.target) != c.length]
    done = len(copies) - len(missing)
    progress(done, len(copies))

    def copy(one: StateCopy) -> None:
        source.copy(one.source, target, one.target)

    with ThreadPoolExecutor(THREADS, "sparkckpt-copy") as threads:
        for number, _ in enumerate(threads.map(copy, missing), done + 1):
            progress(number, len(copies))
    return len(missing)


def copy_sources(source: Storage, target: Storage) -> None:
    """Copies what sources have noted, between two checkpoint directories."""
    for attempt in range(1, _LISTINGS + 1):
        try:
            copy_files(
                source, target, [path for path in source.find(SOURCES) if not _is_hidden(path)]
            )
            return
        except FileMissingError:
            if attempt == _LISTINGS:
                raise


def copy_files(source: Storage, target: Storage, paths: Iterable[str]) -> None:
    """Copies files between two directories, to the same places."""
    with ThreadPoolExecutor(THREADS, "sparkckpt-copy") as threads:
        list(threads.map(lambda path: source.copy(path, target, path), paths))


def _is_hidden(path: str) -> bool:
    """Temporary files and checksums, as Spark leaves them out itself."""
    return any(part.startswith(".") for part in path.split("/"))
