"""Trains by examples/clm on a device with many settings, and compares: families, optimizers and precisions with the CPU, ways to divide a run with one rank.

Usage: settings.py CLM TEXT GOLDEN [DEVICE]. CLM is the program, TEXT a folder to train on, GOLDEN models/transformer/testdata/golden.json, DEVICE by default
cuda. Prints a line for each setting that is wrong, with what it was and what it should be, and the number of those that held.
"""

import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import tempfile

clm, text, golden = (os.path.abspath(path) for path in sys.argv[1:4])
device = sys.argv[4] if len(sys.argv) > 4 else "cuda"
scratch = tempfile.TemporaryDirectory()
work = scratch.name
COMMON = {"train_file": text, "validation_split_percentage": 1, "block_size": 64, "vocab_size": 512, "max_steps": 8, "logging_steps": 1, "learning_rate": 1e-3,
          "save_strategy": "no", "report_to": "none", "global_train_batch_size": 16, "per_device_train_batch_size": 4, "max_new_tokens": 24, "temperature": 0}
GPT2 = {"n_layer": 4, "n_embd": 64, "n_head": 4}
OPTIMIZERS = """adamw_torch adam sgd adagrad rmsprop lion_32bit ademamix adafactor lamb muon stable_adamw adamw_bnb_8bit lion_8bit ademamix_8bit
    rmsprop_bnb_8bit adamw_torch_8bit schedule_free_adamw schedule_free_radam schedule_free_sgd""".split()


