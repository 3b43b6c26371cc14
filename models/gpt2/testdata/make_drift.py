"""Makes drift.json: how far 200 steps of training drift apart in PyTorch if all that differs is the number of threads,
and autocast.json: how far they do under torch.autocast.

A GPT-2 of transformers (2 layers, width 128, 128 positions) is trained twice from the same weights on the same batches, on one thread and on two. Weights
and tokens come from a counter (splitmix64), so that drift_test.go makes the same ones and no file has to hold them.

drift.json: config, optimizer, and the losses of the run on one thread and of that on two, each before its update.
autocast.json: the losses of a run in bfloat16.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
STEPS, ROWS, LENGTH = 200, 8, 128
OPTIMIZER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}

transformers.logging.set_verbosity_error()
config = transformers.GPT2Config(
    vocab_size=512, n_positions=LENGTH, n_embd=128, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
)


def splitmix64(x):
    """The output function of Steele, Lea and Flood's generator, of an array of counters."""
    with np.errstate(over="ignore"):
        x = (x + 1).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def counters(stream, n):
    return np.arange(n, dtype=np.uint64) + np.uint64(stream << 32)


def weights(stream, shape, base):
    """base plus numbers in [-0.05, 0.05)."""
    u = (splitmix64(counters(stream, int(np.prod(shape)))) >> np.uint64(40)).astype(np.float64)
    return torch.from_numpy((base + (u / (1 << 23) - 1) * 0.05).astype(np.float32).reshape(shape))


def batch(step):
    """Tokens of which each is one of three that may follow the one before."""
    draws = splitmix64(counters(1000 + step, ROWS * LENGTH)).reshape(ROWS, LENGTH)
    ids = np.zeros((ROWS, LENGTH), dtype=np.int64)
    ids[:, 0] = draws[:, 0] % np.uint64(config.vocab_size)
    for t in range(1, LENGTH):
        ids[:, t] = (5 * ids[:, t - 1] + 7 + (draws[:, t] % np.uint64(3)).astype(np.int64)) % config.vocab_size
    return torch.from_numpy(ids)


def train(threads, lower=None):
    torch.set_num_threads(threads)
    model = transformers.GPT2LMHeadModel(config).train()
    named = dict(model.named_parameters())
    with torch.no_grad():
        for i, (name, p) in enumerate(named.items()):
            p.copy_(weights(i + 1, tuple(p.shape), 1.0 if ".ln_" in name and name.endswith("weight") else 0.0))
    optimizer = torch.optim.AdamW(named.values(), **OPTIMIZER)
    losses = []
    for step in range(STEPS):
        ids = batch(step)
        with torch.autocast("cpu", dtype=lower, enabled=lower is not None):
            loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(named.values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


one, two, half = train(1), train(2), train(1, torch.bfloat16)
golden.save_json(
    OUT / "drift.json",
    {
        "made_by": golden.versions(transformers, np),
        "config": config.to_diff_dict(),
        "optimizer": OPTIMIZER,
        "losses": {"one": one, "two": two},
    },
)
golden.save_json(OUT / "autocast.json", {"made_by": golden.versions(transformers, np), "losses": {"bfloat16": half}})
print(f"losses {one[0]:.4f} .. {one[-1]:.4f}; largest difference {max(abs(a - b) for a, b in zip(one, two)):.3g}")
print(f"in bfloat16 {half[0]:.4f} .. {half[-1]:.4f}; largest difference {max(abs(a - b) for a, b in zip(one, half)):.3g}")
