"""Plant one fault at a time in a copy of the product, and see which test finds it: `make mutations`.

Each mutation replaces a few lines by others that break a promise. The faults were chosen by the promises, not
by the tests that there are. The tests that the changed file touches run in a copy of the checkout, the
nearest first, until one fails; then its module runs in a copy without the fault, so that the failure is the
fault's. First what `make test` runs, then, for a fault that it does not find, what only `make test-all` runs.

The checkout is never changed. What tests read beside `src` and `tests`, as `docs`, is linked into the copy;
`build` too, where jars and compiled programs are kept.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.import_graph import Graph, load_graph
from tests.support.tiers import WITNESSES

ROOT: Final = Path(__file__).resolve().parents[2]
PLUGIN: Final = "tests.support.mutations"
FAILURES: Final = "OTTLA_MUTATION_FAILURES"  # the file to which the plugin, this module, writes what failed
RUNNING: Final = "-running"  # of a file beside it, with the test that runs
COPIED: Final = ("src", "tests", "pyproject.toml")
LINKED: Final = (
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "Makefile", "README.md", "setup.py"),
    *("bench", "build", "dashboards", "docs", "examples", "packaging"),
)
TEST_SECONDS: Final = 180  # a fault may have a test wait until its end
STARTS_SOMETHING: Final = "(slow or kafka or spark)"
# What a file touches in the end, when nothing near has failed: the simulator first.
ROOMS: Final = ("sim", "node", "acceptance", "guarantees", "cluster", "client", "kafka", "spark")


@dataclass(frozen=True, slots=True)
class Mutation:
    name: str
    file: str
    before: str
    after: str
    promise: str
    """What does not hold any longer."""


MUTATIONS: Final = (
    # The log
    Mutation(
        "recovery-leaves-torn-tail",
        "src/ottla/log/log_loader.py",
        "            segment.set_size(end_position)\n",
        "            pass\n",
        "After a crash the bytes behind the last good batch are gone: the next append follows it.",
    ),
    Mutation(
        "index-lookup-one-too-far",
        "src/ottla/log/segment/offset_index.py",
        "        return self.entry(count - 1) if count else OffsetPosition(self.base_offset, 0)\n",
        "        return self.entry(min(count, self.entries - 1))\n",
        "The offset index leads to a place at or before the offset that is asked for.",
    ),
    Mutation(
        "time-index-not-truncated",
        "src/ottla/log/segment/segment.py",
        "        self.times.truncate_to(offset)\n",
        "",
        "After a truncation the time index knows no record that is gone.",
    ),
    Mutation(
        "retention-beyond-high-watermark",
        "src/ottla/log/retention.py",
        "                or segment_end > self._high_watermark\n",
        "",
        "Retention deletes no segment that reaches above the high watermark.",
    ),
    Mutation(
        "tombstones-kept",
        "src/ottla/records/compaction.py",
        "keep_tombstones=horizon is None or now_ms < horizon",
        "keep_tombstones=True",
        "Compaction removes a tombstone once `delete.retention.ms` have passed since it was first cleaned.",
    ),
    Mutation(
        "crc-of-compressed-batch-unchecked",
        "src/ottla/records/validation.py",
        "    verify_crc(batch, 0, header)\n",
        "",
        "A produced batch whose checksum is wrong is refused with CORRUPT_MESSAGE.",
    ),
    Mutation(
        "producer-epoch-not-fenced",
        "src/ottla/log/producers/state_entry.py",
        "        if epoch > known or (epoch == known and not must_exceed):\n",
        "        if epoch > known or not must_exceed:\n",
        "A producer whose epoch another one has replaced can append nothing.",
    ),
    Mutation(
        "leader-epoch-ends-one-too-far",
        "src/ottla/log/leader_epoch_cache.py",
        "        return found, entries[higher].start_offset\n",
        "        return found, entries[higher].start_offset + 1\n",
        "A follower truncates to where its last epoch ended in the leader's log.",
    ),
    # Replication
    Mutation(
        "high-watermark-one-too-far",
        "src/ottla/replication/partition.py",
        "                    target = follower.log_end_offset\n",
        "                    target = follower.log_end_offset + 1\n",
        "The high watermark is not above what each replica of the ISR has.",
    ),
    Mutation(
        "isr-shrink-forgets-a-replica",
        "src/ottla/replication/partition.py",
        "            self._submit_alter_partition(self.isr - lagging)\n",
        "            self._submit_alter_partition(self.isr - {min(lagging)})\n",
        "All followers that lag behind leave the ISR at once.",
    ),
    Mutation(
        "acks-all-before-high-watermark",
        "src/ottla/replication/partition.py",
        "        if self.log.high_watermark < required_offset:\n",
        "        if self.log.high_watermark < required_offset - 1:\n",
        "A produce with acks=all is answered once all of its records are below the high watermark.",
    ),
    Mutation(
        "read-committed-ignores-open-transactions",
        "src/ottla/replication/partition.py",
        "                upper = end if isolation is FetchIsolation.LOG_END else last_stable\n",
        "                upper = end if isolation is FetchIsolation.LOG_END else high_watermark\n",
        "A read_committed fetch gets nothing from the last stable offset on.",
    ),
    # Raft and metadata
    Mutation(
        "raft-votes-twice",
        "src/ottla/raft/machine.py",
        "            return _is_same_replica(state.voted, request.candidate)\n",
        "            return up_to_date\n",
        "A voter votes for one candidate in an epoch.",
    ),
    Mutation(
        "raft-follower-confirms-before-flush",
        "src/ottla/raft/machine.py",
        "        if quorum.durable_end >= quorum.log.end.offset:\n",
        "        if True:\n",
        "A follower of the quorum confirms records once they are on its disk.",
    ),
    Mutation(
        "replicas-on-one-rack",
        "src/ottla/metadata/controller/placement.py",
        "                    replicas.append(broker)\n",
        "                    replicas.append(broker)\n                    continue\n",
        "New replicas are spread over the racks.",
    ),
    Mutation(
        "no-snapshot-for-written-bytes",
        "src/ottla/metadata/log/snapshot_generator.py",
        "        if self._bytes >= self._max_record_bytes:\n            return True\n",
        "        if self._bytes >= self._max_record_bytes:\n            return False\n",
        "A snapshot of the metadata is due once enough records were written since the last one.",
    ),
    # Coordinators
    Mutation(
        "commit-of-older-generation",
        "src/ottla/coordinator/group/offset_metadata_manager.py",
        "            if generation != group.generation:\n",
        "            if generation > group.generation:\n",
        "A member of an earlier generation of a classic group commits no offsets.",
    ),
    Mutation(
        "commit-of-lost-partition",
        "src/ottla/coordinator/group/offset_metadata_manager.py",
        "            if since is None or epoch < since:\n",
        "            if False:\n",
        "A member with an older epoch commits no offsets of a partition that it did not have then.",
    ),
    Mutation(
        "marker-taken-for-written",
        "src/ottla/node/coordinators/transaction_marker_channel_manager.py",
        "confirmed.get(tp, ErrorCode.NETWORK_EXCEPTION)",
        "confirmed.get(tp, ErrorCode.NONE)",
        "A transaction is complete once each of its partitions has its marker.",
    ),
    Mutation(
        "timed-out-producer-not-fenced",
        "src/ottla/coordinator/transaction/transaction_coordinator.py",
        "                client_version=0,\n"
        "                epoch=min(transaction.producer_epoch + 1, self._config.max_epoch),\n",
        "                client_version=0,\n                epoch=transaction.producer_epoch,\n",
        "A producer whose transaction the coordinator has aborted is fenced.",
    ),
    Mutation(
        "share-lock-not-released",
        "src/ottla/node/share/share_partition.py",
        "        for lock in sorted(self._by_member.get(member_id, ()), key=_BY_FIRST):\n",
        "        for lock in sorted(self._by_member.get(member_id, ()), key=_BY_FIRST)[:1]:\n",
        "All records that a member of a share group holds are available to others once it leaves.",
    ),
    # Fetch
    Mutation(
        "fetch-session-keeps-forgotten",
        "src/ottla/node/fetch/session.py",
        "        for key in forgotten:\n",
        "        for key in ():\n",
        "A fetch session returns nothing of a partition that the client has removed from it.",
    ),
    # Security
    Mutation(
        "acl-deny-not-preferred",
        "src/ottla/security/authorizer/standard_authorizer.py",
        "        if found.deny is not None:\n",
        "        if found.deny is not None and found.allow is None:\n",
        "An ACL that denies wins over those that allow.",
    ),
    Mutation(
        "scram-few-iterations-accepted",
        "src/ottla/security/sasl/scram_client.py",
        "        if not scram.MIN_ITERATIONS <= first.iterations <= _MOST_ITERATIONS:\n",
        "        if not first.iterations <= _MOST_ITERATIONS:\n",
        "A client proves its password with no fewer iterations than the mechanism's least.",
    ),
    Mutation(
        "tls-client-may-have-no-certificate",
        "src/ottla/security/tls/context.py",
        '    "required": ssl.CERT_REQUIRED,\n',
        '    "required": ssl.CERT_OPTIONAL,\n',
        "With `ssl.client.auth=required` a client without a certificate gets no connection.",
    ),
    Mutation(
        "quota-does-not-hold-back",
        "src/ottla/node/network/connection.py",
        "        if self.closed or (self._throttle_timer is not None and ends <= self._throttled_until):\n",
        "        if True:\n",
        "A broker reads no more requests of a client above its quota until the throttle time is over.",
    ),
    # Remote storage
    Mutation(
        "remote-deletes-before-it-announces",
        "src/ottla/node/remote/remote_log_manager.py",
        "            await self._announce_deletion(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)\n"
        "            await self._storage.delete_log_segment_data(metadata)\n",
        "            await self._storage.delete_log_segment_data(metadata)\n"
        "            await self._announce_deletion(metadata, RemoteLogSegmentState.DELETE_SEGMENT_STARTED)\n",
        "No reader is led to a remote segment whose objects are being deleted.",
    ),
    # Spark
    Mutation(
        "sink-commits-repeated-batch",
        "src/ottla/spark/sink/commit_coordinator.py",
        "            decision = await self._complete_decided_batch(decided[0], batch)\n"
        "            await self._transactions.end_all(transactions, commit=False)\n",
        "            decision = await self._complete_decided_batch(decided[0], batch)\n"
        "            await self._transactions.end_all(transactions, commit=True)\n",
        "What tasks write of a batch that is decided already is aborted.",
    ),
    Mutation(
        "sink-commits-without-valid-decision",
        "src/ottla/spark/sink/commit_coordinator.py",
        "        if not state.is_valid(offset, record):\n",
        "        if False:\n",
        "A run that another one has replaced commits nothing.",
    ),
    Mutation(
        "source-reads-one-too-many",
        "src/ottla/spark/source/range_reader.py",
        "            end_offset=self._range.end,\n",
        "            end_offset=self._range.end + 1,\n",
        "A task reads the records below the end of its range, also where that is inside of a batch.",
    ),
)


def mutated(mutation: Mutation, source: str) -> str:
    """Return the source with the fault. ValueError if the lines are not there exactly once."""
    count = source.count(mutation.before)
    if count != 1:
        raise ValueError(f"{mutation.name}: its lines are {count} times in {mutation.file}, not once")
    return source.replace(mutation.before, mutation.after)


# The plugin: what of pytest runs in the copy.


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _note_failure(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note_failure(report.nodeid)


def pytest_runtest_logstart(nodeid: str) -> None:
    if file := os.environ.get(FAILURES):
        Path(f"{file}{RUNNING}").write_text(nodeid)


def _note_failure(test: str) -> None:
    if file := os.environ.get(FAILURES):
        with Path(file).open("a") as failures:
            failures.write(f"{test}\n")


# Which tests, in which order.


@dataclass(frozen=True, slots=True)
class Stage:
    """One run of pytest, up to its first failure."""

    tier: str
    marks: str
    modules: tuple[str, ...]


def stages(graph: Graph, file: str, tiers: Sequence[str]) -> Iterator[Stage]:
    """The runs for a changed file: of each tier what is quick, and of that the modules near to it first."""
    near, far = _touched(graph, file)
    for tier in tiers:
        chosen = WITNESSES if tier == "test" else f"not {WITNESSES}"
        for marks in (f"{chosen} and not {STARTS_SOMETHING}", f"{chosen} and {STARTS_SOMETHING}"):
            for modules in (near, far):
                if modules:
                    yield Stage(tier, marks, modules)


def _touched(graph: Graph, file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The modules of tests that a file touches: those of its room and those that use it directly, and the
    others. `tests/house` checks how the code reads, not what it does.
    """
    distances = _distances(graph, graph.paths[file])
    words = set(re.split(r"\W|_", file))
    room = f"tests/{file.split('/')[2]}/"

    def likeness(path: str) -> int:
        return len(words & set(re.split(r"\W|_", path)))

    near, far = [], []
    for path, name in graph.test_modules.items():
        if name not in distances or path.startswith("tests/house/"):
            continue
        distance = distances[name]
        if path.startswith(room) or distance == 1:
            near.append(((distance > 1, -likeness(path), distance), path))
        else:
            place = path.split("/")[1]
            far.append(((ROOMS.index(place) if place in ROOMS else -1, -likeness(path), distance), path))
    return tuple(path for _, path in sorted(near)), tuple(path for _, path in sorted(far))


