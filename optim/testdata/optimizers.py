"""Makes optimizers.safetensors and optimizers.json: PyTorch's AdamW, Adam and SGD step by step, and clip_grad_norm_.

Tensors: param/P is the start, grad/STEP/P the gradient of step 1…10, CASE/STEP/P the parameter after the step, for
the parameters P in PARAMS; one parameter's gradient is all zero in step 4. Hyper-parameters are in the manifest, with
the learning rate of every step in "rates" (it falls in the cases whose name ends in _schedule).
Clipping: clip/in/P are the gradients, clip/N/P the clipped ones.
"""

import pathlib
import sys

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
STEPS = 10
PARAMS = {"weight": (3, 5), "bias": (7,), "scale": ()}

ADAM = {"lr": 1e-2, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
CASES = {
    "adamw": ("AdamW", {**ADAM, "weight_decay": 0.01}),
    "adamw_no_decay": ("AdamW", ADAM),
    "adamw_strong": ("AdamW", {"lr": 0.1, "betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.5}),
    "adam": ("Adam", ADAM),
    "adam_l2": ("Adam", {**ADAM, "weight_decay": 0.1}),
    "adam_no_momentum": ("Adam", {**ADAM, "betas": [0.0, 0.99]}),
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd_decay": ("SGD", {"lr": 0.1, "weight_decay": 0.2}),
    "sgd_momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "sgd_dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "sgd_nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "sgd_all": ("SGD", {"lr": 0.05, "momentum": 0.7, "nesterov": True, "weight_decay": 0.1}),
}
# A learning rate per step, to show that decay and update both follow it.
CASES["adamw_schedule"] = ("AdamW", {**ADAM, "weight_decay": 0.1})
CASES["sgd_schedule"] = ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1})

generator = torch.Generator().manual_seed(1)
tensors = {"param/" + p: torch.randn(shape, generator=generator) for p, shape in PARAMS.items()}
for step in range(1, STEPS + 1):
    for p, shape in PARAMS.items():
        tensors[f"grad/{step}/{p}"] = torch.randn(shape, generator=generator) * (0 if (step, p) == (4, "bias") else 0.5 * step)

manifest = []
for name, (optimizer, options) in CASES.items():
    params = {p: torch.nn.Parameter(tensors["param/" + p].clone()) for p in PARAMS}
    rates = [options["lr"] * (1 - t / STEPS if name.endswith("_schedule") else 1) for t in range(STEPS)]
    opt = getattr(torch.optim, optimizer)(params.values(), foreach=False, **options)
    for step in range(1, STEPS + 1):
        opt.param_groups[0]["lr"] = rates[step - 1]
        for p, param in params.items():
            param.grad = tensors[f"grad/{step}/{p}"].clone()
        opt.step()
        for p, param in params.items():
            tensors[f"{name}/{step}/{p}"] = param.detach().clone()
    manifest.append({"name": name, "optimizer": optimizer, **options, "rates": rates})

clips = []
shapes = {"weight": (9, 13), "bias": (17,), "scale": (), "empty": (0, 3)}
for p, shape in shapes.items():
    tensors["clip/in/" + p] = torch.randn(shape, generator=generator)
for n, max_norm in enumerate([1.0, 0.1, 5.0, 1e6]):
    params = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes.values()]
    for p, param in zip(shapes, params):
        param.grad = tensors["clip/in/" + p].clone()
    norm = torch.nn.utils.clip_grad_norm_(params, max_norm)
    clips.append({"name": str(n), "max_norm": max_norm, "total_norm": norm.item()})
    for p, param in zip(shapes, params):
        tensors[f"clip/{n}/{p}"] = param.grad

golden.save_tensors(OUT / "optimizers.safetensors", tensors, golden.versions())
golden.save_json(
    OUT / "optimizers.json",
    {"made_by": golden.versions(), "steps": STEPS, "params": {k: list(v) for k, v in PARAMS.items()}, "cases": manifest, "clip": clips},
)
