"""Imports point up only, heavy libraries have one importer each, `import ingest` is light, and promised names exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ingest
from ingest.spec import Spec

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ingest"

GROUND = {"errors", "documents", "rng", "ops", "predicate", "metrics", "jit"}
READING = GROUND | {"spec", "storage", "manifest", "plan"}
BELOW_ENGINE = READING | {"read", "write", "augment", "loader"}
# What each part may import of `ingest`, itself aside. A dotted name allows that module alone.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "documents": set(),
    "rng": {"errors"},
    "jit": {"errors"},
    "ops": {"errors"},
    "predicate": {"errors"},
    "metrics": {"errors"},
    "spec": GROUND,
    "storage": GROUND | {"spec"},
    "manifest": GROUND | {"spec", "storage"},
    "plan": GROUND | {"spec", "manifest"},  # pure: no storage
    "read": READING,
    "write": READING | {"read"},
    "augment": GROUND | {"spec"},
    "loader": {"errors", "metrics", "spec", "plan", "augment.collate"},
    "engine": BELOW_ENGINE,
    "simulate": GROUND | {"plan", "engine.flow"},  # pure, and so is the flow: it knows no Ray
    "session": BELOW_ENGINE | {"engine"},
    "cli": BELOW_ENGINE | {"engine", "session", "simulate"},
    "": BELOW_ENGINE | {"engine", "session"},  # ingest/__init__.py: its public names, found lazily
}
# Who may import what of others; a prefix of a module's name, or of its path in the package.
OWNERS: dict[str, tuple[str, ...]] = {
    "ray": ("engine", "session", "cli"),
    "ray.data._internal": ("engine.private",),
    "ray._private": ("engine.private", "engine.gcs"),
    "ray._raylet": ("engine.private",),
    "fsspec": ("storage",),
    "obstore": ("storage",),
    "nvidia": ("augment.graph",),
    "lark": ("predicate",),
}
HEAVY = (
    "ray nvidia torch jax tensorflow numpy pyarrow pandas fsspec obstore cv2 PIL numba pydantic yaml rich typer lark"
)


def _begins(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def imports(source: str, module: str, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of all that a module imports: anywhere in it, under TYPE_CHECKING and by name as well."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = [*base, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*parts, alias.name])) for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func)
            if called in {"importlib.import_module", "import_module", "__import__"}:
                yield node.lineno, str(node.args[0].value)


def _part(dotted: str) -> str:
    """The part of the package that a module belongs to; `session_tally` to `session`."""
    first = dotted.split(".", maxsplit=1)[0]
    return next((name for name in ("cli", "session") if re.fullmatch(f"{name}(_\\w+)?", first)), first)


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Each import that breaks a rule, as 'module:line imports NAME: why'."""
    inside = module.removeprefix("ingest").lstrip(".")
    part = _part(inside)
    if part not in MAY_IMPORT:
        return [f"{module} has no place in the import order: give it one in {Path(__file__).name}"]
    found = []
    for line, name in imports(source, module, is_package=is_package):
        where = f"{module}:{line} imports {name}"
        if _begins(name, "ingest") and name not in {"ingest", "ingest.__version__"}:
            target = name.removeprefix("ingest.")
            own = _part(target) == part
            if not own and not any(
                _begins(target, allowed) or _part(target) == allowed for allowed in MAY_IMPORT[part]
            ):
                allowed = ", ".join(sorted(MAY_IMPORT[part])) or "nothing"
                found.append(f"{where}: {part} may import {allowed}")
        for owned, owners in OWNERS.items():
            if _begins(name, owned) and not any(_begins(inside, owner) or _begins(part, owner) for owner in owners):
                found.append(f"{where}: only {', '.join(owners)} may import {owned}")
    return found


