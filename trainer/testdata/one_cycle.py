"""Makes one_cycle.json: the factors of torch's OneCycleLR, for the example of a program's own schedule.

factors[s] is the learning rate with s steps done, as a share of max_lr.
"""

import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
runs = []
for total in [10, 37, 100]:
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1.0, total_steps=total)
    factors = []
    for step in range(total):
        factors.append(opt.param_groups[0]["lr"])
        opt.step()
        if step + 1 < total:
            schedule.step()
    runs.append({"total": total, "factors": factors})
golden.save_json(OUT / "one_cycle.json", {"made_by": golden.versions(), "runs": runs})
