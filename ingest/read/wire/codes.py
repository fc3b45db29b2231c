"""What a kernel says of a record, and the kinds of values, by their numbers."""

from __future__ import annotations

# What a kernel says of a record.
OK = 0
CUT = 1  # a field runs past the end of the message that holds it
LONG_VARINT = 2  # a varint of more than 10 bytes; a tag or a length of more than 5, or too large
BAD_TAG = 3  # field number 0, wire type 6 or 7, or the end of a group that was not begun
BAD_GROUP = 4  # a group ends as another, or nests too deep
BAD_KEY = 5  # a feature's name is not UTF-8
KIND = 6  # a feature holds another kind than was asked; detail: the kind it holds
LENGTH = 7  # a feature of fixed shape has another number of values; detail: how many
MISSING = 8  # a required feature is not there
BAD_FLOATS = 9  # packed floats whose bytes are no multiple of 4
SEQUENCE = 10  # a SequenceExample
ROOM = 11  # not the record's fault: the columns have no room left
NAMES = 12  # not the record's fault: the table of names is full

BYTES, FLOAT, INT64 = 1, 2, 3  # field numbers of Feature's oneof
KIND_NAMES = ("", "bytes", "float", "int64")
