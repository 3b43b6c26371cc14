"""Makes positions.safetensors: logits and loss of transformers' GPT-2 in tiny/ for tokens whose positions are given.

  ids [3,9], mask [3,9], position_ids [3,9]  one row that counts from 0, one that is padded on the left, and one whose
                                             positions begin anew in its middle
  labels [3,9]                               ids, without what padding is or would predict
  logits [3,9,211], loss                     the loss is the mean over the labels that count
"""

import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
transformers.logging.set_verbosity_error()
model = transformers.GPT2LMHeadModel.from_pretrained(pathlib.Path(__file__).parent / "tiny").eval()
model.set_attn_implementation("eager")

ids, mask = torch.randint(200, (3, 9)), torch.ones(3, 9, dtype=torch.long)
positions = torch.arange(9).repeat(3, 1)
mask[1, :4] = 0
positions[1] = (mask[1].cumsum(0) - 1).clamp(min=0)
positions[2, 5:] -= 5
labels = ids.masked_fill(mask == 0, -100)
labels[1, 4] = -100  # padding would predict it
with torch.no_grad():
    out = model(ids, attention_mask=mask, position_ids=positions, labels=labels)
tensors = {"ids": ids, "mask": mask, "position_ids": positions, "labels": labels, "logits": out.logits, "loss": out.loss}
golden.save_tensors(OUT / "positions.safetensors", tensors, golden.versions(transformers))
