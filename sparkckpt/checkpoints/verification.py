"""Reads every byte of checkpoints and says what is wrong with them.

Each file is read once, however many checkpoints share it, and no problem ends the search. It only
reads: a checkpoint that a running query removes meanwhile is not missed.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa

from sparkckpt.checkpoints.consistency import inconsistencies
from sparkckpt.checkpoints.contents import ExpectedState, ReferredFile
from sparkckpt.checkpoints.directory import CheckpointDirectory, Location
from sparkckpt.checkpoints.problems import FILE_ERRORS, Problem, table_of
from sparkckpt.format.manifest import manifest_of
from sparkckpt.format.metadata import CheckpointMetadata, metadata_path

THREADS = 8

Progress = Callable[[int, int], None]
"""Told, again and again, how many files are verified, and how many there are."""


def verify(
    path: Location, checkpoint_id: int | None = None, progress: Progress | None = None
) -> pa.Table:
    """The problems of a checkpoint, by default of all, in a query's checkpointLocation.

    No rows: all is sound. The columns are those of `problems.SCHEMA`. Where there is no checkpoint
    nothing can be said to be sound: CheckpointNotFoundError.
    """
    directory = CheckpointDirectory.open(path, claimed=True)
    newest = directory.choose(checkpoint_id)
    ids = [newest] if checkpoint_id is not None else directory.complete_ids()
    problems: list[Problem] = []
    files = _Files(directory)
    before: CheckpointMetadata | None = None
    for each in ids:
        try:
            metadata = directory.metadata(each)
        except FILE_ERRORS as error:
            problems.append(Problem.of(error, [each]))
            continue
        where = directory.storage.where(metadata_path(each))
        problems += [Problem.of(e, [each]) for e in inconsistencies(metadata, before, where)]
        files.add(metadata)
        before = metadata
    problems += _verify_files(directory, files.by_path.values(), progress or _say_nothing)
    return table_of(_of_existing(problems, directory))


class _Files:
    """The files of all checkpoints."""

    def __init__(self, directory: CheckpointDirectory) -> None:
        self._root = directory.root
        self.by_path: dict[str, ReferredFile] = {}

    def add(self, metadata: CheckpointMetadata) -> None:
        has_handles = not _is_of_manifest(metadata)
        for handle in metadata.handles:
            if has_handles:
                self._at(handle.path, metadata.checkpoint_id).handles.append(handle)
            for state in ExpectedState.all_of(handle):
                file = self._at(self._root.name_of(state.ref.path), metadata.checkpoint_id)
                file.states[state] = None
            if handle.operator_state is not None:
                path = self._root.name_of(handle.operator_state.path)
                self._at(path, metadata.checkpoint_id).operator_states[handle.operator_state] = None

    def _at(self, path: str, checkpoint_id: int) -> ReferredFile:
        file = self.by_path.setdefault(path, ReferredFile(path))
        file.checkpoints.add(checkpoint_id)
        return file


def _is_of_manifest(metadata: CheckpointMetadata) -> bool:
    """Its handles are then not files. What is wrong with its commit is found elsewhere."""
    try:
        return manifest_of(metadata) is not None
    except FILE_ERRORS:
        return False


def _verify_files(
    directory: CheckpointDirectory, files: Iterable[ReferredFile], progress: Progress
) -> list[Problem]:
    state, files = directory.state, list(files)
    problems: list[Problem] = []
    progress(0, len(files))
    with ThreadPoolExecutor(THREADS, "sparkckpt-verify") as readers:
        found = readers.map(lambda file: list(file.problems(state)), files)
        for number, (file, errors) in enumerate(zip(files, found, strict=True), 1):
            problems += [Problem.of(error, file.checkpoints) for error in errors]
            progress(number, len(files))
    return problems


def _of_existing(problems: list[Problem], directory: CheckpointDirectory) -> list[Problem]:
    """A checkpoint's metadata is removed before its state, so that what is gone may be damaged."""
    existing = set(directory.complete_ids()) if problems else set()
    root = directory.storage.where("").rstrip("/") + "/"
    known = [
        replace(
            problem,
            path=problem.path.removeprefix(root),
            checkpoints=tuple(c for c in problem.checkpoints if c in existing),
        )
        for problem in problems
    ]
    return [problem for problem in known if problem.checkpoints]


def _say_nothing(done: int, total: int) -> None:
    """Nobody watches."""
