"""What a submitted job brings along: an explicit list of files as one archive, and the versions it was tried with."""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.metadata
import importlib.util
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from ingest.cli_common import human_bytes
from ingest.errors import SpecError

PACKAGES = ("ingest", "jobs")
BIGGEST = 5
_NEVER = ("__pycache__", ".git", ".venv", ".ingest")
_SECRET_FILES = (
    "auth_token",
    "credentials",
    ".env",
    "*.env",
    ".netrc",
    "*.pem",
    "*.key",
    "*.p12",
    "*.pfx",
    "id_rsa*",
    "id_ed25519*",
    "*service-account*.json",
    "application_default_credentials.json",
)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of every entry: the same files are the same archive, uploaded once
_SECRET_NAME = re.compile(
    r"secret|password|passwd|token|credential|private|api_?key|access_?key|account_?key|sas\b", re.IGNORECASE
)
_REFERENCE = re.compile(r"_(FILE|PATH|URI|ARN)$", re.IGNORECASE)  # names where a secret is, and is none
_SECRET_VALUE = re.compile(
    r"(?<![A-Z0-9])A[KS]IA[A-Z0-9]{12,}"  # AWS key ids
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|[a-z0-9+.-]+://[^/\s@]+:[^/\s@]+@"  # user:password in a URL
    r"|\bsig=[A-Za-z0-9%+/]{20,}"  # a shared access signature
    r"|\bX-Amz-(Signature|Security-Token)=",
)


@dataclass(frozen=True)
class Package:
    """Files by their name in the archive, with sizes in bytes."""

    files: dict[str, Path]
    sizes: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def biggest(self) -> list[str]:
        """The biggest files, each as 'name (size)'."""
        names = sorted(self.sizes, key=lambda name: (-self.sizes[name], name))[:BIGGEST]
        return [f"{name} ({human_bytes(self.sizes[name])})" for name in names]

    def write(self, folder: Path) -> Path:
        """Pack into a zip in `folder`, named after its content."""
        target = folder / "package.zip"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(self.files):
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, self.files[name].read_bytes())
        digest = hashlib.sha256(target.read_bytes()).hexdigest()[:16]
        return target.rename(folder / f"ingest-{digest}.zip")


def collect(spec: Path, extra: Sequence[Path], limit_bytes: int, root: Path | None = None) -> Package:
    """The spec, the sources of ingest and its jobs, and what the user names.

    Args:
        spec: the spec's file; it lies at the top of the archive.
        extra: files, and folders for all files below them; inside `root`, whose layout they keep.
        limit_bytes: refuse more than this, unpacked.
        root: the user's folder; the working directory when left out.

    Raises:
        SpecError: a file is missing, outside `root`, looks like a secret, or all of it is too much.
    """
    root = (root or Path.cwd()).resolve()
    files = {path.relative_to(top).as_posix(): path for name in PACKAGES for top, path in _sources(name)}
    for given in extra:
        for path in _expand(given):
            name = _inside(path, root)
            _refuse_secret(name)
            if name.partition("/")[0] in PACKAGES:
                raise SpecError(f"--file {given}: '{name}' would replace a file of ingest's own", hint="Rename it")
            files[name] = path
    if files.setdefault(spec.name, spec) != spec:
        raise SpecError(f"--file and the spec are both named {spec.name}", hint="Rename one of them")
    try:
        package = Package(files, {name: path.stat().st_size for name, path in files.items()})
    except OSError as error:
        raise SpecError(f"a file of the package cannot be read: {error}") from error
    if package.bytes > limit_bytes:
        raise SpecError(
            f"the package has {human_bytes(package.bytes)} and at most {human_bytes(limit_bytes)} are sent; "
            f"the biggest files: {', '.join(package.biggest)}",
            hint="Leave them out, put data into the bucket, or raise --max-package",
        )
    return package


def _sources(name: str) -> Iterator[tuple[Path, Path]]:
    """(the folder that the package lies in, a file of it)."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SpecError(f"the package '{name}' is not installed here", hint="Install ingest whole, with its jobs")
    folder = Path(next(iter(found.submodule_search_locations)))
    yield from ((folder.parent, path) for path in sorted(folder.rglob("*.py")) if not _hidden(path.relative_to(folder)))


def _expand(path: Path) -> list[Path]:
    if path.is_dir():
        return [inner for inner in sorted(path.rglob("*")) if inner.is_file() and not _hidden(inner.relative_to(path))]
    if not path.is_file():
        raise SpecError(f"--file {path}: no such file")
    return [path]


def _hidden(path: Path) -> bool:
    return any(part in _NEVER for part in path.parts)


def _inside(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root).as_posix()
    except ValueError:
        raise SpecError(f"--file {path}: is outside {root}", hint="Start from the folder that holds it") from None


def _refuse_secret(name: str) -> None:
    last = name.rpartition("/")[2].lower()
    if any(fnmatch.fnmatch(last, pattern) for pattern in _SECRET_FILES):
        raise SpecError(
            f"--file {name}: looks like a secret, and a package is kept in the cluster for all its jobs",
            hint="Give nodes a role, or a file of their own that --secrets-file names",
        )


def refuse_secret(what: str, name: str, value: str) -> None:
    """Refuse a setting that carries a secret: settings stand in the job's description for all to see.

    Raises:
        SpecError: without the value.
    """
    if (_SECRET_NAME.search(name) and not _REFERENCE.search(name)) or _SECRET_VALUE.search(value):
        raise SpecError(
            f"{what} {name}: looks like a secret, and would stand in the job's description and process list",
            hint="Give nodes a role, or a file of their own that --secrets-file names",
        )


def pins(distribution: str = "ingest") -> list[str]:
    """`name==version` of all that a distribution needs, as installed here, in order.

    Ray is not among them: a job runs with the cluster's own, and Ray refuses another.

    Raises:
        SpecError: it, or something that it needs, is not installed.
    """
    found: dict[str, str] = {}
    waiting = [(distribution, frozenset[str]())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            installed = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise SpecError(
                f"'{name}' is not installed here, so its version cannot be pinned",
                hint="pip install -c constraints.txt . first, or use --env image",
            ) from None
        found[_canonical(name)] = installed.version
        for text in installed.requires or ():
            need = Requirement(text)
            if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                waiting.append((_canonical(need.name), frozenset(need.extras)))
    return [f"{name}=={version}" for name, version in sorted(found.items()) if name not in ("ray", distribution)]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