def train(name, settings, on):
    """The losses of a run, the sample it ends with, and the hash of its weights; or what went wrong."""
    out = os.path.join(work, f"{name}-{on}")
    argv = [clm, "--disable_tqdm", "--output_dir", out, "--device", on]
    for key, value in (COMMON | settings).items():
        argv += [f"--{key}={value}"]
    try:
        run = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=100, env=os.environ | {"GOMAXPROCS": "4"})
    except subprocess.TimeoutExpired:
        return {"error": "100 s were not enough"}
    if run.returncode != 0:
        return {"error": " / ".join(run.stderr.strip().splitlines()[-4:])[:600]}
    with open(os.path.join(out, "trainer_state.json")) as f:
        log = json.load(f)["log_history"]
    with open(os.path.join(out, "model.safetensors"), "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()[:12]
    return {"losses": [x["loss"] for x in log if "loss" in x], "norms": [x["grad_norm"] for x in log if "grad_norm" in x],
            "sample": run.stdout.partition("sample:")[2].strip(), "hash": digest}


def config(name, settings):
    path = os.path.join(work, name + ".json")
    with open(path, "w") as f:
        json.dump(settings, f)
    return {"config_name": path}


near, same = {}, {}  # settings whose losses are the CPU's, with a bound; groups of settings that have the same bits
with open(golden) as f:
    families = json.load(f)["cases"]
for name, case in families.items():
    small = {key: value for key, value in case["config"].items() if not key.endswith("_token_id")}
    near["family " + name] = config(name, small) | {"block_size": min(32, small["max_position_embeddings"])}, 2e-4
    wide = small | {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    if "head_dim" in small:
        wide["head_dim"] = 32
    if "rope" not in name and name not in ("phi3-short", "phi3-long"):  # their factors are of the narrow heads
        near["bf16 " + name] = config("wide-" + name, wide) | {"bf16": "true"}, 0.03
for name in OPTIMIZERS:
    near["optim " + name] = GPT2 | {"optim": name}, 2e-3
qwen = config("divided", {"model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
                          "num_key_value_heads": 4, "head_dim": 16, "max_position_embeddings": 256, "tie_word_embeddings": False})
for name, extra, bound in [
        ("fp16", {"fp16": "true"}, 0.03), ("bf16", {"bf16": "true"}, 0.03), ("tf32", {"tf32": "true"}, 0.01), ("dropout", {"dropout": 0.1}, 2e-3),
        ("smoothing", {"label_smoothing_factor": 0.1}, 2e-4), ("noise", {"neftune_noise_alpha": 5}, 2e-3), ("ema", {"ema_decay": 0.9}, 2e-4),
        ("half weights", {"dtype": "bfloat16"}, 0.05), ("evaluated", {"eval_strategy": "steps", "eval_steps": 3}, 2e-4),
        ("saved in the background", {"save_strategy": "steps", "save_steps": 2, "async_save": "true"}, 2e-4),
        ("8 bits in shards", {"optim": "adamw_bnb_8bit", "num_replicas": 2, "fsdp": "full_shard"}, 2e-4),
        ("recomputed", {"gradient_checkpointing": "true"}, 2e-4), ("compressed", {"num_replicas": 2, "ddp_comm_hook": "bf16"}, 0.03)]:
    near[name] = GPT2 | extra, bound
for model, base in ("gpt2", GPT2), ("qwen3", qwen):
    for kind, precision in ("float32", {}), ("bf16", {"bf16": "true"}):
        base = base | precision
        same[f"{model} {kind}"] = [base | extra for extra in (
            {}, {"num_replicas": 2}, {"num_replicas": 4}, {"num_replicas": 2, "fsdp": "full_shard"}, {"num_replicas": 2, "zero_stage": 2},
            {"num_replicas": 2, "pp_size": 2}, {"gradient_checkpointing": "true"})]
        same[f"{model} {kind} tp"] = [base | {"tp_parts": 4} | extra for extra in (
            {}, {"num_replicas": 2, "tp_size": 2}, {"num_replicas": 4, "tp_size": 2}, {"num_replicas": 4, "tp_size": 4})]
        same[f"{model} {kind} cp"] = [base | {"cp_chunks": 4} | extra for extra in (
            {}, {"num_replicas": 2, "cp_size": 2}, {"num_replicas": 2, "cp_size": 2, "cp_strategy": "ulysses"}, {"num_replicas": 4, "cp_size": 2})]

jobs = {}
for name, (settings, _) in near.items():
    for on in device, "cpu":
        jobs[name, on] = settings
for name, group in same.items():
    for i, settings in enumerate(group):
        jobs[f"{name} {i}", device] = settings
with concurrent.futures.ThreadPoolExecutor(int(os.environ.get("WORKERS", "12"))) as pool:
    runs = {key: pool.submit(train, key[0].replace(" ", "_"), settings, key[1]) for key, settings in jobs.items()}
    runs = {key: run.result() for key, run in runs.items()}

held = wrong = 0


def judge(name, fault):
    global held, wrong
    held, wrong = held + (not fault), wrong + bool(fault)
    if fault:
        print(f"WRONG {name}: {fault}", flush=True)


def alike(run, first, loosely):
    """Whether a run has the bits of the first; loosely, whether it has its losses."""
    if loosely and "losses" in first:
        return max(abs(x - y) for x, y in zip(run["losses"], first["losses"])) < 1e-5
    return run["hash"] == first.get("hash")


for name, (_, bound) in near.items():
    mine, cpu = runs[name, device], runs[name, "cpu"]
    fault = mine.get("error") or (cpu.get("error") and "the CPU: " + cpu["error"])
    if not fault:
        off = [abs(x - y) for x, y in zip(mine["losses"], cpu["losses"])]
        fault = max(off) > bound and f"losses {mine['losses']}, the CPU's {cpu['losses']}"
        print(f"{name}: losses within {max(off):.1e}, norms within {max(abs(x / y - 1) for x, y in zip(mine['norms'], cpu['norms'])):.1e}, "
              f"sample {'equal' if mine['sample'] == cpu['sample'] else 'OTHER'}")
    judge(name, fault)
for name, group in same.items():
    results = [runs[f"{name} {i}", device] for i in range(len(group))]
    # A GPU's products of other sizes may have other algorithms, and divided matrices have other sizes. Those of bf16 had the same bits.
    loosely = device != "cpu" and name.endswith("float32 tp")
    for i, result in enumerate(results):
        extra = {key: value for key, value in group[i].items() if key not in group[0]}
        judge(f"{name} {extra}", result.get("error") or (not alike(result, results[0], loosely) and
              f"losses {result['losses']}, want those of {results[0].get('losses')}"))
print(f"{held} held, {wrong} wrong")
sys.exit(wrong > 0)
