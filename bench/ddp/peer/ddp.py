"""The PyTorch side of bench/ddp: training steps of the same GPT-2 on one thread, alone or as a rank of DistributedDataParallel or fully_shard over gloo, or of DeepSpeed's
stage 3.

Settings come in BENCH_WORKER as JSON; "ready" is printed after warming up, a line is awaited, and a list of one report is printed at the end, in JSON.
"""

import json
import os
import resource
import sys
import time

if "deepspeed" in os.environ["BENCH_WORKER"]:
    os.environ["DS_ACCELERATOR"] = "cpu"  # before it is imported
    os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]  # all are on this host: its shared memory
import torch
from transformers import GPT2Config, GPT2LMHeadModel

WARM_UPS = 3
s = json.loads(os.environ["BENCH_WORKER"])
torch.set_num_threads(1)
torch.manual_seed(1)
ddp, fsdp = s["Contender"] == "torch-ddp", s["Contender"] == "torch-fsdp2"
deepspeed3 = s["Contender"] == "torch-deepspeed3"
config = GPT2Config(n_layer=s["Layers"], n_embd=s["Width"], n_head=s["Heads"], vocab_size=s["Vocabulary"], n_positions=s["Block"], resid_pdrop=0, embd_pdrop=0,
                    attn_pdrop=0, use_cache=False)
model = GPT2LMHeadModel(config)  # its attention is scaled_dot_product_attention
trained = model
if ddp:
    torch.distributed.init_process_group("gloo")
    trained = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=s["BucketMB"], gradient_as_bucket_view=True)
    if s["Hook"] == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        trained.register_comm_hook(None, bf16_compress_hook)
if fsdp:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (s["Ranks"],))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if s["BF16"] else MixedPrecisionPolicy()
    for block in model.transformer.h:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=not fsdp)
if deepspeed3:
    import contextlib

    import deepspeed

    with contextlib.redirect_stdout(sys.stderr):
        deepspeed.init_distributed(dist_backend="gloo", verbose=False)
        trained, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config={
            "train_micro_batch_size_per_gpu": s["Batch"], "zero_optimization": {"stage": 3}, "gradient_clipping": 1.0, "zero_allow_untested_optimizer": True,
            "steps_per_print": 1 << 30, "bf16": {"enabled": s["BF16"]}})
ids = ((torch.arange(s["Batch"] * s["Block"]) + s["Rank"]) * 7919 % s["Vocabulary"]).reshape(s["Batch"], s["Block"])


def step():
    if deepspeed3:
        trained.backward(trained(input_ids=ids, labels=ids).loss)
        trained.step()  # clips, and forgets the gradients
        return
    with torch.autocast("cpu", torch.bfloat16, enabled=s["BF16"] and not fsdp):
        loss = trained(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=not ddp)


def memory():
    pss = next(int(line.split()[1]) << 10 for line in open("/proc/self/smaps_rollup") if line.startswith("Pss:"))
    return pss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


for _ in range(WARM_UPS):
    step()
print("ready", flush=True)
sys.stdin.readline()
if ddp or fsdp or deepspeed3:
    torch.distributed.barrier()
seconds, used = [], cpu()
for _ in range(s["Steps"]):
    start = time.perf_counter()
    step()
    seconds.append(time.perf_counter() - start)
used = (cpu() - used) / s["Steps"]
pss, peak = memory()
print(json.dumps([{"Seconds": seconds, "CPU": used, "PSS": pss, "Peak": peak}]), flush=True)
if ddp or fsdp or deepspeed3:
    torch.distributed.destroy_process_group()
