"""A worker freezes the objects that its first task has left, and no garbage."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, weakref
from ottla.spark.worker.garbage_collection import begin_task

class Node: pass

def cycle():
    a, b = Node(), Node()
    a.other, b.other = b, a
    return weakref.ref(a)

for task in range(4):
    begin_task()
    print(gc.get_freeze_count() > 0, end=" ")
    of_task = cycle()
    gc.collect()
    print(of_task() is None)
"""


@pytest.mark.slow
def test_what_the_first_task_leaves_is_frozen_and_garbage_of_all_tasks_is_collected() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["False True", "True True", "True True", "True True"]
