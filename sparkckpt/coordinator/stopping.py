"""Stopping a query at a boundary of batches, asked for by whoever reaches the checkpoint directory.

A request is a file, which the requester renews as long as it lives. The coordinator has the driver
hold the query before its next batch, completes the checkpoint of the last one, and says so in an
answer; the requester then has all the time it needs to take its savepoint. What it asks for next
decides: the query is stopped, or goes on. A requester that dies is noticed, and the query goes on:
no query waits for somebody who is gone.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sparkckpt.coordinator.restored import FORMAT_VERSION, read_fields
from sparkckpt.errors import SparkckptError
from sparkckpt.fields import Fields
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)

REQUEST_PATH = "_sparkckpt/stop-request.json"
ANSWER_PATH = "_sparkckpt/stop-answer.json"
POLL_SECONDS = 2.0
RENEWAL_SECONDS = 5.0
"""A living requester renews its request so often."""
PATIENCE_SECONDS = 45.0
"""One that has not done so for so long is taken for dead."""

Wish = Literal["hold", "stop"]
State = Literal["held", "lost"]

HOLD, RELEASE, STOP = "hold_query", "release_query", "finish_query"
"""What the driver is told."""


@dataclass(frozen=True)
class StopRequest:
    """What `stop-request.json` says. That the file is gone means: go on."""

    id: str
    run_id: str
    """The run of the query that is meant; any other ignores it."""
    wish: Wish
    renewal: int

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "formatVersion": FORMAT_VERSION,
                "id": self.id,
                "runId": self.run_id,
                "wish": self.wish,
                "renewal": self.renewal,
            }
        ).encode()


@dataclass(frozen=True)
class StopAnswer:
    """What `stop-answer.json` says: the query is held, or was not held until the end."""

    id: str
    state: State

    def to_bytes(self) -> bytes:
        return json.dumps(
            {"formatVersion": FORMAT_VERSION, "id": self.id, "state": self.state}
        ).encode()


def read_request(storage: Storage) -> StopRequest | None:
    values = read_fields(storage, REQUEST_PATH)
    if values is None:
        return None
    fields = Fields(values, "its content", storage.where(REQUEST_PATH))
    wish: Wish = "stop" if fields.text("wish", "hold|stop") == "stop" else "hold"
    return StopRequest(fields.text("id"), fields.text("runId"), wish, fields.integer("renewal"))


def read_answer(storage: Storage) -> StopAnswer | None:
    values = read_fields(storage, ANSWER_PATH)
    if values is None:
        return None
    fields = Fields(values, "its content", storage.where(ANSWER_PATH))
    state: State = "held" if fields.text("state", "held|lost") == "held" else "lost"
    return StopAnswer(fields.text("id"), state)


class StopRequests:
    """Looks for requests to stop one run, and does what they say.

    `poll` is called again and again by one thread, and `held` by the one that hears the driver.
    """

    def __init__(
        self,
        storage: Storage,
        run_id: str,
        tell: Callable[[str], None],
        complete_last: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._storage = storage
        self._run_id = run_id
        self._tell = tell
        self._complete_last = complete_last
        self._clock = clock
        self._due = 0.0
        self._request: StopRequest | None = None
        self._renewed = 0.0
        self._answered = ""
        self._dead: str = ""

    @property
    def is_due(self) -> bool:
        """Whether it is time to look; more often while a request is being followed."""
        return self._request is not None or self._clock() >= self._due

    def poll(self) -> None:
        self._due = self._clock() + POLL_SECONDS
        try:
            request = read_request(self._storage)
        except SparkckptError as error:
            # While the query is held it stays so until the driver's own patience ends.
            logger.warning("Whether the query is to be stopped cannot be read. %s", error)
            return
        if request is None or request.run_id != self._run_id or request.id == self._dead:
            self._follow_no_more()
        elif self._is_alive(request):
            self._request = request
            self._tell(STOP if request.wish == "stop" else HOLD)
        else:
            logger.warning("Who wanted the query stopped is gone: it goes on.")
            self._dead = request.id
            self._follow_no_more()

    def held(self) -> None:
        """The driver says that the query waits before its next batch."""
        request = self._request
        if request is not None and self._answered != request.id:
            self._answered = request.id
            self._complete_last()
            self._answer(StopAnswer(request.id, "held"))

    def lost(self) -> None:
        """The driver says that a query that was to be stopped has not been held until then."""
        request = self._request
        if request is not None:
            self._dead = request.id
            self._answer(StopAnswer(request.id, "lost"))

    def _answer(self, answer: StopAnswer) -> None:
        try:
            self._storage.write_atomic(ANSWER_PATH, answer.to_bytes(), overwrite=True)
        except SparkckptError as error:
            logger.warning("The request to stop the query cannot be answered. %s", error)
            self._answered = ""

    def _is_alive(self, request: StopRequest) -> bool:
        """Its renewals are counted, so that clocks need not agree."""
        known = self._request
        if known is None or (known.id, known.renewal, known.wish) != (
            request.id,
            request.renewal,
            request.wish,
        ):
            self._renewed = self._clock()
        return self._clock() - self._renewed < PATIENCE_SECONDS

    def _follow_no_more(self) -> None:
        if self._request is not None:
            self._request = None
            self._tell(RELEASE)
