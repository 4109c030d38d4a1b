"""Who asks for a query to be stopped is followed as long as he lives, and no longer."""

import pytest

from sparkckpt.coordinator import stopping
from sparkckpt.coordinator.stopping import (
    ANSWER_PATH,
    HOLD,
    PATIENCE_SECONDS,
    POLL_SECONDS,
    RELEASE,
    REQUEST_PATH,
    STOP,
    StopRequest,
    StopRequests,
    Wish,
    read_answer,
)
from sparkckpt.errors import UnsupportedFormatVersionError
from sparkckpt.storage import Storage
from tests.unit.coordinator_samples import memory_storage


class Asked:
    """A coordinator that is asked, and what it does about it."""

    def __init__(self) -> None:
        self.storage: Storage = memory_storage()
        self.now = 100.0
        self.told: list[str] = []
        self.completed = 0
        self.requests = StopRequests(
            self.storage, "run", self.told.append, self._complete, lambda: self.now
        )

    def _complete(self) -> None:
        self.completed += 1

    def wish(
        self, wish: Wish = "hold", renewal: int = 1, run: str = "run", name: str = "a"
    ) -> None:
        request = StopRequest(name, run, wish, renewal)
        self.storage.write_atomic(REQUEST_PATH, request.to_bytes(), overwrite=True)

    def poll(self, seconds: float = 1.0) -> list[str]:
        """What the driver is told after so many seconds."""
        self.told.clear()
        self.now += seconds
        self.requests.poll()
        return list(self.told)


def test_held_and_stopped() -> None:
    asked = Asked()
    assert asked.poll() == []
    asked.wish()
    assert asked.poll() == [HOLD]
    assert asked.completed == 0 and read_answer(asked.storage) is None
    assert asked.poll() == [HOLD], "until it is held, and while it is"
    asked.requests.held()
    asked.requests.held()
    assert asked.completed == 1
    answer = read_answer(asked.storage)
    assert answer is not None and (answer.id, answer.state) == ("a", "held")
    asked.wish("stop", 2)
    assert asked.poll() == [STOP]


def test_withdrawn() -> None:
    asked = Asked()
    asked.wish()
    asked.poll()
    asked.storage.delete([REQUEST_PATH])
    assert asked.poll() == [RELEASE]
    assert asked.poll() == []


def test_a_requester_that_dies_holds_nobody_up() -> None:
    asked = Asked()
    asked.wish()
    assert asked.poll() == [HOLD]
    for renewal in range(2, 20):
        asked.wish(renewal=renewal)
        assert asked.poll(PATIENCE_SECONDS / 2) == [HOLD]
    assert asked.poll(PATIENCE_SECONDS / 2) == [HOLD]
    assert asked.poll(PATIENCE_SECONDS / 2) == [RELEASE]
    assert asked.poll() == []
    asked.wish(renewal=20)
    assert asked.poll() == [], "what was given up does not begin again"
    asked.wish(name="another")
    assert asked.poll() == [HOLD]


def test_a_request_to_another_run_is_none() -> None:
    asked = Asked()
    asked.wish(run="the run before")
    assert asked.poll() == []


def test_a_query_that_was_not_held_until_the_end() -> None:
    asked = Asked()
    asked.wish("stop")
    assert asked.poll() == [STOP]
    asked.requests.lost()
    answer = read_answer(asked.storage)
    assert answer is not None and answer.state == "lost"
    assert asked.poll() == [RELEASE]


def test_it_is_looked_for_now_and_then_and_followed_closely() -> None:
    asked = Asked()
    assert asked.requests.is_due
    asked.poll()
    assert not asked.requests.is_due
    asked.now += POLL_SECONDS
    assert asked.requests.is_due
    asked.wish()
    asked.poll()
    assert asked.requests.is_due


def test_what_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asked = Asked()
    asked.wish()
    asked.poll()
    asked.storage.write_atomic(REQUEST_PATH, b"{", overwrite=True)
    assert asked.poll() == []
    assert "cannot be read" in caplog.text


def test_answers_of_newer_releases_are_refused() -> None:
    asked = Asked()
    asked.storage.write_atomic(ANSWER_PATH, b'{"formatVersion": 9}')
    with pytest.raises(UnsupportedFormatVersionError):
        stopping.read_answer(asked.storage)
