"""Makes golden.json and golden.safetensors: tiny models of each family with all its switches on, and of each kind of RoPE.

Weights follow a rule of names and positions (see weight), which the Go test repeats, so none are in the files. For each
case NAME:

golden.safetensors:
  NAME/logits [2,T,V]                of the initial weights
golden.json, cases[NAME]:
  config                             the config.json that transformers wrote, without versions
  names                              those of the saved arrays, with shapes
  loss                               of the first batch
  gradients                          of that loss: by name the norm, and the product with the rule's numbers of "NAME.probe"
  losses                             of 20 AdamW steps, each before its update
  generated                          greedily, with the initial weights and a cache, beyond every window
"""

import json
import os
import pathlib
import sys
import tempfile
import zlib

import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers.trainer_pt_utils import get_parameter_names

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
STEPS, T, V, NEW = 20, 20, 40, 16
NO_DECAY = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
transformers.logging.set_verbosity_error()


def rule(name, n):
    """n numbers in [-1, 1) from a name: a hash of each position, MurmurHash3's finaliser."""
    x = (np.arange(1, n + 1, dtype=np.uint64) * 0x9E3779B9 + zlib.crc32(name.encode())) & 0xFFFFFFFF
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return x.astype(np.float64) / 2**31 - 1


def weight(name, shape):
    values = rule(name, int(np.prod(shape))) * 0.4
    if name.endswith("norm.weight"):
        values += 1
    return torch.tensor(values.astype(np.float32)).reshape(shape)


def tokens(name, *shape):
    return torch.tensor(np.floor((rule(name, int(np.prod(shape))) + 1) / 2 * V).astype(np.int64)).reshape(shape)


BASE = dict(
    vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=6, max_position_embeddings=64, pad_token_id=None, bos_token_id=1, eos_token_id=2,
)
# Kinds of RoPE are those of a Llama with one layer.
ROPES = {
    "linear": {"factor": 2.5},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
}
WINDOW = dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)
CASES = {
    "llama": ("llama", dict(attention_bias=True, mlp_bias=True)),
    "llama-tied": ("llama", dict(tie_word_embeddings=True, num_key_value_heads=4, head_dim=4)),
    "mistral": ("mistral", dict(sliding_window=5)),
    "qwen2": ("qwen2", dict(tie_word_embeddings=True, **WINDOW)),
    "qwen3": ("qwen3", dict(attention_bias=True, **WINDOW)),
    "smollm3": ("smollm3", dict(
        no_rope_layer_interval=2, use_sliding_window=True, sliding_window=5, num_hidden_layers=3, mlp_bias=True)),
    "gemma2": ("gemma2", dict(
        sliding_window=5, query_pre_attn_scalar=9, num_hidden_layers=3, attention_bias=True,
        attn_logit_softcapping=1.5, final_logit_softcapping=3.0)),
    "gemma3": ("gemma3_text", dict(
        sliding_window=5, query_pre_attn_scalar=9, layer_types=["sliding_attention", "full_attention"],
        final_logit_softcapping=10.0,
        rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                         "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}})),
    "olmo2": ("olmo2", dict(head_dim=4, rms_norm_eps=1e-5)),
    "phi3": ("phi3", dict(head_dim=4, num_key_value_heads=2, sliding_window=7)),
    "phi3-short": ("phi3", dict(
        head_dim=4, original_max_position_embeddings=40,
        rope_parameters={"rope_type": "longrope", "short_factor": [1.5, 2.0], "long_factor": [3.0, 5.0]})),
    "phi3-long": ("phi3", dict(
        head_dim=4, original_max_position_embeddings=3,
        rope_parameters={"rope_type": "longrope", "short_factor": [1.5, 2.0], "long_factor": [3.0, 5.0]})),
}
for kind, parameters in ROPES.items():
    CASES["rope-" + kind] = ("llama", dict(
        num_hidden_layers=1, head_dim=8, max_position_embeddings=8 if kind == "dynamic" else 64,
        rope_parameters={"rope_type": kind, "rope_theta": 1000.0, **parameters}))


def train(model, batches):
    decayed = get_parameter_names(model, [torch.nn.LayerNorm], NO_DECAY)
    named = dict(model.named_parameters())
    groups = [{"params": [p for n, p in named.items() if n in decayed], "weight_decay": 0.01},
              {"params": [p for n, p in named.items() if n not in decayed], "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=1e-2, foreach=False)
    losses, first = [], None
    for batch in batches:
        opt.zero_grad()
        loss = model(batch, labels=batch).loss
        loss.backward()
        losses.append(loss.item())
        first = first or {n: p.grad.detach().clone() for n, p in named.items()}
        opt.step()
    return losses, first


def make(name, family, extra):
    config = transformers.AutoConfig.for_model(family, **{**BASE, **extra})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        document = json.loads((pathlib.Path(folder) / "config.json").read_text())
        with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
            names = {n: list(f.get_slice(n).get_shape()) for n in f.keys()}
    document.pop("transformers_version", None)
    with torch.no_grad():
        for n, p in model.named_parameters():
            p.copy_(weight(n, p.shape))
    ids = tokens("ids", 2, T)
    prompt = tokens("prompt", 1, 4)
    with torch.no_grad():
        logits = model(ids).logits
        generated = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, eos_token_id=None,
                                   max_new_tokens=NEW, min_new_tokens=NEW, return_dict_in_generate=True,
                                   output_scores=True, pad_token_id=0)
        margins = [s.topk(2).values[0] for s in generated.scores]
        assert min((m[0] - m[1]).item() for m in margins) > 1e-3, f"{name}: greedy tokens are too close to choose"
    losses, gradients = train(model, tokens("steps", STEPS, 2, T))
    probes = {}
    for n, g in gradients.items():
        g = g.double().flatten().numpy()
        probes[n] = [float(f"{v:.9g}") for v in (np.linalg.norm(g), g @ rule(n + ".probe", g.size))]
    case = {"config": document, "names": names, "loss": losses[0], "gradients": probes, "losses": losses,
            "generated": generated.sequences[0].tolist()}
    return case, logits


only = os.environ.get("CASES", "").split() or list(CASES)
cases, tensors = {}, {}
for name in only:
    print(name, flush=True)
    cases[name], tensors[name + "/logits"] = make(name, *CASES[name])
made_by = golden.versions(transformers)
golden.save_tensors(OUT / "golden.safetensors", tensors, made_by)
golden.save_json(OUT / "golden.json", {"made_by": made_by, "cases": cases})
