"""Makes random_schedules.json.gz: learning rates of transformers' get_scheduler, 100 random settings of each schedule.

A case has type, lr, warmup, total, kwargs, and at ten steps s (optimizer steps done before) the rates.
"""

import gzip
import json
import pathlib
import random
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
DRAW = random.Random(2)


def number(low, high):
    return float(f"{DRAW.uniform(low, high):.4g}")


def settings(name, lr, total):
    """Random settings of a schedule; what it requires is always there."""
    least = DRAW.choice([{"min_lr": number(0, 1) * lr}, {"min_lr_rate": number(0, 1)}])
    shapes = ["linear", "cosine", "1-sqrt"]
    optional = {
        "cosine": {"num_cycles": number(0, 3)},
        "cosine_with_restarts": {"num_cycles": DRAW.choice([1, 2, 3, 5])},
        "polynomial": {"power": number(0.3, 4), "lr_end": number(0, 1) * lr},
        "inverse_sqrt": {"timescale": number(0.5, 500)},
        "cosine_with_min_lr": {"num_cycles": number(0, 2)},
        "cosine_warmup_with_min_lr": {"num_cycles": number(0, 2), "warmup_lr_rate": number(0, 1)},
        "warmup_stable_decay": {
            "warmup_type": DRAW.choice(shapes), "decay_type": DRAW.choice(shapes), "min_lr_ratio": number(0, 1),
            "num_stable_steps": DRAW.randint(0, total), "num_cycles": number(0, 1),
        },
    }.get(name, {})
    required = {"cosine_with_min_lr": least, "cosine_warmup_with_min_lr": least, "warmup_stable_decay": {"num_decay_steps": DRAW.randint(0, total)}}.get(name, {})
    return required | {k: v for k, v in optional.items() if DRAW.random() < 0.6}


NAMES = "constant constant_with_warmup linear cosine cosine_with_restarts polynomial inverse_sqrt cosine_with_min_lr cosine_warmup_with_min_lr warmup_stable_decay".split()
cases = []
for name in NAMES:
    for _ in range(100):
        lr, total = number(1e-5, 1), DRAW.randint(2, 3000)
        warmup = DRAW.choice([0, DRAW.randint(1, max(1, total // 3)), DRAW.randint(0, total - 1)])
        kwargs = settings(name, lr, total)
        if name == "polynomial":
            kwargs.setdefault("lr_end", lr / 100)
        opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr)
        schedule = transformers.get_scheduler(name, opt, warmup, total, kwargs)
        factor = schedule.lr_lambdas[0]
        steps = sorted({0, 1, warmup, max(0, warmup - 1), total, total + 3, *(DRAW.randint(0, total) for _ in range(4))})
        cases.append({"type": name, "lr": lr, "warmup": warmup, "total": total, "kwargs": kwargs, "steps": steps, "rates": [lr * factor(s) for s in steps]})
document = {"made_by": golden.versions(transformers), "cases": cases}
path = OUT / "random_schedules.json.gz"
with path.open("wb") as f, gzip.GzipFile("", "wb", fileobj=f, mtime=0) as z:
    z.write(json.dumps(document, allow_nan=False, separators=(",", ":")).encode())
print(f"{path}: {len(cases)} cases, {path.stat().st_size} bytes")
