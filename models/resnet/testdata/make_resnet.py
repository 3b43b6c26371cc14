"""Makes basic/ and bottleneck/: small ResNets of transformers with random weights, their logits, losses, gradients and five SGD steps.

NAME/model.safetensors, config.json: as transformers writes them. Batch norm's parameters and running statistics are
moved off 0 and 1, so that no error hides behind neutral ones.

NAME/golden.safetensors:
  pixels [3,C,H,W], logits [3,K]       of the initial weights, in evaluation
  labels [3]
  trained_logits [3,K]                 of the initial weights, with the batch's statistics
  steps/pixels [5,8,C,H,W], steps/labels [5,8]
  grad/NAME                            of the mean loss of the first batch, at the initial weights
  final/NAME                           the weights and buffers after five steps
  final_logits [3,K]                   of pixels, in evaluation
NAME/golden.json: loss (of pixels and labels, in evaluation), the loss of each step before its update, the optimizer's settings.
"""

import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
STEPS = 5
OPTIMIZER = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.0}
CONFIGS = {
    "basic": {"num_channels": 2, "layer_type": "basic", "hidden_sizes": [6, 8], "depths": [1, 2], "hidden_act": "relu"},
    "bottleneck": {
        "num_channels": 3, "layer_type": "bottleneck", "hidden_sizes": [8, 12], "depths": [2, 1], "hidden_act": "gelu",
        "downsample_in_first_stage": True, "downsample_in_bottleneck": True,
    },
}

transformers.logging.set_verbosity_error()


def make(name, fields):
    config = transformers.ResNetConfig(embedding_size=6, num_labels=4, **fields)
    model = transformers.ResNetForImageClassification(config).eval()
    with torch.no_grad():
        for key, value in [*model.named_parameters(), *model.named_buffers()]:
            if value.ndim == 1:
                value.add_(torch.rand(value.shape) * 0.4 - 0.2)
            elif key.endswith("num_batches_tracked"):
                value.add_(3)
    out = OUT / name
    model.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    channels = config.num_channels
    pixels, labels = torch.randn(3, channels, 33, 26), torch.tensor([3, 0, 2])
    batches, targets = torch.randn(STEPS, 8, channels, 33, 26), torch.randint(4, (STEPS, 8))
    tensors = {"pixels": pixels, "labels": labels, "steps/pixels": batches, "steps/labels": targets}
    with torch.no_grad():
        result = model(pixels, labels=labels)
        tensors["logits"] = result.logits
        start = {k: v.clone() for k, v in model.state_dict().items()}
        tensors["trained_logits"] = model.train()(pixels).logits
        model.load_state_dict(start)
    optimizer = torch.optim.SGD(model.parameters(), **OPTIMIZER)
    losses = []
    for i in range(STEPS):
        optimizer.zero_grad()
        loss = model(batches[i], labels=targets[i]).loss
        loss.backward()
        if i == 0:
            tensors |= {f"grad/{k}": v.grad.clone() for k, v in model.named_parameters()}
        losses.append(loss.item())
        optimizer.step()
    tensors |= {f"final/{k}": v for k, v in model.state_dict().items()}
    with torch.no_grad():
        tensors["final_logits"] = model.eval()(pixels).logits
    made_by = golden.versions(transformers)
    golden.save_tensors(out / "golden.safetensors", tensors, made_by)
    golden.save_json(out / "golden.json", {"made_by": made_by, "loss": result.loss.item(), "losses": losses, "optimizer": OPTIMIZER})


for name, fields in CONFIGS.items():
    make(name, fields)
