# SPDX-License-Identifier: Apache-2.0
"""transformers' side of bench/families. Usage: peer.py CONFIG BATCH TOKENS THREADS. Each line on the standard input asks for a training step; the answer is the
seconds that it took. Settings are PyTorch's best: fused AdamW, and memory that malloc keeps (see main.go).
"""
import json
import os
import sys
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch
import transformers

config, (batch, tokens, threads) = json.loads(sys.argv[1]), map(int, sys.argv[2:])
torch.set_num_threads(threads)
torch.manual_seed(0)
model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).float().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
ids = (torch.arange(batch * tokens) * 7919 % config["vocab_size"]).reshape(batch, tokens)
print("ready", transformers.__version__, torch.__version__, sum(p.numel() for p in model.parameters()), "parameters", flush=True)
for _ in sys.stdin:
    start = time.perf_counter()
    optimizer.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(time.perf_counter() - start, flush=True)
