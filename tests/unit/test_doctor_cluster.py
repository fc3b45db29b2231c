"""The doctor's judgement of what nodes say; no cluster."""

from __future__ import annotations

import pytest

from ingest.engine import doctor, probe

pytestmark = pytest.mark.unit


def look(**changed):
    base = {
        "node": "n",
        "host": "h",
        "python": "3.12.1",
        "versions": dict.fromkeys(probe.DISTRIBUTIONS, "1.0"),
        "free_tmp_bytes": 1 << 40,
        "open_files": 65536,
        "time_s": 100.0,
    }
    versions = {**base["versions"], **changed.pop("versions", {})}
    return {**base, **changed, "versions": versions}


def of_node(**changed):
    return [(f.level, f.check) for f in doctor._of_node(look(**changed), 99.0, 101.0)]


def test_a_node_that_is_well_is_ok():
    assert of_node() == [("ok", "node")]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"versions": {"nvidia.dali": "!ImportError: libcuda"}}, ("error", "import")),
        ({"time_s": 160.0}, ("warning", "clock")),
        ({"time_s": 40.0}, ("warning", "clock")),
        ({"free_tmp_bytes": 5 << 20}, ("warning", "disk")),
        ({"open_files": 1024}, ("warning", "files")),
    ],
)
def test_what_is_wrong_with_a_node_is_named(changed, found):
    assert of_node(**changed) == [found]


def test_a_node_that_does_not_answer_is_an_error():
    (finding,) = doctor._of_node({"node": "ab", "checks": [{"found": "no answer"}]}, 0, 0)
    assert (finding.level, finding.where) == ("error", "ab")


def test_the_node_that_differs_from_most_is_named_with_both_versions():
    looks = {"a": look(), "b": look(), "c": look(versions={"pyarrow": "25.0"}), "d": look(python="3.11.9")}
    found = {(f.where, f.message.partition(":")[0]) for f in doctor._of_versions(looks)}
    assert found == {
        ("c", "pyarrow is 25.0 here and 1.0 on most nodes"),
        ("d", "python is 3.11.9 here and 3.12.1 on most nodes"),
    }
    assert [f.level for f in doctor._of_versions({"a": look(), "b": look()})] == ["ok"]


def test_this_process_can_say_it_all_about_itself():
    here = probe.look()
    assert not [version for version in here["versions"].values() if version.startswith("!")]
    assert here["versions"]["pyarrow"].count(".") >= 1
    assert probe._version("no_such_module_at_all", "x").startswith("!ModuleNotFoundError")


def test_the_worst_finding_decides():
    ok, warning, error = (doctor.Finding(level, "node", "n", "") for level in ("ok", "warning", "error"))
    assert [doctor.worst(f) for f in ([ok], [ok, warning], [warning, error, ok], [])] == [
        "ok",
        "warning",
        "error",
        "ok",
    ]
