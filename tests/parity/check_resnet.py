"""Does transformers load a ResNet folder that Lockstep saved, without a missing or unexpected key?

    python check_resnet.py DIR

Prints what it found and "ok", or fails.
"""

import sys

import torch
import transformers

transformers.logging.set_verbosity_error()
model, info = transformers.ResNetForImageClassification.from_pretrained(sys.argv[1], output_loading_info=True)
for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    if info[kind]:
        sys.exit(f"{kind}: {sorted(info[kind])}")
with torch.no_grad():
    logits = model.eval()(torch.zeros(1, model.config.num_channels, 32, 32)).logits
print(f"{sum(p.numel() for p in model.parameters())} parameters, classes {model.config.id2label}, logits of a grey image {logits.tolist()}")
print("ok")
