"""tf.Example records for tests: protobuf's own parser as the judge, and pieces of the wire format to build by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ingest.read.feature import varint

KIND_FIELDS = {"bytes": 1, "float": 2, "int64": 3}


def _example_class():
    """The messages of tensorflow/core/example, defined here so that no TensorFlow is needed."""
    file = descriptor_pb2.FileDescriptorProto(
        name="ingest_tests/example.proto", package="ingest_tests", syntax="proto3"
    )
    field = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields, into=file.message_type):
        made = into.add(name=name)
        for number, (label, kind, field_name) in enumerate(fields, 1):
            one = made.field.add(name=field_name, number=number, label=field.LABEL_REPEATED if label else 1)
            if isinstance(kind, str):
                one.type, one.type_name = field.TYPE_MESSAGE, f".ingest_tests.{kind}"
            else:
                one.type = kind
        return made

    message("BytesList", (True, field.TYPE_BYTES, "value"))
    message("FloatList", (True, field.TYPE_FLOAT, "value"))
    message("Int64List", (True, field.TYPE_INT64, "value"))
    feature = message(
        "Feature", *((False, f"{name}List", f"{name.lower()}_list") for name in ("Bytes", "Float", "Int64"))
    )
    feature.oneof_decl.add(name="kind")
    for one in feature.field:
        one.oneof_index = 0
    features = message("Features", (True, "Features.FeatureEntry", "feature"))
    entry = message(
        "FeatureEntry", (False, field.TYPE_STRING, "key"), (False, "Feature", "value"), into=features.nested_type
    )
    entry.options.map_entry = True
    message("Example", (False, "Features", "features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("ingest_tests.Example"))


Example = _example_class()


def protobuf_reads(record: bytes) -> dict[str, tuple[str, list]]:
    """Name: (kind or '', values), as protobuf reads a record.

    Raises:
        google.protobuf.message.DecodeError: it refuses the record.
    """
    read = {}
    for name, feature in Example.FromString(record).features.feature.items():
        kind = feature.WhichOneof("kind")
        read[name] = (kind.removesuffix("_list"), list(getattr(feature, kind).value)) if kind else ("", [])
    return read


def field(number: int, body: bytes) -> bytes:
    """A field with a length."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def feature(kind: str, body: bytes) -> bytes:
    """A Feature around the body of its list."""
    return field(KIND_FIELDS[kind], body)


def ints(*values: int) -> bytes:
    return feature("int64", field(1, b"".join(map(varint, values))))


def unpacked_ints(*values: int) -> bytes:
    return feature("int64", b"".join(b"\x08" + varint(value) for value in values))


def floats(*values: float) -> bytes:
    return feature("float", field(1, np.array(values, "<f4").tobytes()))


def unpacked_floats(*values: float) -> bytes:
    return feature("float", b"".join(b"\x0d" + np.float32(value).tobytes() for value in values))


def strings(*values: bytes) -> bytes:
    return feature("bytes", b"".join(field(1, value) for value in values))


def entry(name: bytes, *values: bytes) -> bytes:
    """A map entry, with any number of values."""
    return field(1, field(1, name) + b"".join(field(2, value) for value in values))


def example(*entries: bytes) -> bytes:
    return field(1, b"".join(entries))


def extents(records: Sequence[bytes], gap: bytes = b"") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(data, starts, stops) of records laid out with `gap` before each."""
    data = b"".join(gap + record for record in records)
    stops = np.cumsum([len(gap) + len(record) for record in records], dtype=np.int64)
    starts = stops - np.array([len(record) for record in records], np.int64)
    return np.frombuffer(data, np.uint8), starts, stops
