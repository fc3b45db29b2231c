"""Which files a source means: directories, files, globs and lists of them, sorted, markers left out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from ingest.errors import SourceError
from ingest.manifest.model import FileEntry
from ingest.spec import Source
from ingest.storage.filesystem import FileInfo, FileSystem, literal, open_filesystem

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
DIRECTORY_INTEGER = re.compile(r"-?[0-9]{1,18}")  # a hive key whose values all look so is an int64 column

_TFRECORD = re.compile(r"\.tfrecords?\b|-\d{5}-of-\d{5}(\.gz)?$", re.IGNORECASE)
_HIVE_DIRECTORY = re.compile(r"[^=./][^=/]*=[^/]*")
_PARQUET_MAGIC = (b"PAR1", b"PARE")


def list_files(source: Source) -> tuple[FileEntry, ...]:
    """The data files of a source, sorted by their path relative to its root.

    The root is the deepest directory common to all paths given. In a directory or glob, names that begin with `_` or
    `.` (`_SUCCESS`, `_metadata`, anything under `_temporary/`), `.crc` files and files of zero bytes are left out;
    `key=value` directories are hive partitions whatever their key. Where any name in the set has a Parquet suffix
    (.parquet, .parq, .pq), only such names count, so that a README beside them is no data; else every file counts.

    Raises:
        SourceError: a path is missing, nothing is left to read, or the files are not Parquet.
    """
    found: dict[str, tuple[FileInfo, bool]] = {}
    bases: list[str] = []
    for path in source.paths:
        filesystem = open_filesystem(path, source.storage)
        base, infos, explicit = _expand(filesystem.canonical(path), filesystem)
        bases.append(base)
        for info in infos:
            found[info.url] = (info, explicit or found.get(info.url, (info, False))[1])
    root = _common(bases)
    entries = [
        (FileEntry(path, info.url, info.size, info.etag, _partitions(path)), explicit)
        for info, explicit in found.values()
        for path in (_relative(literal(info.url), literal(root)),)
    ]
    kept = _data_files(entries)
    if not kept:
        raise SourceError(
            f"there is no data file under {', '.join(source.paths)}",
            path=source.paths[0],
            hint="Hidden files, files that begin with '_' and empty ones do not count",
        )
    kept.sort(key=lambda entry: (entry.path, entry.url))
    _check_format(kept, source)
    return tuple(kept)


def _expand(path: str, filesystem: FileSystem) -> tuple[str, list[FileInfo], bool]:
    """(base directory, files, whether the user named the file itself) of one path as given."""
    info = None if path.endswith("/") else filesystem.info(path)
    if info is not None and info.size:
        return path.rpartition("/")[0], [info], True
    below = filesystem.walk(path)
    if info is not None and not below:  # some stores mark a directory by an empty object of its name
        raise SourceError("the file is empty (0 bytes)", path=path)
    if below or not re.search(r"[*?\[]", path):
        base = path.rstrip("/")
        if not below and not filesystem.is_directory(path):
            raise SourceError("no such file or directory", path=path)
        return (
            base,
            [item for item in below if item.size and _visible(_relative(literal(item.url), literal(base)))],
            False,
        )
    base, pattern = _split_glob(path)
    allow_hidden = any(_hidden(part) for part in pattern.split("/"))
    match = re.compile(_glob_regex(pattern))
    names = [(item, _relative(literal(item.url), literal(base))) for item in filesystem.walk(base)]
    matched = [item for item, name in names if item.size and match.fullmatch(name) and (allow_hidden or _visible(name))]
    if not matched:
        raise SourceError("no file matches the glob", path=path, hint=f"{len(names)} files lie under {base}/")
    return base, matched, False


def _visible(path: str) -> bool:
    return not path.endswith(".crc") and not any(_hidden(part) for part in path.split("/"))


def _hidden(part: str) -> bool:
    return part.startswith(("_", ".")) and not _HIVE_DIRECTORY.fullmatch(part)


def _split_glob(path: str) -> tuple[str, str]:
    """The literal directory before the first wildcard, and the pattern below it."""
    first = re.search(r"[*?\[]", path)
    cut = path.rfind("/", 0, first.start() if first else len(path))
    return path[:cut] or "/", path[cut + 1 :]


def _glob_regex(pattern: str) -> str:
    """`*` and `?` stay inside a directory, `**` does not."""
    out = ""
    i = 0
    while i < len(pattern):
        char = pattern[i]
        if pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
            continue
        if pattern.startswith("**", i):
            out, i = out + ".*", i + 2
            continue
        end = pattern.find("]", i + 2) if char == "[" else -1
        if end > 0:
            body = pattern[i + 1 : end].replace("\\", "\\\\")
            out, i = out + f"[{'^' + body[1:] if body[0] == '!' else body}]", end + 1
            continue
        out += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
        i += 1
    return out


def _common(bases: Iterable[str]) -> str:
    """The deepest directory that all bases lie in; empty where they share none."""
    parts = [base.split("/") for base in bases]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    root = "/".join(shared)
    return "" if root.endswith((":", ":/")) else root


def _relative(url: str, root: str) -> str:
    return url[len(root) :].lstrip("/") if root and url.startswith(root) else url.lstrip("/")


def _partitions(path: str) -> tuple[tuple[str, str], ...]:
    """Hive's key=value directories; it writes special characters as %XX, here and nowhere else."""
    pairs = [part.split("=", 1) for part in path.split("/")[:-1] if _HIVE_DIRECTORY.fullmatch(part)]
    return tuple((unquote(key), unquote(value)) for key, value in pairs)


def _data_files(entries: list[tuple[FileEntry, bool]]) -> list[FileEntry]:
    if any(_is_parquet(entry.path) for entry, _ in entries):
        return [entry for entry, explicit in entries if explicit or _is_parquet(entry.path)]
    return [entry for entry, _ in entries]


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(PARQUET_SUFFIXES)


def _check_format(entries: list[FileEntry], source: Source) -> None:
    """One look at the first file decides for names that say nothing; every footer is checked later, in parallel."""
    first = entries[0]
    if source.format == "parquet" or _is_parquet(first.path):
        return
    if _TFRECORD.search(first.path.rpartition("/")[2]):
        raise SourceError(
            "this looks like TFRecord, which is not supported yet", path=first.url, hint="Convert it to Parquet"
        )
    head = bytes(open_filesystem(first.url, source.storage).read_ranges(first.url, [(0, min(4, first.size))])[0])
    if head not in _PARQUET_MAGIC:
        raise SourceError(
            f"not a Parquet file: it begins with {head!r}",
            path=first.url,
            hint="source.path should lead to Parquet files only",
        )
