# SPDX-License-Identifier: Apache-2.0
"""Packs rows of random lengths with TRL's pack_dataset: pack.json.

    python3 data/chat/testdata/pack.py
"""
import json
import pathlib
import random

import datasets
import trl
from trl.data_utils import pack_dataset

HERE = pathlib.Path(__file__).parent
random.seed(0)
cases = []
for strategy in ("bfd", "bfd_split", "wrapped"):
    for n, most, length in ((30, 12, 8), (200, 40, 64), (1100, 9, 32)):
        lengths = [random.randrange(0 if n < 1000 else 1, most) for _ in range(n)]
        # A token is the number of its row, so that packed rows say what they were made of.
        ids = [[i] * k for i, k in enumerate(lengths)]
        packed = pack_dataset(datasets.Dataset.from_dict({"input_ids": ids, "labels": ids}), length, strategy)
        rows = [[[i for at, i in enumerate(row) if at == 0 or row[at - 1] != i],
                 [sum(1 for j in row if j == i) for i in dict.fromkeys(row)]] for row in packed["input_ids"]]
        cases.append({"strategy": strategy, "length": length, "lengths": lengths, "rows": rows})
text = json.dumps({"trl": trl.__version__, "cases": cases}, separators=(",", ":"))
(HERE / "pack.json").write_text(text + "\n")
