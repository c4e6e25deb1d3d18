"""Run the guide's cells one after another in a separate process: its output is as the guide shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "spark" / "guide.md"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_what_the_guide_shows_is_what_happens(tmp_path: Path) -> None:
    cells = re.findall(r"^```(python|text)\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    program = tmp_path / "guide.py"
    program.write_text("\n".join(text for kind, text in cells if kind == "python"))
    ended = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    shown = [text for kind, text in cells if kind == "text"]
    assert len(shown) >= 3
    for text in shown:
        assert text in ended.stdout
