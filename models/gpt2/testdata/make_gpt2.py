"""Makes tiny/: a small GPT-2 of transformers with random weights, its logits, losses, gradients and ten AdamW steps.

tiny/model.safetensors, config.json, generation_config.json: as transformers writes them. All matrices are drawn with
a standard deviation of 0.2, and biases and LayerNorm parameters are moved off 0 and 1, so that no error hides
behind small logits or neutral parameters.

tiny/golden.safetensors:
  ids [3,40], logits [3,40,V]        of the initial weights
  labels [3,40]                      ids with some labels replaced by -100
  steps/ids [10,4,32]                the training batches (labels = ids, shifted inside the model)
  grad/NAME                          of the mean loss of the first batch, at the initial weights
  final/NAME                         the weights after ten steps
  prompt [1,5], generated [1,5+12]   greedy decoding with the initial weights
tiny/golden.json: loss (labels = ids), loss_masked (labels), the loss of each step before its update, the optimizer's
settings, the names of the parameters with weight decay, and how far the same ten steps in float64 end from the
float32 ones, as norm of the difference over norm of the weights, over all parameters and in the worst tensor (key
biases left out: their true gradient is zero, so Adam turns rounding noise into steps).
"""

import json
import math
import pathlib
import sys

import torch
import transformers
from transformers.trainer_pt_utils import get_parameter_names

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__) / "tiny"
STEPS = 10
OPTIMIZER = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
# The Trainer's decay rule: no decay in LayerNorm modules and for these names.
NO_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]

transformers.logging.set_verbosity_error()
config = transformers.GPT2Config(
    vocab_size=211,
    n_positions=64,
    n_embd=48,
    n_layer=2,
    n_head=4,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    initializer_range=0.2,
    bos_token_id=210,
    eos_token_id=210,
)
model = transformers.GPT2LMHeadModel(config).eval()
with torch.no_grad():
    for name, p in model.named_parameters():
        if p.ndim == 1:
            p.add_(torch.randn(p.shape) * 0.1)
model.save_pretrained(OUT)
(OUT / "model.safetensors").chmod(0o644)

ids = torch.randint(config.vocab_size, (3, 40))
labels = torch.where(torch.rand(ids.shape) < 0.3, -100, ids)
batches = torch.randint(config.vocab_size, (STEPS, 4, 32))
prompt = torch.randint(config.vocab_size, (1, 5))
tensors = {"ids": ids, "labels": labels, "steps/ids": batches, "prompt": prompt}
with torch.no_grad():
    result = model(ids, labels=ids)
    tensors["logits"] = result.logits
    loss, loss_masked = result.loss.item(), model(ids, labels=labels).loss.item()
    tensors["generated"] = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, min_new_tokens=12, max_new_tokens=12, pad_token_id=210
    )


def train(model):
    """Takes the ten steps in place; returns the loss of each and the gradients of the first."""
    decayed = get_parameter_names(model, [torch.nn.LayerNorm], NO_DECAY)
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for n, p in named.items() if n in decayed], "weight_decay": OPTIMIZER["weight_decay"]},
        {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0},
    ]
    opt = torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], betas=OPTIMIZER["betas"], eps=OPTIMIZER["eps"], foreach=False)
    losses, first = [], None
    for batch in batches:
        opt.zero_grad()
        logits = model(batch).logits
        step_loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        step_loss.backward()
        losses.append(step_loss.item())
        first = first or {n: p.grad.clone() for n, p in named.items()}
        opt.step()
    return losses, first, [n for n in named if n in decayed]


double = transformers.GPT2LMHeadModel.from_pretrained(OUT, dtype=torch.float64).eval()
losses, grads, decayed = train(model)
losses64, _, _ = train(double)
tensors |= {"grad/" + n: g for n, g in grads.items()}
tensors |= {"final/" + n: p for n, p in model.named_parameters()}

square, norm, worst = 0.0, 0.0, 0.0
for (name, p), q in zip(model.named_parameters(), double.parameters()):
    p, q = p.detach().double(), q.detach()
    if name.endswith("c_attn.bias"):
        keys = slice(config.n_embd, 2 * config.n_embd)
        p[keys], q[keys] = 0, 0
    square += (p - q).square().sum().item()
    norm += q.square().sum().item()
    worst = max(worst, ((p - q).norm() / q.norm()).item())

made_by = golden.versions(transformers)
golden.save_tensors(OUT / "golden.safetensors", tensors, made_by)
golden.save_json(
    OUT / "golden.json",
    {
        "made_by": made_by,
        "loss": loss,
        "loss_masked": loss_masked,
        "optimizer": {**OPTIMIZER, "betas": list(OPTIMIZER["betas"])},
        "decayed": decayed,
        "losses": losses,
        "losses_float64": losses64,
        "float64_distance": {"overall": math.sqrt(square / norm), "worst_tensor": worst},
    },
)
print(json.dumps({"loss": loss, "losses": losses}))
