"""Which files a source means: directories, files, globs and lists of them, sorted, markers left out."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Sequence
from urllib.parse import unquote

from ingest.errors import SourceError
from ingest.manifest.model import FileEntry
from ingest.spec import Source
from ingest.storage.failures import missing
from ingest.storage.filesystem import FileInfo, FileSystem, literal, open_filesystem

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
INDEX_SUFFIX = ".idx"
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
DIRECTORY_INTEGER = re.compile(r"-?[0-9]{1,18}")  # a hive key whose values all look so is an int64 column

_SHARD = r"-\d{5,}-of-\d{5,}"
_TFRECORD = re.compile(rf"(\.tfrecords?({_SHARD})?|\.tfrec|{_SHARD})(\.(gz|gzip|zlib|zz|z))?$", re.IGNORECASE)
_HIVE_DIRECTORY = re.compile(r"[^=./][^=/]*=[^/]*")
_DANGLING = "Fetch the file that it stands for, or remove the link"
_PARQUET_MAGIC = (b"PAR1", b"PARE")


def list_files(source: Source) -> tuple[FileEntry, ...]:
    """The data files of a source, sorted by their path relative to its root.

    The root is the deepest directory common to all paths given. In a directory or glob, names that begin with `_` or
    `.` (`_SUCCESS`, `_metadata`, anything under `_temporary/`), `.crc` files, files of zero bytes and record indices
    (`NAME.idx` or `STEM.idx` beside a file) are left out; `key=value` directories are hive partitions whatever their
    key. Where any name in the set is one of Parquet (.parquet, .parq, .pq) or TFRecord (.tfrecord, .tfrecords, .tfrec,
    NAME-00000-of-00100, also followed by .gz), only such names count, so that a README beside them is no data; else
    every file counts.

    Raises:
        SourceError: a path is missing, nothing is left to read, there are files of both formats, a file is a link to
            nothing, or a name is not UTF-8.
    """
    found: dict[str, tuple[FileInfo, bool]] = {}
    bases: list[str] = []
    indices: set[str] = set()
    for path in source.paths:
        filesystem = open_filesystem(path, source.storage)
        base, infos, beside, explicit = _expand(filesystem.canonical(path), filesystem, source.format)
        bases.append(base)
        indices |= beside
        for info in infos:
            found[info.url] = (info, explicit or found.get(info.url, (info, False))[1])
    root = _common(bases)
    sidecars = _sidecars(found, indices)
    used = set(sidecars.values())
    entries = [
        (FileEntry(path, info.url, info.size, info.etag, _partitions(path), sidecars.get(info.url)), explicit)
        for info, explicit in found.values()
        for path in (_relative(literal(info.url), literal(root)),)
        if explicit or info.url not in used
    ]
    kept = _data_files(entries, source.format)
    if not kept:
        raise missing(
            f"there is no data file under {', '.join(source.paths)}",
            source.paths[0],
            "Hidden files, files that begin with '_' and empty ones do not count",
        )
    kept.sort(key=lambda entry: (entry.path, entry.url))
    _check_names(kept, {info.url for info, _ in found.values() if info.dangling})
    return tuple(kept)


def _check_names(kept: Iterable[FileEntry], dangling: Collection[str]) -> None:
    """Refuse data that would be left out in silence, and names that no manifest can hold.

    Raises:
        SourceError: a file is a link to nothing, as git-annex leaves what was not fetched, or its name is not UTF-8.
    """
    for entry in kept:
        if entry.url in dangling:
            raise SourceError("it is a link, and what it leads to is not there", path=entry.url, hint=_DANGLING)
        try:
            entry.url.encode()
        except UnicodeEncodeError:
            shown = entry.url.encode(errors="backslashreplace").decode()
            raise SourceError(
                "its name is not UTF-8", path=shown, hint="Rename it, or leave it out by a glob"
            ) from None


def format_of(files: Sequence[FileEntry], source: Source) -> str:
    """`parquet` or `tfrecord`: what the spec says, or the names, or else the first bytes of the first file.

    Every file is looked at later, in parallel; one of another format is an error then.

    Raises:
        SourceError: neither.
    """
    if source.format != "auto":
        return source.format
    for known, is_one in _NAMED.items():
        if any(is_one(entry.path) for entry in files):
            return known
    first = next((entry for entry in files if entry.size), files[0])
    span = (0, min(64, first.size))
    head = bytes(open_filesystem(first.url, source.storage).read_ranges(first.url, [span], first.etag)[0])
    if head[:4] in _PARQUET_MAGIC:
        return "parquet"
    from ingest.manifest.stream import looks_like_tfrecord  # loads numba, of no use to Parquet

    if looks_like_tfrecord(head):
        return "tfrecord"
    raise SourceError(
        f"neither a Parquet file nor a TFRecord file: it begins with {head[:16]!r}",
        path=first.url,
        hint="source.path should lead to Parquet files or TFRecord files only",
    )


def seems_tfrecord(source: Source) -> bool:
    """Whether the spec alone suggests TFRecord, before anything is listed; only warming up goes by it."""
    if source.format != "auto":
        return source.format == "tfrecord"
    return bool(source.schema_) or any(_is_tfrecord(path) for path in source.paths)


def _expand(path: str, filesystem: FileSystem, file_format: str) -> tuple[str, list[FileInfo], set[str], bool]:
    """(base directory, files, URLs of indices, whether the user named the file itself) of one path as given."""
    info = None if path.endswith("/") else filesystem.info(path)
    if info is not None and info.size:
        return path.rpartition("/")[0], [info], _indices_beside(info, filesystem), True
    below = filesystem.walk(path)
    if info is not None and not below:  # some stores mark a directory by an empty object of its name
        if file_format == "tfrecord" or (file_format == "auto" and _is_tfrecord(path)):
            return path.rpartition("/")[0], [info], set(), True  # no records, which is as a writer leaves it
        raise SourceError("the file is empty (0 bytes)", path=path)
    if below or not re.search(r"[*?\[]", path):
        base = path.rstrip("/")
        if not below and not filesystem.is_directory(path):
            raise missing("no such file or directory", path)
        visible = [i for i in below if (i.size or i.dangling) and _visible(_relative(literal(i.url), literal(base)))]
        return base, visible, _indices(below), False
    base, pattern = _split_glob(path)
    allow_hidden = any(_hidden(part) for part in pattern.split("/"))
    match = re.compile(_glob_regex(pattern))
    names = [(item, _relative(literal(item.url), literal(base))) for item in filesystem.walk(base)]
    seen = [(item, name) for item, name in names if (item.size or item.dangling) and (allow_hidden or _visible(name))]
    matched = [item for item, name in seen if match.fullmatch(name)]
    if not matched:
        raise missing("no file matches the glob", path, f"{len(names)} files lie under {base}/")
    return base, matched, _indices(item for item, _ in names), False


def _indices(infos: Iterable[FileInfo]) -> set[str]:
    return {info.url for info in infos if info.url.endswith(INDEX_SUFFIX)}


def _indices_beside(info: FileInfo, filesystem: FileSystem) -> set[str]:
    """The record indices of a file that the user named, whose directory was not listed."""
    if _is_parquet(info.url):
        return set()
    return {name for name in _index_names(info.url) if filesystem.info(name) is not None}


def _index_names(url: str) -> list[str]:
    """Where the index of a file may lie: beside its whole name, or its name without the suffix."""
    folder, _, name = url.rpartition("/")
    stem = name.rpartition(".")[0]
    return [f"{url}{INDEX_SUFFIX}", *([f"{folder}/{stem}{INDEX_SUFFIX}"] if stem else [])]


def _sidecars(urls: Iterable[str], indices: set[str]) -> dict[str, str]:
    """File: its record index, for those that have one."""
    pairs = ((url, next((n for n in _index_names(url) if n in indices and n != url), None)) for url in urls)
    return {url: index for url, index in pairs if index is not None}


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
        end = pattern.find("]", i + (3 if pattern[i + 1 : i + 2] in ("!", "^") else 2)) if char == "[" else -1
        if end > 0:
            out, i = out + _one_of(pattern[i + 1 : end]), end + 1
            continue
        out += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
        i += 1
    return out


def _one_of(characters: str) -> str:
    """What is between a glob's square brackets as a regular expression; never a slash."""
    inside = "!" + characters[1:] if characters[0] == "^" else characters
    return "(?!/)" + fnmatch.translate(f"[{inside}]").rpartition(")")[0] + ")"  # without the end that it asks for


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


def _data_files(entries: list[tuple[FileEntry, bool]], file_format: str) -> list[FileEntry]:
    """Those named as data where any is, and those that the user named; else all.

    Raises:
        SourceError: there are names of both formats, and the spec does not say which.
    """
    named = {known: [e for e, _ in entries if is_one(e.path)] for known, is_one in _NAMED.items()}
    parquet, tfrecord = named["parquet"], named["tfrecord"]
    if file_format == "auto" and parquet and tfrecord:
        raise SourceError(
            f"there are both Parquet files ({parquet[0].path}) and TFRecord files ({tfrecord[0].path})",
            path=min(parquet[0].url, tfrecord[0].url),
            hint="Say which in source.format, or give a glob that matches one kind",
        )
    wanted = file_format if file_format != "auto" else "parquet" if parquet else "tfrecord"
    if not named[wanted]:
        return [entry for entry, _ in entries]
    return [entry for entry, explicit in entries if explicit or _NAMED[wanted](entry.path)]


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(PARQUET_SUFFIXES)


def _is_tfrecord(path: str) -> bool:
    return _TFRECORD.search(path.rpartition("/")[2]) is not None and not _is_parquet(path)


_NAMED = {"parquet": _is_parquet, "tfrecord": _is_tfrecord}
