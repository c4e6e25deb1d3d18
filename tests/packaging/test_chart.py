"""The Helm chart makes a cluster: its nodes find each other, by the names that Kubernetes gives them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]

from ottla.cli.container import Directories, settings_of
from ottla.node.config.node_config import NodeConfig

CHART = Path(__file__).parents[2] / "packaging" / "helm" / "ottla"
CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
HELM = os.environ.get("OTTLA_HELM") or shutil.which("helm")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(HELM is None, reason="Helm is not installed: the chart is not tested"),
]


def helm(*arguments: str, **values: object) -> subprocess.CompletedProcess[str]:
    chosen = [
        word for name, value in values.items() for word in ("--set", f"{name.replace('__', '.')}={value}")
    ]
    command = [str(HELM), *arguments, str(CHART), "--kube-version", "1.34.0", *chosen]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def rendered(**values: object) -> dict[str, Any]:
    """The manifests by kind and name, for a release that is called `kafka`."""
    done = helm("template", "kafka", clusterId=CLUSTER_ID, **values)
    assert done.returncode == 0, done.stderr
    found = [each for each in yaml.safe_load_all(done.stdout) if each is not None]
    return {f"{each['kind']} {each['metadata']['name']}": each for each in found}


def test_helm_finds_nothing_to_complain_of() -> None:
    done = helm("lint", "--strict", clusterId=CLUSTER_ID)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("replicas", [1, 3, 5])
def test_the_nodes_are_one_cluster(replicas: int, tmp_path: Path) -> None:
    manifests = rendered(replicas=replicas)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "server.properties").write_text(manifests["ConfigMap kafka-ottla"]["data"]["server.properties"])
    stateful = manifests["StatefulSet kafka-ottla"]["spec"]
    assert stateful["serviceName"] == "kafka-ottla-nodes"
    assert "Service kafka-ottla-nodes" in manifests
    assert ("PodDisruptionBudget kafka-ottla" in manifests) == (replicas > 1)
    (container,) = stateful["template"]["spec"]["containers"]
    script = container["command"][2].replace("exec /etc/kafka/docker/run", "env")
    for ordinal in range(replicas):
        environment = {"HOSTNAME": f"kafka-ottla-{ordinal}", "NAMESPACE": "shop", "PATH": os.environ["PATH"]}
        done = subprocess.run(
            ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        lines = (line.partition("=") for line in done.stdout.splitlines())
        variables = {name: value for name, _, value in lines if name.startswith("KAFKA_")}
        variables["CLUSTER_ID"] = next(
            each["value"] for each in container["env"] if each["name"] == "CLUSTER_ID"
        )
        settings = settings_of(variables, Directories(shared, tmp_path / "secrets"))
        config = NodeConfig(settings)
        assert config.node_id == ordinal + 1
        assert config.is_broker
        voters = config.names("controller.quorum.voters")
        assert len(voters) == replicas
        assert f"{ordinal + 1}@kafka-ottla-{ordinal}.kafka-ottla-nodes:9093" in voters
        advertised = f"CLIENT://kafka-ottla-{ordinal}.kafka-ottla-nodes.shop.svc:9092"
        assert settings["advertised.listeners"] == advertised
        assert int(settings["default.replication.factor"]) == min(3, replicas)
        assert settings["cluster.id"] == CLUSTER_ID


def test_secrets_are_files_and_variables() -> None:
    manifests = rendered(secrets__files="stores", secrets__variables="passwords", clientProtocol="SASL_SSL")
    assert "CLIENT:SASL_SSL" in manifests["ConfigMap kafka-ottla"]["data"]["server.properties"]
    pod = manifests["StatefulSet kafka-ottla"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "passwords"}}]
    (volume,) = [each for each in pod["volumes"] if "secret" in each]
    assert volume["secret"]["secretName"] == "stores"
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts[volume["name"]] == "/etc/kafka/secrets"


def test_what_would_not_work_is_refused() -> None:
    assert "set clusterId" in helm("template", "kafka").stderr
    assert "replicas has to be odd" in helm("template", "kafka", clusterId=CLUSTER_ID, replicas=2).stderr


def test_a_setting_of_the_operator_wins() -> None:
    manifests = rendered(**{r"settings__min\.insync\.replicas": 1})
    properties = manifests["ConfigMap kafka-ottla"]["data"]["server.properties"]
    assert "min.insync.replicas=1\n" in properties
    assert "min.insync.replicas=2" not in properties
