"""Where a training job stands, kept at any URL: the loaders' state (the same on all ranks) and the parameters."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from ingest.errors import StateError
from ingest.spec import Spec, Storage
from ingest.storage.filesystem import read_file, split_url, write_file
from jobs.models import Parameters

State = dict[str, Any]


def pack(state: State, parameters: Parameters) -> bytes:
    """Both as the bytes of one file."""
    arrays: dict[str, Any] = {f"p{i}": array for i, array in enumerate(parameters)}
    out = io.BytesIO()
    np.savez(out, ingest=np.array(json.dumps(state)), **arrays)
    return out.getvalue()


def unpack(data: bytes, url: str) -> tuple[State, Parameters]:
    """What `pack` made; nothing in it is ever run.

    Raises:
        StateError: it is something else.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            parameters = [file[f"p{i}"] for i in range(len(file.files) - 1)]
            return json.loads(str(file["ingest"])), parameters
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StateError("not a state of this job", path=url, cause=str(error)) from error


class Store:
    """The state file of a run.

    Args:
        url: of the file; None keeps nothing.
        spec: whose storage options hold for it too, where it lies in a store of the same kind as the data.
    """

    def __init__(self, url: str | None, spec: Spec) -> None:
        self.url = str(Path(url).expanduser()) if url and url.startswith("~") else url
        scheme = None if url is None else split_url(url)[0]
        same = [source for source in spec.inputs if split_url(source.paths[0])[0] == scheme != "file"]
        self.storage = same[0].storage if same else Storage()

    def save(self, state: State, parameters: Parameters) -> None:
        """Put it in place of the one before; the file is whole at any time."""
        if self.url is not None:
            write_file(self.url, pack(state, parameters), self.storage)

    def load(self) -> tuple[State | None, Parameters | None]:
        """What was saved last; nothing where there is no such file yet.

        Raises:
            StateError: the file is something else.
            SourceError: it cannot be reached.
        """
        if self.url is None:
            return None, None
        data = read_file(self.url, self.storage)
        return (None, None) if data is None else unpack(data, self.url)
