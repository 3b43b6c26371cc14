"""Makes NAME.safetensors and NAME.json for each optimizer NAME: 50 steps of three models by its reference implementation.

The models are lists of parameters. The gradient of a parameter p is p/4 plus noise of an integer hash, so that a test
makes the same without a file. Gradients are clipped to a norm of 1, the learning rate rises for five steps and falls
to zero, and matrices have a weight decay of 0.1, vectors none.

Optimizers that average weights are in evaluation mode when their parameters are stored.

Tensors: CASE/MODEL/STEP/P is every STRIDE-th element of parameter P after step 10 and 50. The manifest has the case's
settings (the names of HuggingFace's arguments) and the sums of the absolute values of the parameters after step 50.
"""

import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
STEPS, STORED, MAX_NORM, DECAY = 50, (10, 50), 1.0, 0.1
MODELS = {
    "mlp": {"fc1.weight": (12, 20), "fc1.bias": (12,), "fc2.weight": (3, 12), "fc2.bias": (3,)},
    "conv": {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "norm.weight": (4,), "head.weight": (5, 16), "scale": ()},
    "wide": {"embed.weight": (80, 64), "proj.weight": (65, 71), "proj.bias": (71,)},
}
STRIDE = {"mlp": 1, "conv": 1, "wide": 29}
EMBEDDINGS = {"embed.weight"}


def noise(key, shape):
    """Numbers in [-1, 1) of 24 bits: a hash of key and index."""
    with np.errstate(over="ignore"):
        x = np.arange(int(np.prod(shape)), dtype=np.uint32) + np.uint32(key * 1_000_003 % 2**32)
        for multiplier, shift in ((0x7FEB352D, 15), (0x846CA68B, 16)):
            x ^= x >> np.uint32(16 if shift == 15 else shift)
            x *= np.uint32(multiplier)
            x ^= x >> np.uint32(15)
    return torch.from_numpy(((x >> np.uint32(8)).astype(np.float32) / np.float32(2**23)) - np.float32(1)).reshape(shape)


def rate(lr, step):
    return lr * min(step / 5, (STEPS - step) / (STEPS - 5))