def _modules() -> Iterator[tuple[Path, str]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_imports_point_up_only():
    found = [
        line
        for path, module in _modules()
        for line in violations(path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py")
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "named"),
    [
        ("ingest.plan.lanes", "from ingest.storage.base import open_url", "ingest.storage.base.open_url"),
        ("ingest.plan.lanes", "from ingest import read", "ingest.read"),
        ("ingest.plan.lanes", "from ..read import parquet", "ingest.read.parquet"),
        ("ingest.spec", "import ingest.manifest.model as m", "ingest.manifest.model"),
        ("ingest.augment.render", "from ingest.manifest.model import Manifest", "ingest.manifest.model.Manifest"),
        ("ingest.loader.prefetch", "from ingest.augment.graph import build", "ingest.augment.graph.build"),
        ("ingest.loader.prefetch", "def f():\n    import ray", "ray"),
        ("ingest.read.parquet", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fsspec", "fsspec"),
        ("ingest.read.parquet", "import importlib\nimportlib.import_module('obstore.store')", "obstore.store"),
        ("ingest.augment.render", "from nvidia import dali", "nvidia.dali"),
        ("ingest.engine.feeder", "from ray.data import _internal", "ray.data._internal"),
        ("ingest.engine.feeder", "import ray._private.worker", "ray._private.worker"),
        ("ingest.errors", "from ingest.spec import Spec", "ingest.spec.Spec"),
        ("ingest.session", "from ingest.cli import main", "ingest.cli.main"),
    ],
)
def test_an_import_that_breaks_the_order_is_named(module, source, named):
    (line,) = violations(source, module)
    assert line.startswith(f"{module}:")
    assert f"imports {named}: " in line


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ingest.loader.prefetch", "from ingest.augment.collate import Batch\nfrom ingest.loader import state"),
        ("ingest.engine.private", "from ray.data._internal.execution import x\nimport ray._private.worker"),
        ("ingest.augment.graph", "from nvidia.dali import fn"),
        ("ingest.storage.cloud", "import fsspec, obstore.store\nfrom ingest import __version__"),
        ("ingest.cli_report", "import ray\nfrom ingest.cli import app\nfrom ingest.session import Loader"),
        ("ingest.read.parquet", "import raystation, numpy"),
    ],
)
def test_an_import_that_keeps_the_order_passes(module, source):
    assert violations(source, module) == []


def test_a_module_without_a_place_is_refused():
    (line,) = violations("", "ingest.helpers")
    assert "ingest.helpers has no place" in line


def _fresh(code: str) -> str:
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_import_loads_nothing_heavy():
    code = f"import sys, ingest; print(*sorted(set({HEAVY.split()!r}) & {{m.split('.')[0] for m in sys.modules}}))"
    assert _fresh(code) == ""


def test_a_trainer_loads_neither_ray_data_nor_dali():
    heavy = {"ray.data", "nvidia", "cv2", "torch", "pandas", "numba"}
    code = f"import sys, ingest.session; print(*{heavy!r} & set(sys.modules))"
    assert _fresh(code) == ""


def test_the_spec_loads_neither_ray_nor_a_framework():
    code = "import sys, ingest; ingest.Spec; print(*{'ray', 'nvidia', 'torch', 'jax', 'tensorflow'} & set(sys.modules))"
    assert _fresh(code) == ""


def test_import_takes_under_half_a_second():
    code = "import time; t = time.perf_counter(); import ingest; print(time.perf_counter() - t)"
    assert min(float(_fresh(code)) for _ in range(3)) < 0.5


def _bound_names(tree: ast.Module) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names


def test_every_name_in_all_exists():
    missing = []
    for path, module in _modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                missing += [f"{module}.{name}" for name in set(ast.literal_eval(node.value)) - _bound_names(tree)]
    assert not missing


def test_public_names_are_found():
    assert {name: getattr(ingest, name).__name__ for name in ("Loader", "Spec", "errors")} == {
        "Loader": "Loader",
        "Spec": "Spec",
        "errors": "ingest.errors",
    }
    with pytest.raises(AttributeError, match="Lodaer"):
        _ = ingest.Lodaer


def _readme_blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_names_in_the_readme_exist():
    blocks = _readme_blocks("python")
    assert blocks, "the README shows how a trainer uses ingest"
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "ingest":
                assert hasattr(ingest, node.attr), f"README: ingest.{node.attr}"


def test_specs_in_the_readme_are_valid(tmp_path):
    specs = [block for block in _readme_blocks("yaml") if re.search(r"^source:", block, re.MULTILINE)]
    assert specs, "the README shows a spec"
    for number, block in enumerate(specs):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block, encoding="utf-8")
        Spec.load(path)
