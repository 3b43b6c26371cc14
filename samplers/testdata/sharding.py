# SPDX-License-Identifier: Apache-2.0

"""Records which samples each rank of accelerate 1.15.0 (torch 2.15.0) sees in an epoch, into sharding.json.

For datasets with a length these are the batches of the loader that accelerate.prepare makes (BatchSamplerShard), from
the epoch's beginning and from batches in its middle on (skip_first_batches); for iterable ones those of
IterableDatasetShard. Run it as: python sharding.py > sharding.json
"""

import itertools
import json

from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Sized(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def loader(dataset, c, rank):
    plain = DataLoader(dataset, batch_size=c["batch_size"], shuffle=False, drop_last=c["drop_last"])
    return prepare_data_loader(
        plain, num_processes=c["ranks"], process_index=rank, split_batches=c["split_batches"], put_on_device=False,
        rng_types=None, dispatch_batches=False, even_batches=c["even_batches"],
    )


def batches(loader):
    return [b.tolist() for b in loader]


def ranks(c, kind, skip):
    out = []
    for rank in range(c["ranks"]):
        l = loader(kind(c["samples"]), c, rank)
        out.append(batches(skip_first_batches(l, skip) if skip else l))
    return out


rows = []
for ranks_, size, n, split, even, drop in itertools.product(
    [1, 2, 4], [4, 8], [3, 8, 21, 22, 31, 32, 37], [False, True], [True, False], [False, True]
):
    c = {"ranks": ranks_, "batch_size": size, "samples": n, "split_batches": split, "even_batches": even, "drop_last": drop}
    rows.append(c | {"iterable": False, "skip": 0, "batches": ranks(c, Sized, 0)})
    if n == 37 and size == 4:
        rows.append(c | {"iterable": False, "skip": 2, "batches": ranks(c, Sized, 2)})
    if even:
        rows.append(c | {"iterable": True, "skip": 0, "batches": ranks(c, Stream, 0)})
print("[" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "]")
