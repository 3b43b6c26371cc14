"""Makes attention.safetensors and attention.json: self-attention of transformers' Llama, Qwen 2 and Qwen 3.

For a case named C the tensors, of float32, are C/x [B,T,width], C/positions [B,T], C/param/NAME, C/y, C/weights (the
gradient of y), C/grad/x and C/grad/NAME, and C/cos and C/sin, the tables of the rotary embedding with each angle once.
"""

import pathlib
import sys

import torch
import transformers
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))
import golden  # noqa: E402

OUT = golden.start(__file__, __doc__)
WIDTH, BATCH, LENGTH = 24, 2, 7
tensors, manifest = {}, []


def case(name, attention, rotary, config, attrs):
    config._attn_implementation = "eager"
    module, table = attention(config, layer_idx=0), rotary(config)
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.randn_like(p) * 0.3 + (1 if p.dim() == 1 else 0))
    x = torch.randn(BATCH, LENGTH, WIDTH, requires_grad=True)
    # The second row begins with padding: its tokens are three places behind.
    positions = torch.stack([torch.arange(LENGTH) * 5, torch.arange(LENGTH) + 3])
    cos, sin = table(x, positions)
    causal = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    y, _ = module(x, position_embeddings=(cos, sin), attention_mask=causal)
    weights = torch.randn_like(y)
    named = dict(module.named_parameters())
    grads = torch.autograd.grad((y * weights).sum(), [x, *named.values()])
    half = cos.shape[-1] // 2
    tensors.update({f"{name}/x": x, f"{name}/positions": positions, f"{name}/y": y, f"{name}/weights": weights,
                    f"{name}/cos": cos[..., :half], f"{name}/sin": sin[..., :half], f"{name}/grad/x": grads[0]})
    for (key, p), g in zip(named.items(), grads[1:]):
        tensors[f"{name}/param/{key}"], tensors[f"{name}/grad/{key}"] = p, g
    manifest.append({"name": name, "params": list(named), "theta": config.rope_parameters["rope_theta"],
                     "heads": config.num_attention_heads, "kv_heads": config.num_key_value_heads, **attrs})


common = {"hidden_size": WIDTH, "num_hidden_layers": 1, "max_position_embeddings": 64, "attention_dropout": 0.0}
rope = {"rope_type": "default", "rope_theta": 10000.0}
far = {"rope_type": "default", "rope_theta": 1000000.0}
case("llama", llama.LlamaAttention, llama.LlamaRotaryEmbedding,
     llama.LlamaConfig(**common, num_attention_heads=4, num_key_value_heads=2, rope_parameters=rope),
     {"head_dim": 6, "qkv_bias": False, "out_bias": False, "norm_eps": 0})
case("llama_bias", llama.LlamaAttention, llama.LlamaRotaryEmbedding,
     llama.LlamaConfig(**common, num_attention_heads=2, num_key_value_heads=2, attention_bias=True, head_dim=8,
                       rope_parameters=rope), {"head_dim": 8, "qkv_bias": True, "out_bias": True, "norm_eps": 0})
case("qwen2", qwen2.Qwen2Attention, qwen2.Qwen2RotaryEmbedding,
     qwen2.Qwen2Config(**common, num_attention_heads=4, num_key_value_heads=1, rope_parameters=far),
     {"head_dim": 6, "qkv_bias": True, "out_bias": False, "norm_eps": 0})
case("qwen3", qwen3.Qwen3Attention, qwen3.Qwen3RotaryEmbedding,
     qwen3.Qwen3Config(**common, num_attention_heads=4, num_key_value_heads=2, head_dim=10, rms_norm_eps=1e-5,
                       rope_parameters=far), {"head_dim": 10, "qkv_bias": False, "out_bias": False, "norm_eps": 1e-5})
golden.save_tensors(OUT / "attention.safetensors", tensors, golden.versions(transformers))
golden.save_json(OUT / "attention.json", {"made_by": golden.versions(transformers), "cases": manifest})
