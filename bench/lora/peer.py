# SPDX-License-Identifier: Apache-2.0
"""transformers' and PEFT's side of bench/lora. Usage: peer.py [full] [STEPS] [THREADS]"""
import os
import resource
import statistics
import sys
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import peft
import torch
import transformers

FULL = "full" in sys.argv
NUMBERS = [int(a) for a in sys.argv[1:] if a.isdigit()]
STEPS, THREADS = (NUMBERS + [6, 2][len(NUMBERS):])[:2]
T = 512
torch.set_num_threads(THREADS)
torch.manual_seed(0)
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
    num_key_value_heads=3, head_dim=64, max_position_embeddings=8192, tie_word_embeddings=True))
if not FULL:
    model = peft.get_peft_model(model, peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear",
                                                       task_type="CAUSAL_LM"))
model.train()
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-5)
seconds = []
for i in range(STEPS):
    ids = torch.tensor([[(i * T + j) * 7919 % 49152 for j in range(T)]])
    start = time.perf_counter()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad()
    loss.item()
    seconds.append(time.perf_counter() - start)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 10**6
print(f"{'full' if FULL else 'lora'} {statistics.median(seconds[1:]):8.3f} s a step  {peak:5d} MB peak")
