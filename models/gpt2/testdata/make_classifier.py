"""Makes classifier/: a small GPT2ForSequenceClassification of transformers with random weights, its logits, loss and gradients.

classifier/model.safetensors, config.json: as transformers writes them. Matrices are drawn with a standard deviation of
0.2, and biases and LayerNorm parameters are moved off 0 and 1, so that no error hides behind neutral parameters.

classifier/golden.safetensors:
  ids [5,12], mask [5,12], labels [5]  texts of unequal length: one fills the row, two are padded on the right, one on
                                       the left, and one has the padding token in its middle
  logits [5,3]                         of the initial weights
  grad/NAME                            of the mean loss
classifier/golden.json: the mean loss.
"""

import pathlib
import sys

import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__) / "classifier"
PAD = 40

transformers.logging.set_verbosity_error()
config = transformers.GPT2Config(
    vocab_size=41, n_positions=16, n_embd=24, n_layer=2, n_head=3, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    initializer_range=0.2, bos_token_id=39, eos_token_id=39, pad_token_id=PAD,
    id2label={0: "bad", 1: "middling", 2: "good"}, label2id={"bad": 0, "middling": 1, "good": 2},
)
model = transformers.GPT2ForSequenceClassification(config).eval()
with torch.no_grad():
    for p in model.parameters():
        if p.ndim == 1:
            p.add_(torch.randn(p.shape) * 0.1)
model.save_pretrained(OUT)
(OUT / "model.safetensors").chmod(0o644)

ids, mask = torch.randint(39, (5, 12)), torch.ones(5, 12, dtype=torch.long)
for row, hidden in {1: slice(7, None), 2: slice(1, None), 3: slice(None, 4)}.items():
    ids[row, hidden], mask[row, hidden] = PAD, 0
ids[4, 5] = PAD
labels = torch.tensor([2, 0, 1, 1, 0])
result = model(ids, attention_mask=mask, labels=labels)
result.loss.backward()
tensors = {"ids": ids, "mask": mask, "labels": labels, "logits": result.logits}
tensors |= {"grad/" + n: p.grad for n, p in model.named_parameters()}
made_by = golden.versions(transformers)
golden.save_tensors(OUT / "golden.safetensors", tensors, made_by)
golden.save_json(OUT / "golden.json", {"made_by": made_by, "loss": result.loss.item()})
