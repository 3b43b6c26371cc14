"""Makes powersgd.json: PyTorch's powerSGD_hook on two ranks over gloo.

    python powersgd.py

For each case: the settings, the ranks' gradients in each step, the random numbers that Q begins with in the first
compressed step, and the gradients after the exchange (means over the ranks). Needs torch and numpy.
"""
import json
import os
import pathlib

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as psgd

SHAPES = {"weight": (12, 10), "conv": (8, 3, 2, 3), "bias": (12,), "small": (2, 3)}
STEPS, RANKS = 6, 2
CASES = [
    {"matrix_approximation_rank": 1, "start_powerSGD_iter": 2},
    {"matrix_approximation_rank": 3, "start_powerSGD_iter": 2, "min_compression_rate": 1.2},
    {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2, "use_error_feedback": False},
]


def gradient(case, step, rank, shape):
    g = torch.Generator().manual_seed(1000 * case + 100 * step + 10 * rank + len(shape))
    return torch.randn(*shape, generator=g)


def worker(rank, path, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    out = []
    for number, options in enumerate(CASES):
        params = torch.nn.ParameterDict({k: torch.nn.Parameter(torch.zeros(s)) for k, s in SHAPES.items()})

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.params = params

            def forward(self, grads):
                return sum((p * grads[k]).sum() for k, p in self.params.items())

        model = torch.nn.parallel.DistributedDataParallel(Model())
        names = {id(p): k for k, p in params.items()}
        state = psgd.PowerSGDState(None, **options)
        start = {}

        def hook(state, bucket, drawn=start):
            order = [(names[id(p)], p) for p in bucket.parameters()]
            shapes = []
            for name, p in order:
                n, m = p.shape[0], p.numel() // p.shape[0]
                r = min(n, m, state.matrix_approximation_rank)
                if psgd._should_compress(n, m, r, state.min_compression_rate)[0]:
                    shapes.append(((n, m), name))
            groups = {}
            for shape, name in shapes:
                groups.setdefault(shape, []).append(name)
            turn = iter([name for group in groups.values() for name in group])
            real = torch.randn

            def randn(*a, **k):
                q = real(*a, **k)
                name = next(turn)
                drawn.setdefault(name, q.flatten().tolist())
                return q

            torch.randn = randn
            try:
                return psgd.powerSGD_hook(state, bucket)
            finally:
                torch.randn = real

        model.register_comm_hook(state, hook)
        steps = []
        for step in range(STEPS):
            inputs = [{k: gradient(number, step, r, s) for k, s in SHAPES.items()} for r in range(RANKS)]
            model.zero_grad()
            model(inputs[rank]).backward()
            steps.append({"inputs": [{k: v.flatten().tolist() for k, v in i.items()} for i in inputs],
                          "mean": {k: p.grad.flatten().tolist() for k, p in params.items()}})
        out.append({"options": options, "q": start, "steps": steps})
    if rank == 0:
        doc = {"torch": torch.__version__, "shapes": {k: list(s) for k, s in SHAPES.items()}, "cases": out}
        path.write_text(json.dumps(json.loads(json.dumps(doc), parse_float=lambda x: float(f"{float(x):.9g}")),
                                   separators=(",", ":")) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    target = pathlib.Path(__file__).with_suffix(".json")
    mp.spawn(worker, args=(target, 29731), nprocs=RANKS)
