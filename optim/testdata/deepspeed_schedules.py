"""Makes deepspeed_schedules.json: the learning rates of DeepSpeed's WarmupLR, WarmupDecayLR and WarmupCosineLR.

rates[s] is the rate that the optimizer step number s+1 uses: DeepSpeed's engine steps the scheduler after the optimizer.
It needs deepspeed (DS_BUILD_OPS=0 pip install deepspeed==0.19.8) beside torch.
"""

import logging
import os
import pathlib
import sys

logging.disable(logging.CRITICAL)
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from deepspeed.runtime import lr_schedules

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)

SPANS = [(0.2, 2, 10), (1e-3, 5, 25), (5e-5, 1, 12), (0.1, 7, 7), (3e-4, 20, 10)]
KWARGS = {
    "WarmupLR": [{}, {"warmup_type": "linear"}, {"warmup_min_lr": 1e-5}, {"warmup_min_lr": 1e-5, "warmup_type": "linear"}],
    "WarmupDecayLR": [{}, {"warmup_type": "linear"}, {"warmup_min_lr": 1e-5}, {"warmup_type": "linear", "total_num_steps": 9}],
    "WarmupCosineLR": [{}, {"warmup_type": "linear"}, {"warmup_min_ratio": 0.1}, {"cos_min_ratio": 0.2, "warmup_type": "linear"}],
}

cases = []
for name, variants in KWARGS.items():
    for lr, warmup, total in SPANS:
        for kwargs in variants:
            opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr)
            given = {"warmup_num_steps": warmup, **kwargs}
            if name != "WarmupCosineLR":
                given["warmup_max_lr"] = lr
            if name != "WarmupLR":
                given.setdefault("total_num_steps", total)
            schedule = getattr(lr_schedules, name)(opt, **given)
            rates = []
            for _ in range(total + 4):
                rates.append(opt.param_groups[0]["lr"])
                opt.step()
                schedule.step()
            cases.append({"type": name, "lr": lr, "warmup": warmup, "total": total, "kwargs": kwargs, "rates": rates})
golden.save_json(OUT / "deepspeed_schedules.json", {"made_by": golden.versions(deepspeed), "cases": cases})
