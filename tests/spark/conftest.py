"""What the tests of whole queries share: the backend under test, and no trace of one in the next.

Spark's own RocksDB runs in the same context, as the oracle: the planner rule leaves alone a session
whose provider class is Spark's.
"""

from collections.abc import Iterator

import pytest

from tests.spark.streams import SPARKCKPT, Backend, unload_state


@pytest.fixture(scope="session")
def backend() -> Backend:
    return SPARKCKPT


@pytest.fixture(autouse=True)
def no_query_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """A failed test leaves neither a query nor a loaded store to the next."""
    yield
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        for query in session.streams.active:
            query.stop()
        unload_state(session)
