"""Makes losses.safetensors and losses.json: PyTorch's losses, summed, with gradients.

For a case named C the tensors, of float64, are C/in/NAME, C/loss (the sum), C/mean where PyTorch's mean divides by
something else than the number of terms, and C/grad/NAME for each differentiable input that the manifest lists.
"""

import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
IGNORE = -100
tensors, manifest = {}, []


def randn(*shape):
    return torch.randn(shape, dtype=torch.float64)


def case(name, loss, fn, inputs, grads, mean=False, **attrs):
    given = {k: v.clone().requires_grad_(k in grads) for k, v in inputs.items()}
    total = fn(**given, reduction="sum")
    tensors[f"{name}/loss"] = total
    if mean:
        tensors[f"{name}/mean"] = fn(**given, reduction="mean")
    for k, g in zip(grads, torch.autograd.grad(total, [given[k] for k in grads])):
        tensors[f"{name}/grad/{k}"] = g
    for k, v in inputs.items():
        tensors[f"{name}/in/{k}"] = v
    manifest.append({"name": name, "loss": loss, "in": list(inputs), "grad": list(grads), "mean": mean, "attrs": attrs})


# Cross entropy with class weights and smoothing, with labels that are ignored.
logits, labels, weights = randn(4, 3, 7) * 2, torch.randint(7, (4, 3)), torch.rand(7, dtype=torch.float64) * 3
weights[2] = 0
labels[1, 2] = labels[3, 0] = IGNORE
for name, weighted, smoothing in [("weights", True, 0.0), ("smoothing", False, 0.1), ("both", True, 0.3), ("all_smooth", True, 1.0)]:
    given = {"logits": logits, "labels": labels} | ({"weights": weights} if weighted else {})

    def cross_entropy(logits, labels, reduction, weights=None):
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weights, ignore_index=IGNORE, reduction=reduction, label_smoothing=smoothing)

    case("cross_entropy_" + name, "cross_entropy", cross_entropy, given, ["logits"], mean=True, smoothing=smoothing)
ignored = {"logits": logits, "labels": torch.full_like(labels, IGNORE), "weights": weights}
case("cross_entropy_ignored", "cross_entropy", cross_entropy, ignored, ["logits"], smoothing=1.0)

# Binary cross entropy, with logits far from 0 among them.
far = torch.cat([randn(4, 5), torch.tensor([[40.0, -40, 200, -200, 0]], dtype=torch.float64)])
targets = torch.rand(5, 5, dtype=torch.float64)
for name, given in [
    ("plain", {}),
    ("weight", {"weight": torch.rand(5, 1, dtype=torch.float64)}),
    ("pos_weight", {"pos_weight": torch.rand(5, dtype=torch.float64) * 4}),
    ("both", {"weight": torch.rand(5, dtype=torch.float64), "pos_weight": torch.rand(5, 5, dtype=torch.float64)}),
]:
    bce = lambda logits, targets, reduction, weight=None, pos_weight=None: F.binary_cross_entropy_with_logits(
        logits, targets, weight, pos_weight=pos_weight, reduction=reduction
    )
    case("bce_" + name, "bce", bce, {"logits": far, "targets": targets} | given, ["logits", "targets"])

# Distances. One pair is equal.
x, target = randn(5, 6) * 2, randn(5, 6)
x[2, 3] = target[2, 3]
pair = {"x": x, "target": target}
for name, fn in [("l1", F.l1_loss), ("mse", F.mse_loss)]:
    case(name, name, lambda x, target, reduction: fn(x, target, reduction=reduction), pair, ["x", "target"])
for delta in [1.0, 0.4]:
    case(f"huber_{delta}", "huber", lambda x, target, reduction: F.huber_loss(x, target, reduction=reduction, delta=delta), pair, ["x", "target"], delta=delta)
for beta in [1.0, 2.5, 0.0]:
    case(f"smooth_l1_{beta}", "smooth_l1", lambda x, target, reduction: F.smooth_l1_loss(x, target, reduction=reduction, beta=beta), pair, ["x", "target"], beta=beta)

# Divergence of distributions, with a probability of 0.
logs, other = F.log_softmax(randn(4, 6), -1), F.softmax(randn(4, 6), -1)
case("kl_div_log", "kl_div", lambda x, target, reduction: F.kl_div(x, target, reduction=reduction, log_target=True), {"x": logs, "target": other.log()}, ["x", "target"], log=True)
sparse = other.clone()
sparse[1, 2] = sparse[3, 0] = 0
case("kl_div", "kl_div", lambda x, target, reduction: F.kl_div(x, target, reduction=reduction), {"x": logs, "target": sparse}, ["x"], log=False)

for name, t in tensors.items():
    assert not t.isnan().any(), name
golden.save_tensors(OUT / "losses.safetensors", tensors, golden.versions())
golden.save_json(OUT / "losses.json", {"made_by": golden.versions(), "cases": manifest})
