"""Makes loss_scales.json: the loss scale after each step, of DeepSpeed's DynamicLossScaler and of torch's GradScaler.

overflows[i] is 1 if the gradients of step i overflow, and powers[i] is the power of two that is the scale after it. A
course has fewer scales than steps if the next step is DeepSpeed's error at the smallest scale. It needs deepspeed
(DS_BUILD_OPS=0 pip install deepspeed==0.19.8) beside torch.
"""

import logging
import math
import os
import pathlib
import random
import sys

logging.disable(logging.CRITICAL)
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
from deepspeed.runtime.fp16 import loss_scaler

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
loss_scaler.dist.get_rank = lambda: 0  # there is no process group


def deepspeed_course(overflows, initial, window, hysteresis, consecutive, least):
    s = loss_scaler.DynamicLossScaler(init_scale=initial, scale_window=window, min_scale=least,
                                      delayed_shift=hysteresis, consecutive_hysteresis=consecutive)
    scales = []
    for overflow in overflows:
        try:
            s.update_scale(overflow)
        except Exception as e:
            assert "already at minimum" in str(e)
            break
        scales.append(s.loss_scale)
    return scales


def torch_course(overflows, initial, window):
    s = torch.amp.GradScaler("cpu", init_scale=initial, growth_interval=window)
    w = torch.nn.Parameter(torch.zeros(1))
    opt, scales = torch.optim.SGD([w], lr=0.0), []
    for overflow in overflows:
        s.scale(w.sum())  # the scale exists from here on
        w.grad = torch.full((1,), float("inf") if overflow else 1.0)
        s.step(opt)
        s.update()
        scales.append(s.get_scale())
    return scales


rng = random.Random(7)
PATTERNS = [[False] * 30, [True] * 12, [i % 7 == 0 for i in range(40)], [i in (0, 1, 2, 9, 10, 20) for i in range(40)]]
PATTERNS += [[rng.random() < p for _ in range(60)] for p in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)]

INITIAL = 1024
cases = []


def add(overflows, scales, **settings):
    cases.append({**settings, "initial": INITIAL, "overflows": "".join(str(int(o)) for o in overflows),
                  "powers": [int(math.log2(s)) for s in scales]})


for i, overflows in enumerate(PATTERNS):
    for window in (2, 3, 5) if i > 3 else (1, 2, 3):
        add(overflows, torch_course(overflows, float(INITIAL), window), scaler="torch", window=window)
        for hysteresis in (1, 2, 3):
            for consecutive in (False, True):
                for least in (1, 64):
                    scales = deepspeed_course(overflows, INITIAL, window, hysteresis, consecutive, least)
                    add(overflows, scales, scaler="deepspeed", window=window, hysteresis=hysteresis,
                        consecutive=consecutive, least=least)
golden.save_json(OUT / "loss_scales.json", {"made_by": golden.versions(deepspeed), "cases": cases})
