"""Makes schedules.json: the learning rates of transformers' get_scheduler for the steps 0 … total+3.

rates[s] is the rate that the optimizer step number s+1 uses, that is, with s steps done.
"""

import pathlib
import sys
import warnings

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)

SPANS = [(0.2, 2, 10), (5e-5, 0, 12), (1e-3, 5, 25), (0.1, 7, 7), (3e-4, 1, 1)]
KWARGS = {
    "constant": [{}],
    "constant_with_warmup": [{}],
    "linear": [{}],
    "cosine": [{}, {"num_cycles": 0.25}, {"num_cycles": 1.5}],
    "cosine_with_restarts": [{}, {"num_cycles": 2}, {"num_cycles": 3}, {"num_cycles": 1.5}],
    "polynomial": [{}, {"power": 2.0}, {"lr_end": 1e-5, "power": 0.5}, {"lr_end": 0.0}],
    "inverse_sqrt": [{}, {"timescale": 3}, {"timescale": 40}],
    "cosine_with_min_lr": [{"min_lr": 4e-4}, {"min_lr": 1e-5}, {"min_lr_rate": 0.1}, {"min_lr_rate": 0.3, "num_cycles": 1.0}],
    "cosine_warmup_with_min_lr": [{"min_lr": 1e-5}, {"min_lr_rate": 0.1}, {"min_lr_rate": 0.1, "warmup_lr_rate": 0.25}, {"min_lr_rate": 0.2, "num_cycles": 0.25}],
    "warmup_stable_decay": [
        {"num_decay_steps": 0},
        {"num_decay_steps": 1},
        {"num_decay_steps": 4},
        {"num_decay_steps": 4, "min_lr_ratio": 0.1},
        {"num_decay_steps": 4, "decay_type": "linear", "warmup_type": "cosine"},
        {"num_decay_steps": 4, "decay_type": "linear", "warmup_type": "1-sqrt", "min_lr_ratio": 0.2},
        {"num_decay_steps": 4, "decay_type": "1-sqrt", "warmup_type": "1-sqrt"},
        {"num_decay_steps": 3, "num_stable_steps": 2, "decay_type": "1-sqrt", "warmup_type": "cosine", "min_lr_ratio": 0.05},
        {"num_decay_steps": 5, "decay_type": "cosine", "num_cycles": 1.0},
    ],
}

cases, refused = [], []
warnings.filterwarnings("ignore")
for name, variants in KWARGS.items():
    for lr, warmup, total in SPANS:
        for kwargs in variants:
            opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=lr)
            case = {"type": name, "lr": lr, "warmup": warmup, "total": total, "kwargs": kwargs}
            try:
                schedule = transformers.get_scheduler(name, opt, warmup, total, kwargs)
            except (ValueError, ZeroDivisionError) as e:
                refused.append({**case, "error": f"{type(e).__name__}: {e}"})
                continue
            rates = []
            for _ in range(total + 4):
                rates.append(opt.param_groups[0]["lr"])
                opt.step()
                try:
                    schedule.step()
                except ZeroDivisionError as e:
                    refused.append({**case, "error": f"{type(e).__name__}: {e}", "steps_done": len(rates)})
                    rates = None
                    break
            if rates is not None:
                cases.append({**case, "rates": rates})
assert len(cases) > 100, len(cases)
golden.save_json(OUT / "schedules.json", {"made_by": golden.versions(transformers), "cases": cases, "refused": refused})
