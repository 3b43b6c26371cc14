# SPDX-License-Identifier: Apache-2.0

"""Records the order in which datasets 5.2.0 interleaves iterable datasets in turn, into interleave.json.

Run it as: python interleave.py > interleave.json
"""

import json

import datasets

cases = []
for sizes in [(2, 5, 3), (1, 4), (3,), (4, 1, 1, 2)]:
    for strategy in ["first_exhausted", "all_exhausted", "all_exhausted_without_replacement"]:
        sets = [
            datasets.Dataset.from_list([{"x": 100 * i + k} for k in range(n)]).to_iterable_dataset()
            for i, n in enumerate(sizes)
        ]
        mixed = datasets.interleave_datasets(sets, stopping_strategy=strategy)
        cases.append({"sizes": sizes, "strategy": strategy, "order": [row["x"] for row in mixed]})
print("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]")
