"""The PyTorch side of bench/mesh: training steps of the same GPT-2 on one thread, alone, as a rank of a pipeline of torch.distributed.pipelining over gloo, or
with matrices that are DTensors.

bench/mesh starts it. By hand, for two ranks:

    export BENCH_WORKER='{"Contender":"torch-1f1b","Layers":12,"Width":768,"Heads":12,"Vocabulary":50257,"Batch":1,"Block":64,"MicroBatches":8,
        "Ranks":2,"Steps":2,"Split":[9,5]}'
    yes '' | OMP_NUM_THREADS=1 torchrun --nproc_per_node 2 bench/mesh/peer/mesh.py

Settings come in BENCH_WORKER as JSON; "ready" is printed after warming up, a line is awaited, and a list of one report is printed at the end, in JSON.
"""

import json
import os
import pathlib
import resource
import sys
import time
import warnings

warnings.filterwarnings("ignore")
import torch  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import gpt2_stages  # noqa: E402
import tensor  # noqa: E402

s = json.loads(os.environ["BENCH_WORKER"])
torch.set_num_threads(1)
torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(n_layer=s["Layers"], n_embd=s["Width"], n_head=s["Heads"], vocab_size=s["Vocabulary"], n_positions=s["Block"], resid_pdrop=0,
                                   embd_pdrop=0, attn_pdrop=0, use_cache=False))
m, name = s["MicroBatches"], s["Contender"].removeprefix("torch-")
pipeline = name not in ("one", "tp")
params = list(model.parameters())
if name == "tp":
    torch.distributed.init_process_group("gloo")
    model = tensor.divided(s)
    params = tensor.groups(model)
if pipeline:
    torch.distributed.init_process_group("gloo")
    run, stages = gpt2_stages.schedule(name, model, s["Split"], torch.distributed.get_rank(), s["Ranks"], m)
    params = list(dict.fromkeys(p for stage in stages for p in stage.submod.parameters()))
optimizer = torch.optim.AdamW(params, lr=1e-4, weight_decay=0.01, fused=True)
ids = (torch.arange(m * s["Batch"] * s["Block"]) * 7919 % s["Vocabulary"]).reshape(m * s["Batch"], s["Block"])


def step():
    if pipeline:
        losses = gpt2_stages.step(run, stages, ids)
        gpt2_stages.tie(model, stages)
    elif name == "tp":
        losses = [tensor.step(model, part, m) for part in ids.chunk(m)]
    else:
        losses = []
        for part in ids.chunk(m):
            loss = gpt2_stages.loss(model(part).logits, part)
            (loss / m).backward()
            losses.append(loss.item())
    optimizer.step()
    optimizer.zero_grad()
    return sum(losses) / m if losses else 0


def cpu():
    u = resource.getrusage(resource.RUSAGE_SELF)
    return u.ru_utime + u.ru_stime


for _ in range(2):
    step()
print("ready", flush=True)
sys.stdin.readline()
if name != "one":
    torch.distributed.barrier()
seconds, used = [], cpu()
for _ in range(s["Steps"]):
    start = time.perf_counter()
    loss = step()
    seconds.append(time.perf_counter() - start)
print(json.dumps([{"Seconds": seconds, "CPU": (cpu() - used) / s["Steps"], "Loss": loss}]), flush=True)
if name != "one":
    torch.distributed.destroy_process_group()
