"""docs/cluster.md: what it shows for tests runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_example_of_a_cluster_in_a_test_runs_as_it_stands() -> None:
    text = PAGE.read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```", text[text.index("\n## In tests") :], re.S | re.M)
    exec(compile(example, str(PAGE), "exec"), {})
