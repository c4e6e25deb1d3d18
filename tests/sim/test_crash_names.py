"""What a crash may do to names: unsynced ones come and go, renames are whole, no durable file is lost."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.runtime.disk import read_file, write_file
from ottla.sim.disk import SimCrash, SimDisk

SEEDS = range(300)


def disk_with(*directories: str) -> SimDisk:
    disk = SimDisk()
    for directory in directories:
        disk.make_dirs(directory)
    disk.sync_all()
    return disk


def make(disk: SimDisk, path: str, data: bytes = b"data") -> None:
    file = disk.open(path, exclusive=True)
    file.pwrite(data, 0)
    file.sync()
    file.close()


def outcomes(disk: SimDisk) -> Counter[tuple[tuple[str, bytes], ...]]:
    return Counter(tuple(disk.after_crash(seed).contents().items()) for seed in SEEDS)


class TestSingleChanges:
    def test_a_new_name_is_durable_only_when_its_directory_is_synced(self) -> None:
        disk = disk_with("/d")
        make(disk, "/d/f")
        assert set(outcomes(disk)) == {(), (("/d/f", b"data"),)}
        disk.sync_dir("/d")
        assert set(outcomes(disk)) == {(("/d/f", b"data"),)}

    def test_syncing_a_directory_does_not_make_its_own_name_durable(self) -> None:
        disk = disk_with()
        disk.make_dirs("/new")
        make(disk, "/new/f")
        disk.sync_dir("/new")
        assert set(outcomes(disk)) == {(), (("/new/f", b"data"),)}
        disk.sync_dir("/")
        assert set(outcomes(disk)) == {(("/new/f", b"data"),)}

    def test_an_unsynced_unlink_may_be_undone(self) -> None:
        disk = disk_with("/d")
        make(disk, "/d/f")
        disk.sync_dir("/d")
        disk.unlink("/d/f")
        assert set(outcomes(disk)) == {(), (("/d/f", b"data"),)}
        disk.sync_dir("/d")
        assert set(outcomes(disk)) == {()}

    def test_an_unsynced_rename_leaves_the_old_name_or_the_new(self) -> None:
        disk = disk_with("/d")
        make(disk, "/d/old")
        disk.sync_dir("/d")
        disk.rename("/d/old", "/d/new")
        assert set(outcomes(disk)) == {(("/d/old", b"data"),), (("/d/new", b"data"),)}
        disk.sync_dir("/d")
        assert set(outcomes(disk)) == {(("/d/new", b"data"),)}

    def test_a_rename_between_directories_needs_both_synced(self) -> None:
        disk = disk_with("/a", "/b")
        make(disk, "/a/f")
        disk.sync_dir("/a")
        disk.rename("/a/f", "/b/f")
        disk.sync_dir("/b")
        assert set(outcomes(disk)) == {(("/a/f", b"data"),), (("/b/f", b"data"),)}
        disk.sync_dir("/a")
        assert set(outcomes(disk)) == {(("/b/f", b"data"),)}

    def test_a_replaced_file_is_the_old_or_the_new_never_neither(self) -> None:
        disk = disk_with("/d")
        make(disk, "/d/f", b"old")
        make(disk, "/d/g", b"new")
        disk.sync_dir("/d")
        disk.rename("/d/g", "/d/f")
        assert set(outcomes(disk)) == {(("/d/f", b"old"), ("/d/g", b"new")), (("/d/f", b"new"),)}

    def test_changes_of_different_names_may_survive_out_of_order(self) -> None:
        disk = disk_with("/d")
        make(disk, "/d/first")
        make(disk, "/d/second")
        assert {tuple(name for name, _ in names) for names in outcomes(disk)} == {
            (),
            ("/d/first",),
            ("/d/second",),
            ("/d/first", "/d/second"),
        }

    def test_changes_of_one_name_survive_in_order(self) -> None:
        disk = disk_with("/d")
        make(disk, "/d/f", b"one")
        disk.unlink("/d/f")
        make(disk, "/d/f", b"two")
        assert set(outcomes(disk)) == {(), (("/d/f", b"one"),), (("/d/f", b"two"),)}

    def test_a_durable_unlink_takes_the_rename_before_it_along(self) -> None:
        disk = disk_with("/a", "/b")
        make(disk, "/a/f", b"new")
        make(disk, "/b/f", b"old")
        disk.sync_all()
        disk.rename("/a/f", "/b/f")
        disk.unlink("/b/f")
        disk.sync_dir("/b")
        assert set(outcomes(disk)) == {()}


def test_a_crash_may_keep_or_lose_everything_at_once() -> None:
    disk = disk_with("/d")
    for index in range(40):
        make(disk, f"/d/{index}")
        disk.open(f"/d/{index}").pwrite(b"unsynced", 4)
    kept = Counter(len(disk.after_crash(seed).contents()) for seed in SEEDS)
    assert kept[0] > 0
    whole = disk.contents()
    assert any(disk.after_crash(seed).contents() == whole for seed in SEEDS)


class TestDirectories:
    def test_a_durable_file_moved_into_a_new_directory_is_never_lost(self) -> None:
        disk = disk_with("/d")
        make(disk, "/d/f")
        disk.sync_dir("/d")
        disk.make_dirs("/new/inner")
        disk.rename("/d/f", "/new/inner/f")
        assert {names[0][1] for names in outcomes(disk)} == {b"data"}
        disk.sync_dir("/d")
        disk.sync_dir("/new/inner")
        assert set(outcomes(disk)) == {(("/new/inner/f", b"data"),)}

    def test_a_directory_removed_after_its_file_moved_out_never_takes_the_file(self) -> None:
        disk = disk_with("/d", "/e")
        make(disk, "/d/f")
        disk.sync_dir("/d")
        disk.rename("/d/f", "/e/f")
        disk.remove_dir("/d")
        assert {names[0] for names in outcomes(disk)} == {("/d/f", b"data"), ("/e/f", b"data")}
        disk.sync_dir("/")
        assert set(outcomes(disk)) == {(("/e/f", b"data"),)}

    def test_directories_moved_into_one_another_never_form_a_loop(self) -> None:
        disk = disk_with("/a/b")
        make(disk, "/a/x")
        make(disk, "/a/b/y")
        disk.sync_all()
        disk.rename("/a/b", "/b")
        disk.rename("/a", "/b/a")
        assert set(outcomes(disk)) == {
            (("/a/b/y", b"data"), ("/a/x", b"data")),
            (("/a/x", b"data"), ("/b/y", b"data")),
            (("/b/a/x", b"data"), ("/b/y", b"data")),
        }

    def test_a_directory_replaced_after_its_file_moved_out_never_takes_the_file(self) -> None:
        disk = disk_with("/d", "/e", "/x")
        make(disk, "/d/f")
        disk.sync_dir("/d")
        disk.rename("/d/f", "/e/f")
        disk.rename("/x", "/d")
        assert {names[0] for names in outcomes(disk)} == {("/d/f", b"data"), ("/e/f", b"data")}

    def test_a_renamed_directory_keeps_its_files_under_either_name(self) -> None:
        disk = disk_with("/topic-0")
        make(disk, "/topic-0/f")
        disk.sync_dir("/topic-0")
        disk.rename("/topic-0", "/topic-0.delete")
        assert set(outcomes(disk)) == {(("/topic-0.delete/f", b"data"),), (("/topic-0/f", b"data"),)}


class TestWriteFile:
    """The one way to replace a small file, crashed at each of its steps."""

    def replace(self, crash_after: int | None, *, sync: bool) -> tuple[SimDisk, bool]:
        disk = disk_with("/d")
        write_file(disk, "/d/f", b"old" * 1000)
        if crash_after is not None:
            disk.crash_after(crash_after)
        try:
            write_file(disk, "/d/f", b"new" * 2000, sync=sync)
        except SimCrash:
            return disk, False
        return disk, True

    def found(self, disk: SimDisk, seed: int) -> bytes:
        return read_file(disk.after_crash(seed), "/d/f")

    def test_a_crash_at_any_step_leaves_the_old_content_or_the_new(self) -> None:
        disk, finished = self.replace(None, sync=True)
        assert finished
        steps = disk.operations
        seen = set()
        for step in range(steps):
            disk, finished = self.replace(step, sync=True)
            seen |= {self.found(disk, seed) for seed in range(60)}
            if finished:
                break
        else:
            raise AssertionError("no run was long enough to finish")
        assert seen == {b"old" * 1000, b"new" * 2000}

    def test_once_it_has_returned_the_new_content_is_durable(self) -> None:
        disk, _ = self.replace(None, sync=True)
        assert {self.found(disk, seed) for seed in SEEDS} == {b"new" * 2000}

    def test_without_sync_a_crash_may_tear_it(self) -> None:
        disk, _ = self.replace(None, sync=False)
        assert {self.found(disk, seed) for seed in SEEDS} - {b"old" * 1000, b"new" * 2000}


@dataclass
class Model:
    """What must hold of names and files, by rules much simpler than those of the disk.

    Files are known by an id that is their synced content. Directories are fixed and durable.
    """

    names: dict[str, int] = field(default_factory=dict)
    # For each name: every id (None: no file) that it stood for since it was last certain.
    possible: dict[str, set[int | None]] = field(default_factory=dict)
    # Directories that must be synced before the newest state of a name, or the place of a file, is certain.
    name_waits: dict[str, set[str]] = field(default_factory=dict)
    file_waits: dict[int, set[str]] = field(default_factory=dict)
    anchored: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)

    def set(self, path: str, file: int | None, directories: set[str]) -> None:
        before = self.names.get(path)
        if before is not None and file != before:
            self.dropped.add(before)
        self.possible.setdefault(path, {before}).add(file)
        self.name_waits[path] = set(directories)
        if file is None:
            self.names.pop(path, None)
        else:
            self.names[path] = file
            self.dropped.discard(file)
            self.file_waits[file] = set(directories)

    def sync(self, directory: str) -> None:
        for path, waits in self.name_waits.items():
            waits.discard(directory)
            if not waits:
                self.possible[path] = {self.names.get(path)}
        for file, waits in self.file_waits.items():
            waits.discard(directory)
            if not waits and file not in self.dropped:
                self.anchored.add(file)

    def check(self, found: dict[str, int]) -> None:
        for path in {*self.possible, *found}:
            assert found.get(path) in self.possible.get(path, {None}), path
        places = Counter(found.values())
        assert all(count == 1 for count in places.values()), "a file under two names"
        assert not self.anchored - self.dropped - places.keys(), "a durable file is gone"


DIRECTORIES = ["/a", "/b"]
PATHS = [f"{directory}/{name}" for directory in DIRECTORIES for name in "xyz"]
NAME_CHANGES = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(PATHS), st.just("")),
    st.tuples(st.just("rename"), st.sampled_from(PATHS), st.sampled_from(PATHS)),
    st.tuples(st.just("unlink"), st.sampled_from(PATHS), st.just("")),
    st.tuples(st.just("sync"), st.sampled_from(DIRECTORIES), st.just("")),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    changes=st.lists(NAME_CHANGES, max_size=30),
    seeds=st.lists(st.integers(), min_size=1, max_size=20, unique=True),
)
def test_names_after_a_crash_are_ones_that_were_and_no_durable_file_is_lost(
    changes: list[tuple[str, str, str]], seeds: list[int]
) -> None:
    disk = disk_with(*DIRECTORIES)
    model = Model()
    for number, (kind, path, other) in enumerate(changes):
        parent = path[:2]
        if kind == "create" and path not in model.names:
            make(disk, path, b"%d" % number)
            model.set(path, number, {parent})
        elif kind == "rename" and path in model.names and path != other:
            disk.rename(path, other)
            file = model.names[path]
            model.set(path, None, {parent, other[:2]})
            model.set(other, file, {parent, other[:2]})
        elif kind == "unlink" and path in model.names:
            disk.unlink(path)
            model.set(path, None, {parent})
        elif kind == "sync":
            disk.sync_dir(path)
            model.sync(path)
    assert {path: int(data) for path, data in disk.contents().items()} == model.names
    for seed in seeds:
        survivors = disk.after_crash(seed).contents()
        model.check({path: int(data) for path, data in survivors.items()})
