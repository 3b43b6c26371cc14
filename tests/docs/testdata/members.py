# SPDX-License-Identifier: Apache-2.0

# Writes members.json: the public methods and properties of transformers' Trainer (5.24.0) and of accelerate's
# Accelerator (1.15.0), each of which docs/overriding.md has in a table. Run it in this folder.

import json

import accelerate
import transformers


def public(cls):
    return sorted(name for name in dir(cls) if not name.startswith("_"))


with open("members.json", "w") as f:
    json.dump({"accelerate": accelerate.__version__, "transformers": transformers.__version__,
               "Accelerator": public(accelerate.Accelerator), "Trainer": public(transformers.Trainer)}, f, indent=1)
    f.write("\n")
