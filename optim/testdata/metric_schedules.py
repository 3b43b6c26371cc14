"""Makes metric_schedules.json: the learning rates of torch's ReduceLROnPlateau and of transformers' GreedyLR.

A case has the type (lr_scheduler_type), the rates of the parameter groups at first, kwargs (lr_scheduler_kwargs), the
metrics of the evaluations in order (texts where they are not finite), and changes, the groups' rates by the number of
metrics (from 1) after which they changed.
"""

import math
import pathlib
import random
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
DRAW = random.Random(36)


def metrics(n):
    """A walk that falls, stands still or rises by turns, sometimes not finite."""
    value, drift, out = DRAW.uniform(0.5, 4), 0.0, []
    for _ in range(n):
        if DRAW.random() < 0.15:
            drift = DRAW.choice([-0.05, -0.002, 0.0, 0.0, 0.03])
        value += drift * DRAW.random() if DRAW.random() < 0.9 else 0
        out.append(DRAW.choice([math.nan, math.inf]) if DRAW.random() < 0.01 else round(value, 4))
    return out


def some(options):
    """Some of the settings, each with one of its values."""
    return {k: DRAW.choice(v) for k, v in options.items() if DRAW.random() < 0.5}


def limits(kwargs, keys, rates):
    """Turns some limits into lists with one for each group."""
    for key in keys:
        if key in kwargs and DRAW.random() < 0.4:
            kwargs[key] = [kwargs[key] * DRAW.choice([1, 2, 0.5]) for _ in rates]
    return kwargs


SHARED = {
    "mode": ["min", "max"], "patience": [0, 1, 3], "threshold": [0.0, 1e-3, 0.05], "threshold_mode": ["rel", "abs"],
    "cooldown": [0, 1, 4], "eps": [0.0, 1e-8, 1e-3],
}
PLATEAU = SHARED | {"factor": [0.1, 0.5, 0.9, 0.0], "min_lr": [0.0, 1e-5, 1e-3]}
GREEDY = SHARED | {
    "factor": [0.5, 0.9, 0.99], "warmup": [0, 1, 3], "min_lr": [0.0, 1e-3, 0.01, 0.2], "max_lr": [0.1, 0.3, 1.0],
    "smooth": [False, True], "window_size": [1, 3, 8], "reset_start": [0, 1, 3],
}
MADE = {
    "reduce_lr_on_plateau": (torch.optim.lr_scheduler.ReduceLROnPlateau, PLATEAU, ["min_lr"]),
    "greedy": (transformers.optimization.GreedyLR, GREEDY, ["min_lr", "max_lr"]),
}

cases = []
for name, (_, options, lists) in MADE.items():
    for i in range(100):
        rates = DRAW.choice([[0.2], [5e-5, 5e-5], [0.1, 0.02, 0.003]])
        kwargs = {} if i == 0 else limits(some(options), lists, rates)
        observed = metrics(80)
        opt = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(()))], "lr": lr} for lr in rates])
        # transformers has this path too
        schedule = transformers.get_scheduler(name, opt, scheduler_specific_kwargs=kwargs)
        assert isinstance(schedule, MADE[name][0])
        changes, last = {}, rates
        for n, metric in enumerate(observed, 1):
            opt.step()
            schedule.step(metric)
            if last != (last := [group["lr"] for group in opt.param_groups]):
                changes[n] = last
        cases.append({
            "type": name, "lr": rates, "kwargs": kwargs, "changes": changes,
            "metrics": [m if math.isfinite(m) else str(m) for m in observed],
        })
golden.save_json(OUT / "metric_schedules.json", {"made_by": golden.versions(transformers), "cases": cases})
