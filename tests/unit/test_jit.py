"""The cache of compiled code: a folder of one's own, and one process that compiles while others wait."""

from __future__ import annotations

import fcntl
import importlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ingest import jit

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    jit.own_folder.cache_clear()
    yield tmp_path / f"ingest-numba-{os.getuid()}"
    jit.own_folder.cache_clear()


def test_the_folder_is_made_for_its_user_alone(folder):
    assert jit.own_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700
    jit.own_folder.cache_clear()
    assert jit.own_folder() == folder


@pytest.mark.parametrize("trap", ["open", "link", "broken link", "file"])
def test_a_folder_that_others_can_write_to_is_not_used(folder, tmp_path, trap):
    if trap == "open":
        folder.mkdir()
        folder.chmod(0o777)
    elif trap.endswith("link"):
        if trap == "link":
            (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.write_bytes(b"")
    own = jit.own_folder()
    assert own != folder
    assert not own.is_symlink()
    assert own.stat().st_mode & 0o777 == 0o700


def test_one_compiles_while_the_other_waits(folder, tmp_path):
    source = tmp_path / "kernels.py"
    source.write_text("# the first version")
    order, inside, go = [], threading.Event(), threading.Event()

    def first():
        with jit.compiling(source):
            inside.set()
            go.wait(30)
            order.append("first")

    def second():
        with jit.compiling(source):
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(30)
    (lock,) = folder.glob("*.lock")
    with lock.open("w") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(30)
    assert order == ["first", "second"]


def test_what_was_compiled_is_not_waited_for(folder, tmp_path):
    source = tmp_path / "kernels.py"
    source.write_text("# the first version")
    with jit.compiling(source):
        pass
    (lock,) = folder.glob("*.lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with jit.compiling(source):  # does not wait
            pass
    source.write_text("# the second version")
    with jit.compiling(source):
        assert len(list(folder.glob("*.lock"))) == 2


def test_a_compilation_that_fails_is_not_taken_for_done(folder, tmp_path):
    source = tmp_path / "kernels.py"
    source.write_text("#")
    with pytest.raises(RuntimeError), jit.compiling(source):
        raise RuntimeError
    assert not list(folder.glob("*.compiled"))


def test_the_kernels_load_from_the_cache_in_another_process():
    code = (
        "from ingest.read.tfrecord import warm_up; warm_up()\n"
        "from ingest.read import wire; from ingest.manifest.records import framing\n"
        "kernels = (wire.parse_records, wire.survey_records, wire.learn_names, framing._scan)\n"
        "print(*(sum(kernel.stats.cache_misses.values()) for kernel in kernels))"
    )
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["0"] * 4


def test_a_kernel_is_compiled_anew_when_a_module_beside_it_changes(tmp_path, monkeypatch):
    folder = tmp_path / "kept_kernels"
    folder.mkdir()
    (folder / "top.py").write_text(
        "import numba\nfrom ingest.jit import kernel\nfrom kept_kernels.below import COUNT, helper\n"
        "@kernel\ndef count(x):\n    return helper(x) + COUNT\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def counted(helper, count):
        (folder / "below.py").write_text(
            f"import numba\nCOUNT = {count}\n@numba.njit\ndef helper(x):\n    return {helper}\n"
        )
        importlib.invalidate_caches()
        for name in [name for name in sys.modules if name.startswith("kept_kernels")]:
            monkeypatch.delitem(sys.modules, name)
        kernel = importlib.import_module("kept_kernels.top").count
        return kernel(10), sum(kernel.stats.cache_hits.values())

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # versions of one size, written in the same second
    assert counted("x", 1) == (11, 0)
    assert counted("x", 1) == (11, 1)
    assert counted("x", 2) == (12, 0)
    assert counted("-x", 2) == (-8, 0)
    assert counted("-x", 2) == (-8, 1)
