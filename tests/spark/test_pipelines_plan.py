"""What a run would do with each stream: people rename, move and edit flows, and no row is written twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.blocking import read_topic
from ottla.client.blocking import Admin, Producer
from ottla.serdes import Avro
from ottla.spark.pipelines.checkpoints import FlowCheckpoint, flow_checkpoints
from ottla.spark.pipelines.moved_project import check_storage, keep_storage
from ottla.spark.pipelines.plan import (
    Definitions,
    FlowAction,
    FlowDefinition,
    FlowRecord,
    KnownFlow,
    RunPlan,
    StreamRead,
    assumed_checkpoints,
    plan_run,
    rename_flows,
    rename_sinks,
    renamed,
)
from ottla.spark.pipelines.project import Project, ProjectError
from ottla.spark.pipelines.selection import Selection
from ottla.testing.local_node import LocalNode
from tests.node.registry_calls import RegistryClient, record
from tests.support.spark_pipelines import Pipeline, WarmPipeline, order, values

ORDERS_TOPIC = StreamRead("ottla", "subscribe=shop.orders")
ORDERS = StreamRead("table", "orders")


def shop(*flows: FlowDefinition) -> Definitions:
    """Orders of a topic in a table; a view over it, a table and a sink that read it as a stream."""
    return Definitions(
        tables={"orders": "orders", "teas": "teas", "turnover": "turnover"},
        streaming={"orders", "teas"},
        sinks={"large"},
        flows=[
            FlowDefinition("orders", "orders", (ORDERS_TOPIC,)),
            FlowDefinition("turnover", "turnover"),
            FlowDefinition("hot", "hot", (ORDERS,)),  # a temporary view
            *(
                flows
                or (FlowDefinition("teas", "teas", (ORDERS,)), FlowDefinition("find", "large", (ORDERS,)))
            ),
        ],
    )


def plan(
    definitions: Definitions,
    *known: tuple[str, str],
    selection: Selection | None = None,
    read: dict[tuple[str, str], KnownFlow] | None = None,
) -> RunPlan:
    checkpoints = {flow: FlowCheckpoint(Path("/s"), has_batches=True) for flow in known}
    return plan_run(definitions, selection or Selection(), checkpoints, read or {})


ALL = (("orders", "orders"), ("teas", "teas"), ("large", "find"))


def test_flows_begin_and_then_continue() -> None:
    assert {flow.action for flow in plan(shop()).flows} == {FlowAction.BEGINS}
    again = plan(shop(), *ALL)
    assert [(flow.flow, flow.target, flow.action) for flow in again.flows] == [
        ("orders", "orders", FlowAction.CONTINUES),
        ("teas", "teas", FlowAction.CONTINUES),
        ("find", "large", FlowAction.CONTINUES),
    ]
    again.check()


def test_a_table_is_computed_again_with_all_that_reads_it_as_a_stream_or_not_at_all() -> None:
    refused = plan(shop(), *ALL, selection=Selection(full_refresh=["orders"]))
    command = "ottla pipeline run --full-refresh orders --full-refresh teas --full-refresh large"
    with pytest.raises(ProjectError, match=r"flow teas \(into teas\), find \(into large\)") as said:
        refused.check()
    assert f"`{command}`" in str(said.value)
    assert "What is in the topic of large stays there, and is written once more" in str(said.value)
    told = Selection(full_refresh=["orders", "teas"], sinks=("large",))
    plan(shop(), *ALL, selection=told).check()
    plan(shop(), *ALL, selection=Selection(full_refresh_all=True)).check()
    # What has read nothing yet repeats nothing.
    plan(shop(), ("orders", "orders"), selection=Selection(full_refresh=["orders"])).check()


def test_of_a_storage_elsewhere_the_flows_that_have_run_are_known() -> None:
    """Its checkpoints cannot be seen from here, and would double all the same."""
    known = {key: KnownFlow((ORDERS_TOPIC if key == ALL[0] else ORDERS,)) for key in ALL}
    again = Selection(full_refresh=["orders"])
    checkpoints = assumed_checkpoints(known, again)
    refused = plan_run(shop(), again, checkpoints, known, is_elsewhere=True)
    with pytest.raises(ProjectError, match=r"flow teas .*: `ottla pipeline run --full-refresh-all`"):
        refused.check()
    moved = Selection(renamed_flows={"find": "find_large"})
    records = renamed(known, moved)
    assert set(assumed_checkpoints(records, moved)) == {*ALL[:2], ("large", "find_large")}
    plan_run(
        shop(FlowDefinition("find_large", "large", (ORDERS,))),
        moved,
        assumed_checkpoints(records, moved),
        records,
        is_elsewhere=True,
    ).check()


def test_a_flow_that_was_renamed_is_not_missed_under_its_old_name(tmp_path: Path) -> None:
    record = FlowRecord(tmp_path)
    record.write(shop())
    selection = Selection(renamed_flows={"find": "find_large"})
    record.write(shop(FlowDefinition("find_large", "large", (ORDERS,))), selection)
    assert {name for target, name in record.read() if target == "large"} == {"find_large"}


def test_views_between_are_looked_through_and_streams_below_streams_are_named() -> None:
    flows = (
        FlowDefinition("teas", "teas", (StreamRead("table", "hot"),)),
        FlowDefinition("find", "large", (StreamRead("table", "db.Teas"),)),
    )
    refused = plan(shop(*flows), *ALL, selection=Selection(full_refresh=["orders"]))
    with pytest.raises(ProjectError, match="--full-refresh orders --full-refresh teas --full-refresh large"):
        refused.check()


def test_a_flow_into_a_sink_under_another_name_is_not_taken_for_a_new_one() -> None:
    renamed = shop(FlowDefinition("find_large", "large", (ORDERS,)))
    with pytest.raises(ProjectError, match=r"--renamed-flow find=find_large.*--new-flow find_large"):
        plan(renamed, ("large", "find")).check()
    plan(renamed, ("large", "find"), selection=Selection(new_flows=["find_large"])).check()
    plan(renamed, ("large", "find"), selection=Selection(sinks=("large",))).check()
    both = shop(FlowDefinition("find", "large", (ORDERS,)), FlowDefinition("more", "large", (ORDERS,)))
    plan(both, ("large", "find")).check()  # one more flow into the sink


def test_a_flow_into_a_table_under_another_name_is_not_begun() -> None:
    """Its batches would have the numbers of those that the table has."""
    renamed = shop(FlowDefinition("read_teas", "teas", (ORDERS,)))
    with pytest.raises(ProjectError, match=r"--renamed-flow teas=read_teas.*--full-refresh teas"):
        plan(renamed, ("teas", "teas")).check()
    plan(renamed, ("teas", "teas"), selection=Selection(full_refresh=["teas"])).check()


def test_a_flow_that_reads_something_else_is_refused(tmp_path: Path) -> None:
    record = FlowRecord(tmp_path)
    record.write(shop())
    before = record.read()
    plan(shop(), *ALL, read=before).check()
    edited = shop(
        FlowDefinition("teas", "teas", (ORDERS_TOPIC,)), FlowDefinition("find", "large", (ORDERS_TOPIC,))
    )
    problems = plan(edited, *ALL, read=before).problems
    assert len(problems) == 2
    assert "teas has read table orders until now, and reads ottla subscribe=shop.orders" in problems[0]
    assert "`ottla pipeline run --full-refresh teas`" in problems[0]
    assert "`ottla pipeline run --new-flow NAME`" in problems[1]
    # Another topic is no other kind of source: its partitions are new ones.
    wider = StreamRead("ottla", "subscribe=shop.orders,shop.returns")
    definitions = shop()
    definitions.flows[0] = FlowDefinition("orders", "orders", (wider,))
    plan(definitions, *ALL, read=before).check()


RETURNS_TOPIC = StreamRead("ottla", "subscribe=shop.returns")


@pytest.mark.parametrize(
    ("before", "now", "problem"),
    [
        ([ORDERS_TOPIC, RETURNS_TOPIC], [RETURNS_TOPIC, ORDERS_TOPIC], "by this order"),
        ([ORDERS_TOPIC], [RETURNS_TOPIC, ORDERS_TOPIC], "counts what it has read of the former"),
        ([ORDERS_TOPIC, RETURNS_TOPIC], [RETURNS_TOPIC], "counts what it has read of the former"),
        ([ORDERS, StreamRead("table", "teas")], [StreamRead("table", "teas"), ORDERS], "by this order"),
        ([ORDERS_TOPIC, RETURNS_TOPIC], [ORDERS_TOPIC, StreamRead("ottla", "subscribe=shop.gifts")], None),
        ([ORDERS_TOPIC, ORDERS], [ORDERS_TOPIC, ORDERS], None),
    ],
)
def test_the_sources_of_a_union_keep_their_places(
    tmp_path: Path, before: list[StreamRead], now: list[StreamRead], problem: str | None
) -> None:
    """Spark counts what was read by the place of a source: in another one, all of it would be read again."""

    def into_sink(streams: list[StreamRead]) -> Definitions:
        return shop(FlowDefinition("find", "large", tuple(streams)))

    record = FlowRecord(tmp_path)
    record.write(into_sink(before))
    found = plan(into_sink(now), *ALL, read=record.read()).problems
    assert [problem in each for each in found] == [True] if problem else not found


def test_of_several_flows_that_are_gone_the_one_of_the_last_run_is_named(tmp_path: Path) -> None:
    """The others were gone before: their checkpoints would have all read again that was read since."""
    record = FlowRecord(tmp_path)
    for name in ("a_dead_one", "find", "another"):
        record.write(shop(FlowDefinition(name, "large", (ORDERS,), name)))
    record.write(shop(*(FlowDefinition(name, "large", (ORDERS,), name) for name in ("find", "another"))))
    edited = shop(FlowDefinition("find_large", "large", (ORDERS,), "find"))
    known = (("large", "a_dead_one"), ("large", "another"), ("large", "find"))
    with pytest.raises(ProjectError, match=r"find, another, a_dead_one.*--renamed-flow find=find_large"):
        plan(edited, *known, read=record.read()).check()


def test_a_sink_under_another_name_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    definitions = shop(FlowDefinition("find", "large", (ORDERS,)))
    definitions.topics["large"] = "shop.large"
    record = FlowRecord(tmp_path)
    record.write(definitions)
    edited = shop(FlowDefinition("find", "bigOnes", (ORDERS,)))
    edited.sinks, edited.topics = {"bigones"}, {"bigones": "shop.large"}
    with pytest.raises(ProjectError, match=r"--renamed-sink large=bigOnes.*--new-flow find"):
        plan(edited, *ALL, read=record.read()).check()
    plan(edited, *ALL, read=record.read(), selection=Selection(new_flows=["find"])).check()
    edited.topics["bigones"] = "shop.big"  # another topic is another output
    plan(edited, *ALL, read=record.read()).check()

    old = checkpoint(tmp_path, "large/find", 0).parent
    for _ in range(2):  # the second is a run after a kill
        rename_sinks(tmp_path, {"large": "bigOnes"}, edited)
        assert [each.name for each in (old.parent / "bigOnes").iterdir()] == ["find"]
        assert not old.exists()
    with pytest.raises(ProjectError, match="no sink other"):
        rename_sinks(tmp_path, {"large": "other"}, edited)
    # What the flow has read is known under its new name, too.
    known = renamed(record.read(), Selection(renamed_sinks={"large": "bigOnes"}))
    changed = shop(FlowDefinition("find", "bigOnes", (ORDERS_TOPIC,)))
    changed.sinks = {"bigones"}
    with pytest.raises(ProjectError, match="has read table orders until now"):
        plan(changed, ("bigones", "find"), read=known).check()


def test_harmless_changes_are_told(tmp_path: Path) -> None:
    definitions = shop(FlowDefinition("find", "large", (ORDERS,), "a"))
    definitions.topics["large"] = "shop.large"
    record = FlowRecord(tmp_path)
    record.write(definitions)
    edited = shop(FlowDefinition("find", "large", (ORDERS,), "b"))
    edited.topics["large"] = "shop.big"
    found = plan(edited, *ALL, read=record.read())
    found.check()
    assert [each.why for each in found.flows if each.flow == "find"] == [
        "it writes to topic shop.big now; what it has written to shop.large stays there; its query was "
        "changed: what it has written before stays as it is"
    ]


def test_a_record_of_an_earlier_release_knows_no_order(tmp_path: Path) -> None:
    flow = {"target": "large", "name": "find", "streams": [["ottla", "subscribe=a"], ["table", "orders"]]}
    (tmp_path / "flows.json").write_text(json.dumps({"version": 1, "flows": [flow]}))
    known = FlowRecord(tmp_path).read()
    edited = shop(FlowDefinition("find", "large", (ORDERS, ORDERS_TOPIC)))
    plan(edited, *ALL, read=known).check()
    with pytest.raises(ProjectError, match="has read"):
        plan(shop(FlowDefinition("find", "large", (ORDERS,))), *ALL, read=known).check()


def test_a_project_does_not_begin_in_another_storage_by_accident(tmp_path: Path) -> None:
    def project(storage: str) -> Project:
        return Project(tmp_path / "spark-pipeline.yml", "shop", storage, {})

    state = tmp_path / ".ottla"
    state.mkdir()
    check_storage(project("here"), state, from_scratch=False)
    keep_storage(project("here"), state)
    check_storage(project("there"), state, from_scratch=False)  # it has no checkpoint to lose
    checkpoint(tmp_path / "here", "large/find", 0)
    for other in ("there", "s3a://bucket/there"):
        with pytest.raises(ProjectError, match=r"has run with `storage: here`.*--full-refresh-all"):
            check_storage(project(other), state, from_scratch=False)
        check_storage(project(other), state, from_scratch=True)
    (tmp_path / "here").rename(tmp_path / "there")
    check_storage(project("there"), state, from_scratch=False)


def test_what_flows_have_read_outlives_their_absence_and_damage_is_named(tmp_path: Path) -> None:
    record = FlowRecord(tmp_path)
    record.write(shop())
    record.write(shop(FlowDefinition("find", "large", (ORDERS,))))
    assert ("teas", "teas") in record.read()
    (tmp_path / "flows.json").write_text("{")
    with pytest.raises(ProjectError, match=r"flows\.json.* is damaged"):
        record.read()


def checkpoint(storage: Path, flow: str, *numbers: int) -> Path:
    for number in numbers:
        (storage / "_checkpoints" / flow / str(number) / "offsets").mkdir(parents=True)
        (storage / "_checkpoints" / flow / str(number) / "offsets" / "0").touch()
    return storage / "_checkpoints" / flow


def test_the_checkpoint_of_a_renamed_flow_moves_once(tmp_path: Path) -> None:
    old = checkpoint(tmp_path, "large/find", 0, 1)
    checkpoint(tmp_path, "spark_catalog/default/teas/find", 0)  # of another target
    renamed = shop(FlowDefinition("find_large", "large", (ORDERS,)))
    for _ in range(2):  # the second is a run after a kill
        rename_flows(tmp_path, {"find": "find_large"}, renamed)
        assert sorted(each.name for each in (old.parent / "find_large").iterdir()) == ["0", "1"]
        assert not old.exists()
    assert set(flow_checkpoints(tmp_path / "_checkpoints")) == {("large", "find_large"), ("teas", "find")}
    checkpoint(tmp_path, "large/find", 0)
    for names, problem in (
        ({"find": "find_large"}, "has run under this name"),
        ({"find": "other"}, "the definitions have no flow other"),
        ({"orders": "find_large"}, "the definitions still have flow orders"),
        ({"fnd": "teas"}, "the definitions have no flow teas"),
    ):
        with pytest.raises(ProjectError, match=problem):
            rename_flows(tmp_path, names, renamed)


def test_a_checkpoint_that_was_begun_again_has_no_batches(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path, "large/find", 0)
    assert flow_checkpoints(tmp_path / "_checkpoints")["large", "find"].has_batches
    (directory / "1").mkdir()
    assert not flow_checkpoints(tmp_path / "_checkpoints")["large", "find"].has_batches


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.spark
def test_a_person_renames_refreshes_and_edits_and_no_row_is_written_twice(
    warm_pipeline: Callable[[str], WarmPipeline], producer: Producer
) -> None:
    pipeline = warm_pipeline("edits")
    pipeline.run()

    def send(*numbers: int) -> None:
        for number in numbers:
            producer.send("edits.orders", order(number, 10_000), partition=0)

    def written(count: int) -> list[int]:
        return sorted(each["number"] for each in values(pipeline.bootstrap, "edits.large-orders", count))

    def refused(*arguments: str) -> str:
        ended = pipeline("run", "-b", pipeline.bootstrap, *arguments)
        assert ended.returncode == 4, ended.stderr
        return ended.stderr

    send(1, 2)
    pipeline.run()
    assert written(2) == [1, 2]

    pipeline.change("large_orders.py", "def find_large_orders", "def find_big_orders")
    assert "--renamed-flow find_large_orders=find_big_orders" in refused()
    send(3)
    pipeline.run("--renamed-flow", "find_large_orders=find_big_orders")
    assert written(3) == [1, 2, 3]

    assert "--full-refresh orders --full-refresh large_orders" in refused("--full-refresh", "orders")
    shown = pipeline("plan", "-b", pipeline.bootstrap, "--full-refresh", "orders")
    assert shown.returncode == 4
    assert "find_big_orders" in shown.stdout
    pipeline.run()
    assert written(3) == [1, 2, 3]
    pipeline.run("--full-refresh", "orders", "--full-refresh", "large_orders")
    assert written(6) == [1, 1, 2, 2, 3, 3]  # as asked

    pipeline.change("large_orders.py", '.alias("value")', '.alias("val")')
    checked = pipeline("dry-run", "-b", pipeline.bootstrap)
    assert "find_big_orders into sink large_orders: Required attribute 'value' not found" in checked.stderr
    pipeline.change("large_orders.py", '.alias("val")', '.alias("value")')

    checked = pipeline("dry-run", "-b", pipeline.bootstrap)
    assert checked.returncode == 0, checked.stderr

    pipeline.change("large_orders.py", '"edits.large-orders"', '"edits.large-ordres"')
    for command in ("dry-run", "run"):  # the brokers would create it
        said = pipeline(command, "-b", pipeline.bootstrap).stderr
        assert "topic edits.large-ordres, which does not exist; did you mean edits.large-orders?" in said
    pipeline.change("large_orders.py", '"edits.large-ordres"', '"edits.large-orders"')

    for old in ('create_sink("large_orders"', 'target="large_orders"'):
        pipeline.change("large_orders.py", old, old.replace("large_orders", "big"))
    assert "--renamed-sink large_orders=big" in refused()
    send(4)
    told = pipeline.run("--renamed-sink", "large_orders=big")
    assert "plan: 2 flows continue" in told
    assert written(7) == [1, 1, 2, 2, 3, 3, 4]
    shown = pipeline("plan", "-b", pipeline.bootstrap, "--json")
    assert [each["does"] for each in json.loads(shown.stdout)["flows"]] == ["continues", "continues"]

    pipeline.change("orders.py", "cents long", "cents double")
    assert (
        "table orders: column cents is bigint in its files, and double in the definitions now. Cast it to "
        "bigint, give it another name, or compute the table again" in refused()
    )
    pipeline.change("orders.py", "cents double", "cents long")

    pipeline.change("orders.py", '"startingOffsets", "earliest"', '"startingOffsets", "erliest"')
    assert "flow orders: startingOffsets='erliest'" in refused()


TYPED = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
TYPED = {{"kafka.bootstrap.servers": "{bootstrap}", "valueFormat": "avro", "schemaRegistry": "{registry}"}}


@dp.table
def typed_orders():
    stream = spark.readStream.format("ottla").options(**TYPED, subscribe="{topic}")
    return stream.option("startingOffsets", "earliest").load().select("value.*")


dp.create_sink("cheap", "ottla", {{**TYPED, "topic": "{topic}-cheap"}})


@dp.append_flow(target="cheap")
def find_cheap():
    orders = spark.readStream.table("typed_orders")
    return orders.where("cents < 100").selectExpr("struct(number, cents) as value")
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.spark
def test_a_schema_that_breaks_a_flow_is_found_before_the_run(
    warm_pipeline: Callable[[str], WarmPipeline], admin: Admin
) -> None:
    """One that a source reads by, and one that a sink writes by."""
    pipeline, topic = warm_pipeline("typed"), "typed-orders"
    for each in (topic, f"{topic}-cheap"):
        admin.topics.create(each, partitions=1)
    with LocalNode({"schema.registry.listener": "http://127.0.0.1:0"}) as node:
        assert node.schema_registry_url is not None
        registry = RegistryClient(node.schema_registry_url)
        for each in (topic, f"{topic}-cheap"):
            registry.ok("PUT", f"/config/{each}-value", {"compatibility": "NONE"})
        registry.register(f"{topic}-value", record("Order", number="long", cents="long"))
        registry.register(f"{topic}-cheap-value", record("Cheap", number="long", cents="long"))
        text = TYPED.format(bootstrap=pipeline.bootstrap, registry=registry.url, topic=topic)
        pipeline.define("orders.py", text)
        orders = Avro(registry.url)

        def send(**order: int) -> None:
            with Producer(pipeline.bootstrap, value_serializer=orders) as producer:
                producer.send(topic, order)

        def refused(*expected: str) -> None:
            for command in ("dry-run", "run"):
                ended = pipeline(command, "-b", pipeline.bootstrap)
                assert ended.returncode in (1, 4), ended.stderr
                assert all(each in ended.stderr for each in expected), ended.stderr
            assert [row["number"] for row in pipeline.table("typed_orders")] == [1]

        send(number=1, cents=50)
        pipeline.run()
        send(number=2, cents=60)
        registry.register(f"{topic}-value", record("Order", number="long"))
        refused("flow find_cheap", "cents")
        registry.register(f"{topic}-value", record("Order", number="long", cents="long", item="string"))
        registry.register(f"{topic}-cheap-value", record("Cheap", number="long", price="long"))
        refused("flow find_cheap into sink cheap", "value has cents that the record Cheap does not have")
        registry.register(f"{topic}-cheap-value", record("Cheap", cents="long", number="long"))
        registry.register(f"{topic}-value", record("Order", cents="long", number="long"))
        assert pipeline("dry-run", "-b", pipeline.bootstrap).returncode == 0
        pipeline.run()
        written = read_topic(pipeline.bootstrap, f"{topic}-cheap").column("value").to_pylist()
        cheap = Avro(registry.url)
        assert [cheap.decode(topic, each)["number"] for each in written] == [1, 2]
    # A registry that does not answer is no fault of the definitions.
    assert "does not give version latest" in pipeline("dry-run", "-b", pipeline.bootstrap).stderr


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_project_that_is_moved_and_one_with_storage_elsewhere_go_on(
    new_pipeline: Callable[[str], Pipeline], producer: Producer, tmp_path: Path
) -> None:
    pipeline = new_pipeline("moves")
    remote = tmp_path / "remote"
    remote.mkdir()
    there = Pipeline(tmp_path / "elsewhere", pipeline.bootstrap)
    link = f"spark.hadoop.fs.viewfs.mounttable.default.link./data={remote.as_uri()}"
    pipeline.run()
    producer.send("moves.orders", order(1, 10_000), partition=0)
    pipeline.run()
    pipeline.directory.rename(there.directory)
    producer.send("moves.orders", order(2, 10_000), partition=0)
    there.run()
    large = values(pipeline.bootstrap, "moves.large-orders", 2)
    assert sorted(each["number"] for each in large) == [1, 2]

    other = new_pipeline("remote")
    spec = other.directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("storage: pipeline-storage", "storage: viewfs:///data/storage"))
    for number in (1, 2, 3):
        other.run("--conf", link)
        producer.send("remote.orders", order(number, 10_000), partition=0)
    other.run("--conf", link)
    large = values(pipeline.bootstrap, "remote.large-orders", 3)
    assert sorted(each["number"] for each in large) == [1, 2, 3]

    refused = other("run", "-b", other.bootstrap, "--conf", link, "--full-refresh", "orders")
    assert "To compute all of it again: `ottla pipeline run --full-refresh-all`" in refused.stderr
    other.change("large_orders.py", "def find_large_orders", "def find_big_orders")
    assert (
        "--renamed-flow find_large_orders=find_big_orders"
        in other("run", "-b", other.bootstrap, "--conf", link).stderr
    )
    producer.send("remote.orders", order(4, 10_000), partition=0)
    other.run("--conf", link, "--renamed-flow", "find_large_orders=find_big_orders")
    large = values(pipeline.bootstrap, "remote.large-orders", 4)
    assert sorted(each["number"] for each in large) == [1, 2, 3, 4]
    assert list(remote.glob("storage/_checkpoints/**/offsets"))