def train(make, model, lr):
    """Yields the parameters after each step; make takes the groups."""
    names = MODELS[model]
    params = {}
    for i, (name, shape) in enumerate(names.items()):
        params[name] = torch.nn.Parameter(noise(i + 1, shape).clone())
    groups = [
        {"params": [p for p in params.values() if p.ndim >= 2], "weight_decay": DECAY},
        {"params": [p for p in params.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    opts = make(groups, {p: n for n, p in params.items()})
    for step in range(1, STEPS + 1):
        for opt in opts:
            if hasattr(opt, "train"):
                opt.train()
        for i, (name, p) in enumerate(params.items()):
            p.grad = noise(1000 * step + i, p.shape) + p.detach() / 4
        torch.nn.utils.clip_grad_norm_(params.values(), MAX_NORM)
        for opt in opts:
            for group in opt.param_groups:
                if isinstance(group["lr"], torch.Tensor):
                    group["lr"].fill_(rate(lr, step))
                else:
                    group["lr"] = rate(lr, step) if lr is not None else None
            opt.step()
            if hasattr(opt, "eval") and step in STORED:
                opt.eval()
        yield step, params, opts


def write(name, made_by, cases):
    """cases: name -> (settings, lr, make)."""
    tensors, manifest = {}, []
    for case, (settings, lr, make) in cases.items():
        sums = {}
        for model in MODELS:
            for step, params, _ in train(make, model, lr):
                if step in STORED:
                    for p, t in params.items():
                        tensors[f"{case}/{model}/{step}/{p}"] = t.detach().flatten()[:: STRIDE[model]].clone()
            sums[model] = {p: t.detach().double().abs().sum().item() for p, t in params.items()}
        manifest.append({"name": case, "settings": settings, "lr": lr or 0, "sums": sums})
    golden.save_tensors(OUT / f"{name}.safetensors", tensors, made_by)
    golden.save_json(OUT / f"{name}.json", {"made_by": made_by, "cases": manifest})


def one(cls, **options):
    return lambda groups, names: [cls(groups, lr=1e-3, **options)]


def of(package):
    from importlib.metadata import version

    return {**golden.versions(), package: version(package)}


def adagrad():
    opt = torch.optim.Adagrad
    write("adagrad", golden.versions(), {
        "plain": ({}, 0.05, one(opt, foreach=False)),
        "decayed": ({"lr_decay": 0.05, "eps": 1e-4}, 0.1, one(opt, lr_decay=0.05, eps=1e-4, foreach=False)),
    })


def rmsprop():
    opt = torch.optim.RMSprop
    write("rmsprop", golden.versions(), {
        "plain": ({}, 0.01, one(opt, foreach=False)),
        "momentum": ({"momentum": 0.9, "alpha": 0.9}, 0.003, one(opt, momentum=0.9, alpha=0.9, foreach=False)),
        "centered": ({"centered": True, "eps": 1e-4, "momentum": 0.5}, 0.01, one(opt, centered=True, eps=1e-4, momentum=0.5, foreach=False)),
    })


def lion():
    from lion_pytorch import Lion

    write("lion", of("lion-pytorch"), {
        "plain": ({}, 0.01, one(Lion, betas=(0.9, 0.99))),
        "betas": ({"adam_beta1": 0.95, "adam_beta2": 0.98}, 0.003, one(Lion, betas=(0.95, 0.98))),
    })


def ademamix():
    from bitsandbytes.optim import AdEMAMix

    write("ademamix", of("bitsandbytes"), {
        "plain": ({}, 0.01, one(AdEMAMix)),
        "scheduled": (
            {"adam_beta1": 0.8, "adam_beta2": 0.99, "beta3": 0.999, "alpha": 3, "adam_epsilon": 1e-6, "t_alpha": 30, "t_beta3": 40},
            0.01, one(AdEMAMix, betas=(0.8, 0.99, 0.999), alpha=3.0, eps=1e-6, t_alpha=30, t_beta3=40)),
    })


def adafactor():
    from transformers import Adafactor

    def make(**options):
        return lambda groups, names: [Adafactor(groups, **options)]

    write("adafactor", of("transformers"), {
        "trainer": ({}, 0.01, make(scale_parameter=False, relative_step=False, lr=1e-3)),
        "scaled": ({"scale_parameter": True, "beta1": 0.9}, 0.05, make(scale_parameter=True, relative_step=False, beta1=0.9, lr=1e-3)),
        "relative": ({"scale_parameter": True, "relative_step": True}, None, make()),
        "warmup": (
            {"scale_parameter": True, "relative_step": True, "warmup_init": True, "eps2": 0.1, "clip_threshold": 0.5, "decay_rate": -0.7},
            None, make(warmup_init=True, eps=(1e-30, 0.1), clip_threshold=0.5, decay_rate=-0.7)),
    })


def lamb():
    import types
    from importlib.util import find_spec

    # timm's package imports torchvision; its optimizers need torch alone.
    root = Path(find_spec("timm").submodule_search_locations[0])
    for name, folder in (("timm", root), ("timm.optim", root / "optim")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(folder)]
    from timm.optim.lamb import Lamb

    write("lamb", of("timm"), {
        "plain": ({"adam_epsilon": 1e-6}, 0.05, one(Lamb, max_grad_norm=None, foreach=False)),
        "all": ({"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-3, "always_adapt": True, "trust_clip": True}, 0.1,
                one(Lamb, betas=(0.8, 0.95), eps=1e-3, max_grad_norm=None, always_adapt=True, trust_clip=True, foreach=False)),
    })


class Wide:
    """An optimizer whose products are of float32."""

    def __init__(self, opt):
        self.opt, self.param_groups = opt, opt.param_groups

    def step(self):
        from unittest.mock import patch

        with patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
            self.opt.step()


def wide(make):
    return lambda groups, names: [Wide(opt) for opt in make(groups, names)]


def muon():
    def make(adam, **options):
        def groups_of(groups, names):
            muon, rest = [], []
            for g in groups:
                hidden = [p for p in g["params"] if p.ndim == 2 and names[p] not in EMBEDDINGS]
                muon.append({**g, "params": hidden})
                rest.append({**g, "params": [p for p in g["params"] if all(p is not h for h in hidden)]})
            return [torch.optim.Muon(muon, lr=1e-3, **options), torch.optim.AdamW(rest, lr=1e-3, foreach=False, **adam)]

        return groups_of

    original = {"adjust_lr_fn": "original"}
    cases = {
        "bfloat16": (original, 0.02, make({})),  # as it is, with products in bfloat16
        "plain": (original, 0.02, wide(make({}))),
        "matched": (
            {"muon_momentum": 0.9, "nesterov": False, "ns_steps": 4, "adam_beta2": 0.99},
            0.01, wide(make({"betas": (0.9, 0.99)}, momentum=0.9, nesterov=False, ns_steps=4, adjust_lr_fn="match_rms_adamw"))),
    }
    write("muon", golden.versions(), cases)


def stable_adamw():
    from optimi import StableAdamW

    def make(**options):
        return one(StableAdamW, triton=False, foreach=False, kahan_sum=False, **options)

    write("stable_adamw", of("torch-optimi"), {
        "plain": ({}, 0.01, make(betas=(0.9, 0.999), eps=1e-8)),
        "decoupled": ({"adam_beta2": 0.95, "adam_epsilon": 1e-4, "decouple_lr": True, "max_lr": 0.02}, 0.01,
                      make(betas=(0.9, 0.95), eps=1e-4, decouple_lr=True, max_lr=0.02)),
    })


def nearest(x, code, absmax, codes, blocksize):
    """bitsandbytes' quantize_blockwise for other dtypes, which is exact: that of float32 looks codes up in a table."""
    blocks = [b for b in x.flatten().split(blocksize)]
    absmax.copy_(torch.stack([b.abs().max() for b in blocks]))
    scaled = torch.cat([b * (1 / m) if m > 0 else b for b, m in zip(blocks, absmax)])
    diff = torch.abs(scaled.unsqueeze(-1) - code)
    codes.copy_(torch.argmin(diff, dim=-1).to(torch.uint8).reshape(codes.shape))


class Registered:
    """An optimizer of bitsandbytes with embeddings in 32 bits, as the Trainer registers them."""

    def __init__(self, cls, groups, names, exact, **options):
        from bitsandbytes.optim import GlobalOptimManager

        manager = GlobalOptimManager.get_instance()
        manager.initialize()
        self.opt, self.exact = cls(groups, lr=1e-3, **options), exact
        self.param_groups = self.opt.param_groups
        for p, name in names.items():
            if name in EMBEDDINGS:
                module = torch.nn.Embedding(*p.shape)
                module.weight = p
                manager.register_module_override(module, "weight", {"optim_bits": 32})

    def step(self):
        from unittest.mock import patch

        from bitsandbytes.backends.cpu import ops

        with patch.object(ops, "_quant_blockwise_fp32_direct", nearest if self.exact else ops._quant_blockwise_fp32_direct):
            self.opt.step()


def eight_bit():
    import bitsandbytes.optim as bnb

    def case(settings, lr, cls, exact=True, **options):
        return settings, lr, lambda groups, names: [Registered(cls, groups, names, exact, **options)]

    made_by = of("bitsandbytes")
    write("adamw_8bit", made_by, {
        "plain": case({}, 0.01, bnb.AdamW8bit),
        "betas": case({"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-4}, 0.02, bnb.AdamW8bit, betas=(0.8, 0.95), eps=1e-4),
        "library": case({}, 0.01, bnb.AdamW8bit, exact=False),  # codes from the table
    })
    write("lion_8bit", made_by, {"plain": case({}, 0.003, bnb.Lion8bit, betas=(0.9, 0.99))})
    write("ademamix_8bit", made_by, {
        "plain": case({}, 0.01, bnb.AdEMAMix8bit),
        "scheduled": case({"beta3": 0.999, "alpha": 3, "t_alpha": 30, "t_beta3": 40}, 0.01, bnb.AdEMAMix8bit,
                          betas=(0.9, 0.999, 0.999), alpha=3.0, t_alpha=30, t_beta3=40),
    })
    write("rmsprop_8bit", made_by, {"plain": case({"alpha": 0.9}, 0.01, bnb.RMSprop8bit, alpha=0.9)})


def torch_8bit():
    from torchao.optim import AdamW8bit

    torch.compiler.set_stance("force_eager")
    write("adamw_torch_8bit", of("torchao"), {
        "plain": ({}, 0.01, one(AdamW8bit)),
        "betas": ({"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-4}, 0.02, one(AdamW8bit, betas=(0.8, 0.95), eps=1e-4)),
    })


def schedule_free():
    from schedulefree import AdamWScheduleFree, RAdamScheduleFree, SGDScheduleFree

    made_by = of("schedulefree")
    adamw, radam, sgd = ({"foreach": False, **o} for o in ({}, {"betas": (0.9, 0.95)}, {}))
    write("schedule_free_adamw", made_by, {
        "plain": ({}, 0.02, one(AdamWScheduleFree, **adamw)),
        "weighted": ({"adam_beta1": 0.8, "warmup_steps": 10, "r": 1, "weight_lr_power": 1}, 0.05,
                     one(AdamWScheduleFree, betas=(0.8, 0.999), warmup_steps=10, r=1.0, weight_lr_power=1.0, **adamw)),
    })
    write("schedule_free_radam", made_by, {
        "plain": ({"adam_beta2": 0.95}, 0.05, one(RAdamScheduleFree, **radam)),
        "weighted": ({"adam_beta2": 0.95, "r": 1}, 0.05, one(RAdamScheduleFree, r=1.0, **radam)),
    })
    write("schedule_free_sgd", made_by, {
        "plain": ({}, 0.5, one(SGDScheduleFree, **sgd)),
        "weighted": ({"momentum": 0.7, "warmup_steps": 20, "r": 2, "weight_lr_power": 0}, 0.3,
                     one(SGDScheduleFree, momentum=0.7, warmup_steps=20, r=2.0, weight_lr_power=0.0, **sgd)),
    })


for make in (adagrad, rmsprop, lion, ademamix, adafactor, lamb, muon, stable_adamw, eight_bit, torch_8bit, schedule_free):
    make()
