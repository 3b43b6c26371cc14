# SPDX-License-Identifier: Apache-2.0

"""Writes small Parquet files as users have them, each with its rows in JSON Lines beside it.

Made with pyarrow 25.0.1, pandas 3.1.1, datasets 5.2.0, polars 2.1.0, duckdb 2.0.1. Run it here: python golden.py
"""

import datetime
import json
import math

import datasets
import duckdb
import numpy
import pandas
import polars
import pyarrow
import pyarrow.parquet

TEXTS = ["", "Zürich", "a \"quoted\"\ttext\n\\", "日本語 🙂", "\x00\x1f\x7f", "long " * 40]


def simple(value):
    """The value as JSON has it here."""
    if isinstance(value, dict):
        return {k: simple(v) for k, v in value.items()}
    if isinstance(value, (list, numpy.ndarray)):
        return [simple(v) for v in value]
    if isinstance(value, datetime.datetime):
        text = value.strftime("%Y-%m-%dT%H:%M:%S")
        if value.microsecond:
            text += (".%06d" % value.microsecond).rstrip("0")
        return text + ("Z" if value.tzinfo else "")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("nan", "NaN").replace("inf", "Infinity")
    return value


def expect(name, skip=()):
    """Writes what pyarrow reads in the file."""
    with open(name + ".jsonl", "w") as out:
        for row in pyarrow.parquet.ParquetFile(name + ".parquet").read().to_pylist():
            row = {k: v for k, v in row.items() if k not in skip}
            out.write(json.dumps(simple(row), ensure_ascii=False) + "\n")


def chats(n):
    return [
        {
            "messages": None if i % 7 == 3 else [
                {"role": "user" if k % 2 == 0 else "assistant", "content": f"{TEXTS[(i + k) % 6]} {i}"}
                for k in range(i % 4)
            ],
            "source": None if i % 5 == 4 else "set " + "ab"[i % 2],
            "score": i / 3,
        }
        for i in range(n)
    ]


def nested(n):
    return [
        {
            "id": i,
            "tags": None if i % 6 == 5 else [None if k == 2 else f"t{k}" for k in range(i % 5)],
            "deep": [[{"x": k, "y": None if k % 2 else [k, None]} for k in range(j)] for j in range(i % 3)],
            "inner": None if i % 4 == 1 else {"a": None if i % 8 == 2 else {"b": i, "c": [float(i)]}, "t": TEXTS[i % 6]},
        }
        for i in range(n)
    ]


NESTED = pyarrow.schema([
    ("id", pyarrow.int32()),
    ("tags", pyarrow.list_(pyarrow.string())),
    ("deep", pyarrow.list_(pyarrow.list_(pyarrow.struct([("x", pyarrow.int64()), ("y", pyarrow.list_(pyarrow.int8()))])))),
    ("inner", pyarrow.struct([
        ("a", pyarrow.struct([("b", pyarrow.uint64()), ("c", pyarrow.list_(pyarrow.float32()))])),
        ("t", pyarrow.string())])),
])


def scalars(n):
    day = datetime.date(1999, 12, 30)
    at = datetime.datetime(1969, 12, 31, 23, 59, 58, 250000)
    return pyarrow.table({
        "bool": pyarrow.array([None if i % 5 == 1 else i % 3 == 0 for i in range(n)]),
        "int8": pyarrow.array([i % 100 - 50 for i in range(n)], pyarrow.int8()),
        "uint32": pyarrow.array([2**32 - 1 - i for i in range(n)], pyarrow.uint32()),
        "int64": pyarrow.array([(-1) ** i * (2**63 - 1 - i) for i in range(n)], pyarrow.int64()),
        "uint64": pyarrow.array([2**64 - 1 - i for i in range(n)], pyarrow.uint64()),
        "float": pyarrow.array([i / 7 for i in range(n)], pyarrow.float32()),
        "double": pyarrow.array([[math.nan, math.inf, -math.inf, 1e300, 0.1][i % 5] for i in range(n)]),
        "date": pyarrow.array([day + datetime.timedelta(i) for i in range(n)]),
        "ms": pyarrow.array([at + datetime.timedelta(i) for i in range(n)], pyarrow.timestamp("ms", "UTC")),
        "us": pyarrow.array([at + datetime.timedelta(0, 0, i) for i in range(n)], pyarrow.timestamp("us")),
        "text": pyarrow.array([None if i % 4 == 2 else TEXTS[i % 6] + "x" * (i % 3) for i in range(n)]),
        "same": pyarrow.array(["always the same"] * n),
        "none": pyarrow.nulls(n),
        "large": pyarrow.array([f"number {i:05}" for i in range(n)], pyarrow.large_string()),
    })


def main():
    datasets.Dataset.from_list(chats(40)).to_parquet("datasets.parquet")
    expect("datasets")

    frame = pandas.DataFrame({"text": TEXTS * 3, "label": [0, 1, 2] * 6, "weight": [0.5, math.nan, 2] * 6})
    frame[frame.label != 1].to_parquet("pandas.parquet")
    expect("pandas")

    polars.DataFrame(chats(30)).write_parquet("polars.parquet", row_group_size=11)
    expect("polars")

    rows = pyarrow.Table.from_pylist(nested(24), NESTED)  # noqa: F841: duckdb finds it by its name
    duckdb.sql("COPY (SELECT * FROM rows) TO 'duckdb.parquet' (FORMAT parquet, PARQUET_VERSION V2)")
    expect("duckdb")

    pyarrow.parquet.write_table(rows, "nested.parquet", compression="gzip", row_group_size=10, data_page_size=64,
                                data_page_version="2.0", write_page_checksum=True)
    expect("nested")

    for name, options in {
        "plain": dict(compression="none", use_dictionary=False, data_page_size=200, write_batch_size=16),
        "zstd": dict(compression="zstd", data_page_version="2.0", dictionary_pagesize_limit=100, write_batch_size=16,
                     data_page_size=200),
        "delta": dict(compression="snappy", use_dictionary=False, data_page_version="2.0", row_group_size=70,
                      column_encoding={
                          "int8": "DELTA_BINARY_PACKED", "uint32": "DELTA_BINARY_PACKED",
                          "int64": "DELTA_BINARY_PACKED", "uint64": "BYTE_STREAM_SPLIT", "bool": "RLE",
                          "float": "BYTE_STREAM_SPLIT", "double": "BYTE_STREAM_SPLIT",
                          "text": "DELTA_LENGTH_BYTE_ARRAY", "same": "DELTA_BYTE_ARRAY", "large": "DELTA_BYTE_ARRAY",
                      }),
    }.items():
        pyarrow.parquet.write_table(scalars(150), name + ".parquet", store_schema=False, **options)
        expect(name)

    pyarrow.parquet.write_table(pyarrow.table({
        "text": ["a", "b"],
        "raw": [b"\xff", None],
        "image": [{"bytes": b"\xff", "path": "a.png"}, {"bytes": None, "path": None}],
        "price": pyarrow.array([1, 2], pyarrow.decimal128(9, 2)),
        "pairs": pyarrow.array([[("k", 1)], []], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        "at": pyarrow.array([1, 2], pyarrow.time32("ms")),
    }), "unread.parquet", store_schema=False, compression="none", write_page_checksum=True)
    with open("unread.jsonl", "w") as out:
        out.write('{"text": "a", "image": {"path": "a.png"}}\n{"text": "b", "image": {"path": null}}\n')
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"] * 50}), "brotli.parquet", compression="brotli")
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), "empty.parquet")


main()
