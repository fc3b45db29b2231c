"""cluster.yaml is what Ray's own validation accepts, is pinned as constraints.txt is, and is closed to strangers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def text() -> str:
    return (ROOT / "cluster.yaml").read_text(encoding="utf-8")


@pytest.fixture
def config(text):
    return yaml.safe_load(text)


def test_ray_accepts_it_with_its_defaults_filled_in(config):
    filled = prepare_config(config)
    validate_config(filled)
    assert set(filled["available_node_types"]) == {"head", "cpu-reader", "gpu-trainer"}


def test_the_validation_refuses_a_key_that_ray_does_not_know(config):
    config["available_node_types"]["head"]["instance_type"] = "m7i.large"
    with pytest.raises(Exception, match="instance_type"):
        validate_config(prepare_config(config))


def test_readers_run_on_nodes_without_a_gpu_and_grow_from_none(config):
    reader, trainer = (config["available_node_types"][name] for name in ("cpu-reader", "gpu-trainer"))
    assert "GPU" not in reader["resources"]
    assert reader["labels"] == {"ingest-role": "reader"}
    assert reader["min_workers"] == 0 < reader["max_workers"]
    assert trainer["resources"]["GPU"] == trainer["resources"]["CPU"], "a CPU for each trainer, none left for readers"
    assert config["available_node_types"]["head"]["resources"]["CPU"] == 0
    assert sum(t.get("max_workers", 0) for t in config["available_node_types"].values()) <= config["max_workers"]


def test_versions_are_pinned(config):
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    assert config["docker"]["image"].split(":")[1].startswith(f"{pins['ray']}-py312")
    (install,) = config["setup_commands"]
    assert "-c constraints.txt" in install
    assert re.findall(r"'torch(==[\d.]+)'", install), "what constraints.txt leaves out is pinned here"


def test_strangers_are_kept_out(config, text):
    assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    head = " ".join(config["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in head
    for name, kind in config["available_node_types"].items():
        assert kind["node_config"]["MetadataOptions"]["HttpTokens"] == "required", name
        assert kind["node_config"]["IamInstanceProfile"]["Name"], name
        assert all(disk["Ebs"]["Encrypted"] for disk in kind["node_config"]["BlockDeviceMappings"]), name
    assert not re.search(r"AKIA|ASIA|secret|password|RAY_AUTH_TOKEN\b|PRIVATE KEY", text, re.IGNORECASE)
