"""What a JVM spends on garbage: time in its collectors, and bytes that its threads have allocated.

Read from the platform's management beans through py4j. Their classes lie in modules that Java does
not open, so methods are looked up on the public interfaces. Allocation is counted by thread and
forgotten with it: threads are sampled while the meter runs, and one that has ended counts with what
it had at the last sample. Memory outside of the heap, which is where RocksDB keeps its own, is in
none of the figures.
"""

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

SAMPLE_SECONDS = 1.0

_COLLECTOR = "java.lang.management.GarbageCollectorMXBean"
_THREADS = "com.sun.management.ThreadMXBean"


@dataclass(frozen=True)
class Garbage:
    """What was spent while a meter ran."""

    collectors: list[str]
    gc_ms: int
    collections: int
    allocated_bytes: int


class GarbageMeter:
    """A context: what it reports afterwards is what the JVM has spent in between."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        factory = gateway.jvm.java.lang.management.ManagementFactory
        self._collectors = list(factory.getGarbageCollectorMXBeans())
        self._threads = factory.getThreadMXBean()
        self._allocated = AllocatedBytes()
        self._closed = threading.Event()
        self._sampler = threading.Thread(target=self._sample_until_closed, daemon=True)

    def __enter__(self) -> "GarbageMeter":
        self._begin = self._collected()
        self._allocated.start(self._allocated_by_thread())
        self._sampler.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed.set()
        self._sampler.join()
        if error is None:
            self._allocated.sample(self._allocated_by_thread())
            self._end = self._collected()

    @property
    def garbage(self) -> Garbage:
        (begin_ms, begin_count), (end_ms, end_count) = self._begin, self._end
        return Garbage(
            [str(self._call(bean, _COLLECTOR, "getName")) for bean in self._collectors],
            end_ms - begin_ms,
            end_count - begin_count,
            self._allocated.total,
        )

    def _sample_until_closed(self) -> None:
        while not self._closed.wait(SAMPLE_SECONDS):
            self._allocated.sample(self._allocated_by_thread())

    def _collected(self) -> tuple[int, int]:
        times = (self._call(bean, _COLLECTOR, "getCollectionTime") for bean in self._collectors)
        counts = (self._call(bean, _COLLECTOR, "getCollectionCount") for bean in self._collectors)
        return sum(times), sum(counts)

    def _allocated_by_thread(self) -> dict[int, int]:
        """One string for all numbers: each element of an array would be a call."""
        ids = self._call(self._threads, _THREADS, "getAllThreadIds")
        allocated = self._call(self._threads, _THREADS, "getThreadAllocatedBytes", ids)
        to_text = self._gateway.jvm.java.util.Arrays.toString
        pairs = zip(_numbers(to_text(ids)), _numbers(to_text(allocated)), strict=True)
        return dict(pairs)

    def _call(self, bean: Any, interface: str, method: str, longs: Any = None) -> Any:
        jvm = self._gateway.jvm
        count = 0 if longs is None else 1
        types = self._gateway.new_array(jvm.java.lang.Class, count)
        arguments = self._gateway.new_array(jvm.java.lang.Object, count)
        if longs is not None:
            types[0] = jvm.java.lang.Class.forName("[J")
            arguments[0] = longs
        found = jvm.java.lang.Class.forName(interface).getMethod(method, types)
        return found.invoke(bean, arguments)


class AllocatedBytes:
    """Adds up what threads allocate from samples of their counters; threads come and go."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}

    def start(self, counters: dict[int, int]) -> None:
        self._first, self._last = dict(counters), dict(counters)

    def sample(self, counters: dict[int, int]) -> None:
        for thread, count in counters.items():
            # A thread that ends between the two calls has no counter any more: -1.
            self._last[thread] = max(count, self._last.get(thread, 0))

    @property
    def total(self) -> int:
        return sum(last - max(self._first.get(thread, 0), 0) for thread, last in self._last.items())


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.strip("[]").split(",") if number.strip()]
