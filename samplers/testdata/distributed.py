# SPDX-License-Identifier: Apache-2.0

"""Records the indices of torch's DistributedSampler and of transformers' samplers into distributed.json.

Recorded with torch 2.12.1 and transformers 5.24.0. Run it as: python distributed.py > distributed.json
"""

import hashlib
import itertools
import json

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler
from transformers.trainer_pt_utils import DistributedLengthGroupedSampler, IterableDatasetShard, LengthGroupedSampler

rows = {"distributed": [], "large": [], "loaders": [], "lengths": [], "shards": []}


def sampler(n, ranks, rank, shuffle, seed, drop):
    return DistributedSampler(range(n), num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop)


def epochs(s, n):
    out = []
    for epoch in range(n):
        s.set_epoch(epoch)
        out.append(list(s))
    return out


for n, ranks, shuffle, drop in itertools.product([1, 2, 3, 7, 8, 31, 100], [1, 2, 3, 8], [False, True], [False, True]):
    seed = n * 7 + ranks
    rows["distributed"].append({
        "samples": n, "ranks": ranks, "shuffle": shuffle, "drop_last": drop, "seed": seed,
        "ranks_epochs": [epochs(sampler(n, ranks, r, shuffle, seed, drop), 3 if shuffle else 1) for r in range(ranks)],
    })

# Many samples, and seeds of 64 bits: the indices' SHA-256 as int64, little-endian, and the first ones.
for n, seed, epoch in [(1000, 0, 0), (50257, 42, 1), (1000003, 1 << 31, 2), (4096, (1 << 32) + 5, 0), (4096, 2**63 - 9, 4)]:
    s = sampler(n, 1, 0, True, seed, False)
    s.set_epoch(epoch)
    indices = torch.tensor(list(s))
    digest = hashlib.sha256(indices.numpy().tobytes()).hexdigest()
    rows["large"].append({"samples": n, "seed": seed, "epoch": epoch, "first": indices[:8].tolist(), "sha256": digest})

# What each rank of a program with DistributedSampler and DataLoader sees.
for n, ranks, size, drop in itertools.product([5, 11, 24, 37], [2, 3, 4], [1, 3, 4], [False, True]):
    batches = []
    for rank in range(ranks):
        s = sampler(n, ranks, rank, True, 3, False)
        loader = DataLoader(range(n), batch_size=size, sampler=s, drop_last=drop)
        batches.append([])
        for epoch in range(2):
            s.set_epoch(epoch)
            batches[rank].append([b.tolist() for b in loader])
    rows["loaders"].append({"samples": n, "ranks": ranks, "batch_size": size, "drop_last": drop, "batches": batches})

for n, size in itertools.product([1, 5, 40, 130], [1, 3, 8]):
    g = torch.Generator()
    g.manual_seed(n + size)
    lengths = [(i * i * 31 + i * 7) % 23 + 1 for i in range(n)]
    grouped = LengthGroupedSampler(size, lengths=lengths, generator=g)
    c = {"batch_size": size, "lengths": lengths, "seed": n + size}
    c["epochs"] = [list(grouped) for _ in range(3)]
    c["distributed"] = [
        epochs(DistributedLengthGroupedSampler(size, num_replicas=2, rank=r, seed=c["seed"], lengths=lengths), 2)
        for r in range(2)
    ]
    rows["lengths"].append(c)


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


for n, ranks, size, drop in itertools.product([0, 1, 5, 12, 22], [1, 2, 3], [1, 4], [False, True]):
    shards = [
        list(IterableDatasetShard(Stream(n), batch_size=size, drop_last=drop, num_processes=ranks, process_index=r))
        for r in range(ranks)
    ]
    rows["shards"].append({"samples": n, "ranks": ranks, "batch_size": size, "drop_last": drop, "shards": shards})

body = ",\n".join(
    json.dumps(k) + ": [\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in v) + "\n]" for k, v in rows.items()
)
print("{" + body + "}")
