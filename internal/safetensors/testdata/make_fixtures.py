"""Writes the fixtures of this folder with the Python package safetensors.

    python make_fixtures.py

Versions used: safetensors 0.8.0, torch 2.12.1, huggingface_hub 1.33.0.
fixture.safetensors holds every element type of the engine, a scalar, an empty array and
a name that JSON escapes; foreign.safetensors a type that the engine lacks. sharded/ is
what transformers' save_pretrained makes of a set that exceeds max_shard_size.
"""

import json
import os

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file

here = os.path.dirname(os.path.abspath(__file__))
ramp = torch.arange(24)

save_file(
    {
        "f32": (ramp.float() / 8 - 1).reshape(2, 3, 4),
        "f64": (ramp.double() / 3).reshape(4, 6),
        "bf16": (ramp.float() / 7).bfloat16().reshape(3, 8),
        "f16": (ramp.float() / 7).half().reshape(8, 3),
        "i32": (ramp * 1000 - 7).int(),
        "i64": ramp * 10_000_000_000,
        "u8": ramp.to(torch.uint8),
        "bool": ramp % 3 == 0,
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 5),
        'odd "name" <é>': torch.tensor([1.0, float("inf"), float("nan")]),
    },
    os.path.join(here, "fixture.safetensors"),
    metadata={"format": "pt"},
)

save_file({"i8": torch.tensor([-1, 2], dtype=torch.int8), "f32": torch.tensor([1.0])}, os.path.join(here, "foreign.safetensors"))

state = {f"h.{i}.weight": torch.full((4, 4), float(i)) for i in range(5)}
folder = os.path.join(here, "sharded")
os.makedirs(folder, exist_ok=True)
plan = split_torch_state_dict_into_shards(state, filename_pattern="model{suffix}.safetensors", max_shard_size=130)
for name, tensors in plan.filename_to_tensors.items():
    save_file({t: state[t] for t in tensors}, os.path.join(folder, name), metadata={"format": "pt"})
with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as f:
    f.write(json.dumps({"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}, indent=2, sort_keys=True) + "\n")
