"""The protobuf wire format of tf.Example, walked by compiled kernels: bytes in, flat columns out, never out of bounds.

Importing it takes numba in and defines the kernels; `ingest.read.kernels` does it at the right time and place. All that
a kernel calls stands in this folder, whose modules `ingest.jit.kernel` looks at: a helper changed elsewhere would go
unnoticed, and what was compiled before would run.

What is valid, and what it means, is what protobuf's own parser says of it (`tf.train.Example.FromString`): the last
entry of a map key counts, a repeated message is merged, setting another member of a oneof clears the first, tags and
lengths take at most 5 bytes, values at most 10, groups nest at most 100 deep, keys are UTF-8. Kernels index with
int64, return codes instead of raising, and check each length against the message around it before they use it.
"""

from ingest.read.wire.arrays import Columns, Faults, Found, Names, Seen, Wanted
from ingest.read.wire.codes import (
    BAD_FLOATS,
    BAD_GROUP,
    BAD_KEY,
    BAD_TAG,
    BYTES,
    CUT,
    FLOAT,
    INT64,
    KIND,
    KIND_NAMES,
    LENGTH,
    LONG_VARINT,
    MISSING,
    NAMES,
    OK,
    ROOM,
    SEQUENCE,
)
from ingest.read.wire.names import learn_names
from ingest.read.wire.parse import parse_records
from ingest.read.wire.survey import survey_records

__all__ = [
    "BAD_FLOATS",
    "BAD_GROUP",
    "BAD_KEY",
    "BAD_TAG",
    "BYTES",
    "CUT",
    "FLOAT",
    "INT64",
    "KIND",
    "KIND_NAMES",
    "LENGTH",
    "LONG_VARINT",
    "MISSING",
    "NAMES",
    "OK",
    "ROOM",
    "SEQUENCE",
    "Columns",
    "Faults",
    "Found",
    "Names",
    "Seen",
    "Wanted",
    "learn_names",
    "parse_records",
    "survey_records",
]
