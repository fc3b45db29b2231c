"""Launch files are what Ray's own validation accepts, pinned as constraints.txt is, and closed to strangers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
CLOUDS = ["cluster.yaml", "launch/cluster.gcp.yaml", "launch/cluster.azure.yaml"]
FILES = [*CLOUDS, "launch/cluster.local.yaml"]
SECRET = re.compile(r"AKIA|ASIA|secret[_-]?access|password|RAY_AUTH_TOKEN\b|PRIVATE KEY|AccountKey|sig=", re.IGNORECASE)

# What KubeRay 1.6's ray.io/v1 takes, at the places that launch/kuberay.yaml uses; from its reference of fields.
CONTAINER = "name image securityContext resources volumeMounts env ports command args lifecycle"
POD_SPEC = "serviceAccountName securityContext volumes tolerations nodeSelector affinity terminationGracePeriodSeconds"


def strict(names: str, **known):
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {**{name: {} for name in names.split()}, **known},
    }


CONTAINERS = {"type": "array", "items": strict(CONTAINER)}
TEMPLATE = strict("metadata", spec=strict(POD_SPEC, containers=CONTAINERS))
PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}
GROUP = strict(
    "idleTimeoutSeconds numOfHosts scaleStrategy suspend",
    groupName={"type": "string"},
    replicas=COUNT,
    minReplicas=COUNT,
    maxReplicas=COUNT,
    labels=PARAMETERS,
    resources=PARAMETERS,
    rayStartParams=PARAMETERS,
    template=TEMPLATE,
)
RAY_CLUSTER = strict(
    "autoscalerOptions gcsFaultToleranceOptions headServiceAnnotations suspend managedBy upgradeStrategy tlsOptions",
    rayVersion={"type": "string"},
    enableInTreeAutoscaling={"type": "boolean"},
    authOptions=strict("enableK8sTokenAuth secretName", mode={"enum": ["disabled", "token"]}),
    headGroupSpec=strict(
        "enableIngress headService serviceType", labels=PARAMETERS, rayStartParams=PARAMETERS, template=TEMPLATE
    ),
    workerGroupSpecs={"type": "array", "items": GROUP},
)
RAY_JOB = strict(
    "metadata",
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayJob"},
    spec=strict(
        "activeDeadlineSeconds clusterSelector deletionStrategy entrypointNumCpus entrypointNumGpus jobId metadata "
        "entrypointResources runtimeEnvYAML submitterConfig submitterPodTemplate suspend",
        entrypoint={"type": "string"},
        submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
        shutdownAfterJobFinishes={"type": "boolean"},
        ttlSecondsAfterFinished=COUNT,
        backoffLimit=COUNT,
        rayClusterSpec=RAY_CLUSTER,
    ),
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def load(name: str):
    return yaml.safe_load(read(name))


def pinned(name: str) -> str:
    return re.search(rf"^{name}==(\S+)", read("constraints.txt"), re.MULTILINE)[1]


@pytest.mark.parametrize("name", FILES)
def test_ray_accepts_it_with_its_defaults_filled_in(name):
    filled = prepare_config(load(name))
    validate_config(filled)
    expected = {"local.cluster.node"} if "local" in name else {"head", "cpu-reader", "gpu-trainer"}
    assert set(filled["available_node_types"]) == expected


def test_the_validation_refuses_a_key_that_ray_does_not_know():
    config = load("cluster.yaml")
    config["available_node_types"]["head"]["instance_type"] = "m7i.large"
    with pytest.raises(Exception, match="instance_type"):
        validate_config(prepare_config(config))


@pytest.mark.parametrize("name", CLOUDS)
def test_readers_run_on_nodes_without_a_gpu_and_grow_from_none(name):
    config = load(name)
    head, reader, trainer = (config["available_node_types"][kind] for kind in ("head", "cpu-reader", "gpu-trainer"))
    assert "GPU" not in reader["resources"]
    assert [kind["labels"]["ingest-role"] for kind in (head, reader, trainer)] == ["head", "reader", "trainer"]
    assert reader["min_workers"] == 0 < reader["max_workers"]
    assert trainer["resources"]["GPU"] == trainer["resources"]["CPU"], "a CPU for each trainer, none left for readers"
    assert head["resources"]["CPU"] == 0
    assert sum(t.get("max_workers", 0) for t in config["available_node_types"].values()) <= config["max_workers"]


@pytest.mark.parametrize("name", CLOUDS)
def test_the_object_store_fits_into_shared_memory(name):
    for kind in ("cpu-reader", "gpu-trainer"):
        node = load(name)["available_node_types"][kind]
        (option,) = node["docker"]["worker_run_options"]
        shm = int(re.fullmatch(r"--shm-size=(\d+)g", option)[1]) << 30
        assert node["resources"]["object_store_memory"] < shm, kind


def test_spot_nodes_read_and_are_drained_and_only_they():
    spot = {
        "cluster.yaml": lambda node: node.get("InstanceMarketOptions") == {"MarketType": "spot"},
        "launch/cluster.gcp.yaml": lambda node: {"provisioningModel": "SPOT"} in node.get("scheduling", ()),
        "launch/cluster.azure.yaml": lambda node: node["azure_arm_parameters"].get("priority") == "Spot",
    }
    for name, is_spot in spot.items():
        config = load(name)
        found = {kind for kind, node in config["available_node_types"].items() if is_spot(node["node_config"])}
        assert found == {"cpu-reader"}, name
        assert any(f"jobs.drain --cloud {config['provider']['type']}" in c for c in config["worker_start_ray_commands"])


@pytest.mark.parametrize("name", FILES)
def test_versions_are_pinned(name):
    config = load(name)
    if "docker" in config:
        assert config["docker"]["image"].split(":")[1].startswith(f"{pinned('ray')}-py312")
    install = next(command for command in config["setup_commands"] if "constraints.txt" in command)
    assert re.findall(r"'torch(==[\d.]+)'", install), "what constraints.txt leaves out is pinned here"


@pytest.mark.parametrize("name", FILES)
def test_strangers_are_kept_out(name):
    config = load(name)
    heads, workers = ([c for c in config[f"{w}_start_ray_commands"] if "ray start" in c] for w in ("head", "worker"))
    for command in (*heads, *workers):
        options = config.get("docker", {}).get("run_options", ())
        assert "--env RAY_AUTH_MODE=token" in options or "RAY_AUTH_MODE=token ray start" in command
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert all("--dashboard-host=127.0.0.1" in command for command in heads)
    assert not SECRET.search(read(name))


def test_aws_nodes_have_imdsv2_encrypted_disks_and_a_role_that_reads_and_no_more():
    for name, kind in load("cluster.yaml")["available_node_types"].items():
        assert kind["node_config"]["MetadataOptions"]["HttpTokens"] == "required", name
        assert kind["node_config"]["IamInstanceProfile"]["Name"] == ("ingest-head" if name == "head" else "ingest-node")
        assert all(disk["Ebs"]["Encrypted"] for disk in kind["node_config"]["BlockDeviceMappings"]), name
    node, head = (json.loads(read(f"launch/aws/ingest-{role}.json"))["Statement"] for role in ("node", "head"))
    for statement in node:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        assert all(re.fullmatch(r"s3:(ListBucket|GetObject|PutObject|DeleteObject)", action) for action in actions)
        if "BUCKET-OF-DATA" in statement["Resource"]:
            assert set(actions) <= {"s3:ListBucket", "s3:GetObject"}
        assert "*" not in statement["Resource"].removesuffix("/*")
    for statement in head:
        actions = [statement["Action"]] if isinstance(statement["Action"], str) else statement["Action"]
        assert not [action for action in actions if action.endswith("*")]
        if statement["Resource"] == "*":
            assert all(action.startswith("ec2:Describe") for action in actions)
        if "ec2:TerminateInstances" in actions:
            tag = statement["Condition"]["StringEquals"]["aws:ResourceTag/ray-cluster-name"]
            assert tag == load("cluster.yaml")["cluster_name"]
        if "iam:PassRole" in actions:
            assert statement["Resource"].endswith(":role/ingest-node")


def test_aws_is_bootstrapped_as_far_as_a_simulated_cloud_goes(monkeypatch, tmp_path):
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto")
    from ray.autoscaler._private.aws import config as aws

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    config = prepare_config(load("cluster.yaml"))
    with moto.mock_aws():
        filled = aws.bootstrap_aws(config)
        for kind in filled["available_node_types"].values():
            assert {"ImageId", "KeyName", "SubnetIds", "SecurityGroupIds"} <= set(kind["node_config"])
        (group,) = boto3.client("ec2", "us-east-1").describe_security_groups(
            Filters=[{"Name": "group-name", "Values": ["ray-autoscaler-ingest"]}]
        )["SecurityGroups"]
        open_to_all = [rule for rule in group["IpPermissions"] if rule["IpRanges"]]
        assert [rule["FromPort"] for rule in open_to_all] == [22], "from outside, SSH alone"


def test_kubernetes_gets_the_same_groups_closed_and_unprivileged():
    job = load("launch/kuberay.yaml")
    jsonschema.validate(job, RAY_JOB)
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == pinned("ray")
    assert cluster["authOptions"] == {"mode": "token"}
    groups = {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    assert {name: group["labels"]["ingest-role"] for name, group in groups.items()} == {
        "cpu-reader": "reader",
        "gpu-trainer": "trainer",
    }
    assert groups["cpu-reader"]["minReplicas"] == 0 < groups["cpu-reader"]["maxReplicas"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert cluster["headGroupSpec"]["serviceType"] == "ClusterIP"
    for group in (cluster["headGroupSpec"], *groups.values()):
        pod = group["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["serviceAccountName"] == "ingest-node"
        (container,) = pod["containers"]
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        (shm,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm"]
        assert int(group["rayStartParams"]["object-store-memory"]) < int(shm["sizeLimit"].removesuffix("Gi")) << 30
        gpus = int(container["resources"]["limits"].get("nvidia.com/gpu", 0))
        assert bool(gpus) == (group["labels"]["ingest-role"] == "trainer")
    assert not SECRET.search(read("launch/kuberay.yaml"))
    job["spec"]["rayClusterSpec"]["headGroupSpec"]["rayStartParam"] = {}
    with pytest.raises(jsonschema.ValidationError, match="rayStartParam"):
        jsonschema.validate(job, RAY_JOB)


@pytest.mark.parametrize("name", ["cluster.yaml", "launch/kuberay.yaml"])
def test_the_job_in_a_launch_file_is_one_that_the_train_job_takes(name):
    from jobs.train import parser

    text = load(name)["spec"]["entrypoint"] if "kuberay" in name else read(name)
    if "kuberay" in name:
        words = text.split()[3:]
    else:
        line = re.search(r"ingest submit (spec\.yaml) .* -- (.*)", text)
        words = [line[1], *line[2].split()]
    args = parser().parse_args(words)
    assert (args.trainers, args.trainer_gpus, args.trainer_label) == (8, 1.0, ["ingest-role=trainer"])


def test_the_image_has_the_pinned_ray():
    assert f"FROM rayproject/ray:{pinned('ray')}-py312-gpu" in read("launch/Dockerfile")
    assert "-c /home/ray/ingest/constraints.txt" in read("launch/Dockerfile")
