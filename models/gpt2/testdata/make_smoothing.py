"""Makes smoothing.safetensors: a smoothed loss of transformers' GPT-2 in tiny/, with all gradients.

  ids [4,9], labels [4,9]   labels are ids, some of them -100: rows have 8, 5, 2 and 0 that count after the shift
  loss                      transformers' LabelSmoother with factor 0.15 over the whole batch
  accumulated               the same, as the sum of two micro-batches with num_items_in_batch
  grad.NAME                 the gradient of the loss
"""

import pathlib
import sys

import torch
import transformers
from transformers.trainer_pt_utils import LabelSmoother

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
transformers.logging.set_verbosity_error()
model = transformers.GPT2LMHeadModel.from_pretrained(pathlib.Path(__file__).parent / "tiny").eval()
model.set_attn_implementation("eager")

ids = torch.randint(200, (4, 9))
labels = ids.clone()
for row, first in enumerate([1, 4, 7, 9]):
    labels[row, :first] = -100
smoother = LabelSmoother(epsilon=0.15)
loss = smoother(model(ids), labels, shift_labels=True)
loss.backward()
with torch.no_grad():
    count = (labels[:, 1:] != -100).sum()
    parts = [smoother(model(ids[p]), labels[p], shift_labels=True, num_items_in_batch=count) for p in (slice(0, 1), slice(1, 4))]
tensors = {"ids": ids, "labels": labels, "loss": loss, "accumulated": sum(parts)}
tensors |= {"grad." + name: p.grad for name, p in model.named_parameters()}
golden.save_tensors(OUT / "smoothing.safetensors", tensors, golden.versions(transformers))
