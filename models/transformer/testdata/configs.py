"""Makes defaults.json, what the config classes of transformers have by default, and the parameters in configs.json,
which transformers counts in the real configurations there (on the meta device).

configs.json has the keys and values of published config.json files, by the name of the model on the hub, and where these
were read: the hub itself asks for accounts for some of them.
"""

import copy
import json
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
FAMILIES = ["gemma2", "gemma3_text", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"]
# Not of the model, or written only where they are not the default.
LEFT_OUT = {"transformers_version", "use_cache", "pretraining_tp", "architectures", "_sliding_window_pattern",
            "use_bidirectional_attention", "embd_pdrop", "resid_pdrop", "layer_types", "no_rope_layers"}
transformers.logging.set_verbosity_error()

defaults = {}
for name in FAMILIES:
    config = transformers.AutoConfig.for_model(name)
    whole = json.loads(config.to_json_string(use_diff=False))
    own = json.loads(config.to_json_string(use_diff=True))
    keys = [k for k in whole if (k in own or k in type(config).__dict__.get("__annotations__", {})) and k not in LEFT_OUT]
    defaults[name] = {k: whole[k] for k in keys}
(HERE / "defaults.json").write_text(json.dumps(defaults, indent=1) + "\n")

path = HERE / "configs.json"
configs = json.loads(path.read_text())
for name, entry in configs.items():
    config = transformers.AutoConfig.for_model(**copy.deepcopy(entry["config"]))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    entry["parameters"] = sum(p.numel() for p in model.parameters())
path.write_text(json.dumps(configs, indent=1) + "\n")
