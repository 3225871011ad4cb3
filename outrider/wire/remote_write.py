"""Protobuf messages of Prometheus remote write 1.0 and 2.0, described to the protobuf runtime.

The fields are those of ``prompb/remote.proto``, ``prompb/types.proto`` and ``io/prometheus/write/v2/types.proto`` of
the Prometheus project (Apache-2.0), as published in the remote-write specifications. No package on the index has these
messages. A field table needs no generated code, which would depend on a protobuf release.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPE = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "double": _TYPE.TYPE_DOUBLE,
    "int64": _TYPE.TYPE_INT64,
    "uint64": _TYPE.TYPE_UINT64,
    "uint32": _TYPE.TYPE_UINT32,
    "sint32": _TYPE.TYPE_SINT32,
    "sint64": _TYPE.TYPE_SINT64,
    "int32": _TYPE.TYPE_INT32,  # enumerations too: their values are not used
    "string": _TYPE.TYPE_STRING,
}
_Fields = Mapping[str, tuple[int, str]]

_SPAN: _Fields = {"offset": (1, "sint32"), "length": (2, "uint32")}
_HISTOGRAM: _Fields = {
    "count_int": (1, "uint64"),
    "count_float": (2, "double"),
    "sum": (3, "double"),
    "schema": (4, "sint32"),
    "zero_threshold": (5, "double"),
    "zero_count_int": (6, "uint64"),
    "zero_count_float": (7, "double"),
    "negative_spans": (8, "*BucketSpan"),
    "negative_deltas": (9, "*sint64"),
    "negative_counts": (10, "*double"),
    "positive_spans": (11, "*BucketSpan"),
    "positive_deltas": (12, "*sint64"),
    "positive_counts": (13, "*double"),
    "reset_hint": (14, "int32"),
    "timestamp": (15, "int64"),
    "custom_values": (16, "*double"),
}
_V1: Mapping[str, _Fields] = {
    "Label": {"name": (1, "string"), "value": (2, "string")},
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64")},
    "BucketSpan": _SPAN,
    "Histogram": _HISTOGRAM,
    # exemplars (3) are not read: undeclared fields are skipped
    "TimeSeries": {"labels": (1, "*Label"), "samples": (2, "*Sample"), "histograms": (4, "*Histogram")},
    "WriteRequest": {"timeseries": (1, "*TimeSeries")},
}
_V2: Mapping[str, _Fields] = {
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64")},
    "BucketSpan": _SPAN,
    "Histogram": _HISTOGRAM,
    "TimeSeries": {"labels_refs": (1, "*uint32"), "samples": (2, "*Sample"), "histograms": (3, "*Histogram")},
    "Request": {"symbols": (4, "*string"), "timeseries": (5, "*TimeSeries")},
}


def _message(package: str, messages: Mapping[str, _Fields], wanted: str) -> Any:
    """The class of one message, in a separate pool: another library may declare the same names."""
    file = descriptor_pb2.FileDescriptorProto(name=f"outrider/{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            plain = kind.removeprefix("*")
            entry = message.field.add(name=field, number=number)
            entry.label = _TYPE.LABEL_REPEATED if kind.startswith("*") else _TYPE.LABEL_OPTIONAL
            entry.type = _SCALARS.get(plain, _TYPE.TYPE_MESSAGE)
            if plain not in _SCALARS:
                entry.type_name = f".{package}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{wanted}"))


WriteRequest = _message("prometheus", _V1, "WriteRequest")
Request = _message("io.prometheus.write.v2", _V2, "Request")
Status = _message("google.rpc", {"Status": {"code": (1, "int32"), "message": (2, "string")}}, "Status")
"""Status message of an OTLP receiver for a rejected request."""