def _distances(graph: Graph, node: str) -> dict[str, int]:
    """How many steps away each is of those that use a node."""
    found = {node: 0}
    waiting = deque([node])
    while waiting:
        used = waiting.popleft()
        for user in graph.users.get(used, ()):
            if user not in found:
                found[user] = found[used] + 1
                waiting.append(user)
    return found


# The copies, and pytest in them.


@dataclass(frozen=True, slots=True)
class Outcome:
    mutation: Mutation
    test: str | None
    """The first test that failed; None if none did."""
    tier: str
    seconds: float
    notes: tuple[str, ...] = ()


class Run:
    """One fault, in a copy of its own of the `sound` copy."""

    def __init__(self, mutation: Mutation, sound: Path, directory: Path, minutes: float) -> None:
        self._mutation = mutation
        self._minutes = minutes
        self._directory = directory
        self._sound = sound
        self._faulty = _copy(sound, directory / "faulty", os.link)
        file = self._faulty / mutation.file
        source = mutated(mutation, file.read_text())
        file.unlink()
        file.write_text(source)
        self.notes: list[str] = []

    def first_failure(self, stage: Stage) -> str | None:
        """The first test that fails because of the fault."""
        modules = list(stage.modules)
        while modules:
            test = self._pytest(self._faulty, stage.marks, modules)
            if test is None:
                return None
            module = test.partition("::")[0]
            before = self._pytest(self._sound, stage.marks, [module])
            if before is None:
                return test
            self.notes.append(f"{before} fails without the fault")
            modules = modules[modules.index(module) :]
            modules.remove(module)
        return None

    def _pytest(self, copy: Path, marks: str, modules: Sequence[str]) -> str | None:
        """Run tests up to the first failure; its name."""
        failures = self._directory / "failures"
        failures.write_text("")
        running = self._directory / f"{failures.name}{RUNNING}"
        running.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), FAILURES: str(failures)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile all of the copy
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-m", marks, "-p", PLUGIN, "--timeout"),
            *(str(TEST_SECONDS), f"--basetemp={self._directory / 'temporary'}", *modules),
        ]
        with (self._directory / "output.txt").open("w") as output:
            # In the process group of the tool: what ends that by the keyboard ends this too.
            process = subprocess.Popen(command, cwd=copy, env=environment, stdout=output, stderr=output)
            try:
                code = process.wait(self._minutes * 60)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)  # what the tests have started ends with them
                process.wait()
                self.notes.append(f"{len(modules)} modules from {modules[0]} on took too long")
                return None
        failed = failures.read_text().splitlines()
        if failed:
            return failed[0]
        if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return None
        if running.exists():
            return running.read_text()  # it took its time, and pytest ended with it
        tail = (self._directory / "output.txt").read_text()[-2000:]
        raise RuntimeError(f"{self._mutation.name}: pytest ended with {code}:\n{tail}")


