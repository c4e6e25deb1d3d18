"""One project in several environments: nothing is written twice, or where another environment writes."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.cli.app import run as run_command
from ottla.client.blocking import Admin, Producer
from ottla.spark.pipelines.environments import TOPIC_PREFIX, check_topic_prefix, in_environment
from ottla.spark.pipelines.moved_project import keep_storage
from ottla.spark.pipelines.plan import Definitions
from ottla.spark.pipelines.project import BOOTSTRAP, CREATE_TOPICS, Project, ProjectError, find_project
from ottla.spark.pipelines.run_lock import run_lock
from ottla.spark.pipelines.template import write_project
from tests.support.spark_pipelines import WarmPipeline, order, values

EXAMPLES = Path(__file__).parents[2] / "examples"
TWO = """\
dev:
  bootstrap.servers: "127.0.0.1:1"
  topic.prefix: "dev."
prod:
  bootstrap.servers: "${env:SHOP_BROKERS}"
  storage: s3a://bucket/shop
  command.config: prod.properties
  configuration:
    ottla.trigger: "10 seconds"
"""
VARIABLES = {"SHOP_BROKERS": "one:9093,two:9093"}


@pytest.fixture
def shop(tmp_path: Path) -> Project:
    write_project(tmp_path / "shop")
    (tmp_path / "shop" / "environments.yml").write_text(TWO)
    return find_project(tmp_path / "shop")


def test_each_environment_has_its_own_brokers_topics_and_places(shop: Project) -> None:
    dev = in_environment(shop, "dev", {})
    assert dev.configuration[BOOTSTRAP] == "127.0.0.1:1"
    assert dev.configuration[TOPIC_PREFIX] == "dev."
    assert dev.configuration[CREATE_TOPICS] == "dev.shop.orders:2, dev.shop.large-orders:2"
    prod = in_environment(shop, "prod", VARIABLES)
    assert prod.configuration[BOOTSTRAP] == "one:9093,two:9093"
    assert prod.configuration[CREATE_TOPICS] == shop.configuration[CREATE_TOPICS]
    assert prod.configuration["ottla.trigger"] == "10 seconds"
    assert (prod.storage, prod.storage_path) == ("s3a://bucket/shop", None)
    assert prod.client_config == shop.directory / "prod.properties"
    for places in (
        [each.storage for each in (shop, dev, prod)],
        [each.warehouse for each in (shop, dev, prod)],
        [each.state for each in (shop, dev, prod)],
    ):
        assert len(set(places)) == 3


@pytest.mark.parametrize(
    ("change", "name", "problem"),
    [
        (("", ""), "prd", "has no environment prd; did you mean prod?"),
        (("", ""), "prod", r"the variable SHOP_BROKERS of \$\{env:SHOP_BROKERS\} is not set"),
        (("topic.prefix", "topics.prefix"), "dev", "no `topics.prefix`; did you mean topic.prefix?"),
        (('"dev."', "7"), "dev", "dev: `topic.prefix` must be text"),
        (('topic.prefix: "dev."', "configuration: {a: 10}"), "dev", "put quotes around"),
        (("dev:", "Dev Box:"), "prod", "no name for an environment"),
        ((TWO, "- dev"), "dev", "expected environments by their names"),
        (("dev:", "dev: ["), "dev", "is not YAML"),
    ],
)
def test_a_mistake_in_the_file_is_named(
    shop: Project, change: tuple[str, str], name: str, problem: str
) -> None:
    (shop.directory / "environments.yml").write_text(TWO.replace(*change))
    with pytest.raises(ProjectError, match=problem):
        in_environment(shop, name, {})


def test_environments_that_would_write_to_the_same_topics_are_refused(shop: Project) -> None:
    """Each would write all rows once, and none would know of the other."""
    file = shop.directory / "environments.yml"
    third = TWO + "test:\n  bootstrap.servers: two:9093, 127.0.0.1:1\n"
    file.write_text(third.replace("${env:SHOP_BROKERS}", "one:9093,TWO:9093"))
    with pytest.raises(ProjectError, match="test and environment prod have the same brokers and topics"):
        in_environment(shop, "test", {})
    file.write_text(third.replace("two:9093, ", "") + "  storage: ./pipeline-storage-dev/\n")
    with pytest.raises(ProjectError, match="test and environment dev have the same storage"):
        in_environment(shop, "test", {})


def test_a_project_that_has_run_is_no_second_time_an_environment(shop: Project) -> None:
    (shop.directory / "environments.yml").write_text("prod:\n  storage: elsewhere\n")
    in_environment(shop, "prod")
    shop.state.mkdir()
    keep_storage(shop, shop.state)
    with pytest.raises(ProjectError, match="project without --env, which has run, have the same brokers"):
        in_environment(shop, "prod")


def test_a_sink_into_a_topic_of_another_environment_is_refused(shop: Project) -> None:
    dev = in_environment(shop, "dev", {})
    definitions = Definitions(topics={"large": "dev.shop.large-orders", "any": None})
    check_topic_prefix(dev, definitions)
    definitions.topics["large"] = "shop.large-orders"
    with pytest.raises(
        ProjectError, match=r"sink large writes to topic shop\.large-orders.*begin with 'dev\.'"
    ):
        check_topic_prefix(dev, definitions)
    check_topic_prefix(replace(dev, environment=None), definitions)


def test_a_scheduler_learns_whether_to_try_again(
    shop: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shop.directory)

    def run(*arguments: str) -> tuple[int, dict[str, object]]:
        status = run_command(["pipeline", "run", "--json", *arguments])
        return status, json.loads(capsys.readouterr().out)

    status, said = run("--env", "prd")
    assert (status, said["outcome"]) == (4, "refused")
    assert "did you mean prod?" in str(said["error"])
    status, said = run("--env", "dev", "-b", "127.0.0.1:1")
    assert (status, said["outcome"]) == (2, "refused")
    with run_lock([shop.directory / ".ottla" / "environment-dev"], print):
        status, said = run("--env", "dev")
    assert (status, said["outcome"], said["environment"]) == (5, "busy", "dev")
    status, said = run("--env", "dev")  # nothing listens there
    assert (status, said["outcome"], said["flows"]) == (3, "unreachable", [])


def test_the_example_for_airflow_is_a_program() -> None:
    """Airflow is not needed to see that, and that it uses what the command has."""
    tree = ast.parse((EXAMPLES / "pipeline_dag.py").read_text())
    texts = {each.value for each in ast.walk(tree) if isinstance(each, ast.Constant)}
    assert {"pipeline", "run", "--json", "--project", "--env", "outcome", "refused", "error"} <= texts
    compile(tree, "pipeline_dag.py", "exec")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.exhaustive
def test_a_project_runs_in_two_environments_of_one_cluster(
    warm_pipeline: Callable[[str], WarmPipeline], admin: Admin, producer: Producer
) -> None:
    pipeline = warm_pipeline("twice")
    servers = pipeline.bootstrap
    (pipeline.directory / "environments.yml").write_text(
        f'dev: {{bootstrap.servers: "{servers}", topic.prefix: "dev."}}\n'
        f'prod: {{bootstrap.servers: "{servers}"}}\n'
    )

    def run(environment: str) -> dict[str, object]:
        ended = pipeline("run", "--env", environment, "--json")
        assert ended.returncode in (0, 4), ended.stderr
        found: dict[str, object] = json.loads(ended.stdout)
        return found

    refused = run("dev")
    assert (refused["outcome"], "begin with 'dev.'" in str(refused["error"])) == ("refused", True)
    prefix = 'spark.conf.get("ottla.topic.prefix", "") + '
    for file, topic in (("orders.py", '"twice.orders"'), ("large_orders.py", '"twice.large-orders"')):
        pipeline.change(file, topic, prefix + topic)
    for name in ("twice.orders", "twice.large-orders"):  # those of dev are there, as it was refused late
        admin.topics.create(name, partitions=2)
    producer.send("dev.twice.orders", order(1, 10_000))
    for number in (2, 3):
        producer.send("twice.orders", order(number, 10_000))
    summaries = {environment: run(environment) for environment in ("prod", "dev", "prod")}
    assert [summaries[each]["environment"] for each in ("dev", "prod")] == ["dev", "prod"]
    flows = summaries["dev"]["flows"]
    assert isinstance(flows, list)
    assert {each["name"]: each["state"] for each in flows} == dict.fromkeys(
        ("orders", "turnover", "find_large_orders"), "completed"
    )
    for topic, expected in (("dev.twice.large-orders", [1]), ("twice.large-orders", [2, 3])):
        assert sorted(each["number"] for each in values(servers, topic, len(expected))) == expected
    shown = pipeline("show", "orders", "--env", "dev", "--json")
    assert json.loads(shown.stdout)["number"] == 1
    status = pipeline("status", "--env", "prod", "--json")
    assert {row["flow"]: row["lag"] for row in json.loads(status.stdout)}["orders"] == 0
