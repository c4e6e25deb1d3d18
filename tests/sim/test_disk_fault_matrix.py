"""Each error in each kind of file of one disk: its partitions go offline, and everything else goes on.

A disk that fails (EIO, EACCES, EROFS) is taken offline alone. A lack of file handles or of room (EMFILE,
ENOSPC) may pass: while it lasts requests may fail, and afterwards all is as before, unless the disk had to go
offline because a change could not be left half done.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tests.sim.disk_fault_lab import FILES, OPERATIONS, DiskFaultLab, FaultCase

pytestmark = pytest.mark.slow

EIO, EACCES, EROFS, EMFILE, ENOSPC = (
    errno.EIO,
    errno.EACCES,
    errno.EROFS,
    errno.EMFILE,
    errno.ENOSPC,
)
ERRORS = {
    "open": (EIO, EACCES, EMFILE),
    "read": (EIO,),
    "write": (EIO, EROFS, ENOSPC),
    "sync": (EIO, ENOSPC),
    "rename": (EIO, EROFS, ENOSPC),
}
# One for each way in which a node uses a file; all others are exhaustive.
QUICK = {
    FaultCase("log", "open", EMFILE),
    FaultCase("log", "read", EIO),
    FaultCase("log", "write", EROFS),
    FaultCase("log", "write", ENOSPC),
    FaultCase("log", "sync", EIO),
    FaultCase("index", "open", EACCES),
    FaultCase("timeindex", "write", EIO),
    FaultCase("txnindex", "read", EIO),
    FaultCase("snapshot", "sync", EIO),
    FaultCase("leader epochs", "open", EMFILE),
    FaultCase("leader epochs", "open", EIO),
    FaultCase("partition.metadata", "open", EACCES),
    FaultCase("recovery points", "open", EMFILE),
    FaultCase("recovery points", "rename", EIO),
    FaultCase("high watermarks", "write", EROFS),
    FaultCase("log starts", "write", ENOSPC),
    FaultCase("cleaner", "open", EMFILE),
    FaultCase("cleaner", "open", EIO),
    FaultCase("cleaned segment", "write", ENOSPC),
    FaultCase("meta.properties", "read", EIO),
    FaultCase("clean shutdown", "open", EIO),
    FaultCase("clean shutdown", "rename", EROFS),
    FaultCase("directories", "open", EIO),
    FaultCase("directories", "sync", EIO),
}


# A node that runs writes no `meta.properties`, and directories have no content of their own.
OPERATIONS_OF = {"meta.properties": ("open", "read"), "directories": ("open", "sync", "rename")}


def cases() -> Iterator[object]:
    for file in FILES:
        for operation in OPERATIONS_OF.get(file, tuple(OPERATIONS)):
            for error in ERRORS[operation]:
                case = FaultCase(file, operation, error)
                marks = () if case in QUICK else (pytest.mark.exhaustive,)
                yield pytest.param(case, id=str(case), marks=marks)


@pytest.mark.parametrize("case", list(cases()))
def test_an_error_of_one_file_costs_its_own_disk_at_most(case: FaultCase) -> None:
    lab = DiskFaultLab(case)
    lab.run()
    assert lab.struck
