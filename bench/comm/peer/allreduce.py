"""All-reduce of float32 with PyTorch's gloo backend: checks the sum once, then times sums of zeros in place, each after a barrier."""
import json
import os
import time

import torch
import torch.distributed as dist

WARM_UPS = 5
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
n = int(os.environ["BENCH_BYTES"]) // 4
pattern = (torch.arange(n) % 1000).float()
data = (rank + 1) * pattern
dist.all_reduce(data)
assert torch.equal(data, size * (size + 1) // 2 * pattern)
data.zero_()
seconds = []
for i in range(WARM_UPS + int(os.environ["BENCH_ITERATIONS"])):
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(data)
    if i >= WARM_UPS:
        seconds.append(time.perf_counter() - start)
if rank == 0:
    print(json.dumps({"path": f"PyTorch {torch.__version__}, gloo over loopback", "seconds": seconds}))
dist.destroy_process_group()
