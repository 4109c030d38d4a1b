import json
import random
from collections import Counter
from pathlib import Path

import pytest

from sparkckpt import demo


def test_a_wrong_total_fails_the_demonstration() -> None:
    demo._compare({"a": 1}, {"a": 1, "b": 2}, "the output")
    with pytest.raises(
        demo.DemoFailedError, match="in the output are wrong: b has 3 and should have 2"
    ):
        demo._compare({"a": 1, "b": 3}, {"a": 1, "b": 2}, "the output")
    with pytest.raises(demo.DemoFailedError, match="should have None"):
        demo._compare({"c": 1}, {}, "the output")


def test_what_the_files_add_up_to_is_what_is_expected(tmp_path: Path) -> None:
    expected = demo._write_files(tmp_path, range(2), random.Random(1))
    rows = [json.loads(line) for path in tmp_path.glob("*.json") for line in path.open()]
    assert len(rows) == 2 * demo.ROWS_PER_FILE
    sums: Counter[str] = Counter()
    for row in rows:
        sums[row["user"]] += row["amount"]
    assert sums == expected