def _copy(source: Path, target: Path, copy: Callable[[str, str], object]) -> Path:
    """Copy what a fault may be in, link the rest, and make sure that a process there imports the copy."""
    target.mkdir()
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, symlinks=True, copy_function=copy)
        else:
            copy(str(source / name), str(target / name))
    (ROOT / "build").mkdir(exist_ok=True)
    for name in LINKED:
        (target / name).symlink_to(ROOT / name)
    program = "import ottla, ottla.records._kernel as kernel; print(ottla.__file__); print(kernel.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(target / "src")},
        cwd=target,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    for file in found.stdout.split():
        if not Path(file).is_relative_to(target):
            raise RuntimeError(f"{file} is imported, and not the copy in {target}")
    return target


def run(graph: Graph, mutation: Mutation, sound: Path, tiers: Sequence[str], minutes: float) -> Outcome:
    began = time.monotonic()
    directory = sound.parent / mutation.name
    directory.mkdir()
    try:
        attempt = Run(mutation, sound, directory, minutes)
        test, tier = None, ""
        for stage in stages(graph, mutation.file, tiers):
            test, tier = attempt.first_failure(stage), stage.tier
            if test is not None:
                break
        return Outcome(mutation, test, tier, time.monotonic() - began, tuple(attempt.notes))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.support.mutations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these; may be repeated")
    parser.add_argument("--tier", choices=("test", "all"), default="all", help="where to stop (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (%(default)s)")
    parser.add_argument("--minutes", type=float, default=30, help="the most that a run of pytest takes")
    options = parser.parse_args(arguments)
    names = [each.name for each in MUTATIONS]
    if unknown := [name for name in options.only if name not in names]:
        parser.error(f"no mutation is called {unknown[0]}; there are {', '.join(names)}")
    chosen = [each for each in MUTATIONS if not options.only or each.name in options.only]
    for each in chosen:
        mutated(each, (ROOT / each.file).read_text())
    os.nice(5)
    graph = load_graph(ROOT)
    tiers = ("test",) if options.tier == "test" else ("test", "all")
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutations-", ignore_cleanup_errors=True) as directory:
        sound = _copy(ROOT, Path(directory) / "sound", shutil.copy2)
        with ThreadPoolExecutor(options.jobs) as pool:
            begun = [pool.submit(run, graph, each, sound, tiers, options.minutes) for each in chosen]
            try:
                for outcome in (done.result() for done in as_completed(begun)):
                    found = f"{outcome.test} ({outcome.tier})" if outcome.test else "SURVIVED"
                    print(f"{outcome.mutation.name}: {found}, {outcome.seconds:.0f} s", flush=True)
                    for note in outcome.notes:
                        print(f"    {note}", flush=True)
                    survived += outcome.test is None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    print(f"{len(chosen) - survived} of {len(chosen)} faults were found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
