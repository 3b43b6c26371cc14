# SPDX-License-Identifier: Apache-2.0
"""transformers' side of bench/load. Usage: peer.py FOLDER [THREADS]"""
import os
import sys
import time

os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HF_HUB_OFFLINE"] = "", "1"
import torch
from transformers import LlamaForCausalLM

torch.set_num_threads(int((sys.argv + ["2"])[2]))


def processor():
    return sum(os.times()[:2])


def resident(name):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(name))


before, start, used = resident("VmRSS"), time.perf_counter(), processor()
model = LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
loaded, used_loaded = time.perf_counter() - start, processor() - used
with torch.no_grad():
    model(torch.arange(16)[None])
print(f"load {loaded:.3f} s (processor {used_loaded:.2f}), with a pass {time.perf_counter() - start:.3f} s "
      f"(processor {processor() - used:.2f}), resident: before {before} kB, peak {resident('VmHWM')} kB")
