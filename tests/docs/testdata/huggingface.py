# SPDX-License-Identifier: Apache-2.0

# Writes huggingface.json: the names of transformers 5.24 and accelerate 1.15 that docs/parity.md answers, beside those of
# members.json. Run it in this folder.

import dataclasses
import inspect
import json

import accelerate
import transformers
from accelerate import data_loader, tracking, utils
from transformers import Seq2SeqTrainingArguments, TrainingArguments, trainer_callback, trainer_pt_utils, trainer_utils
from transformers.data import data_collator
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.training_args import OptimizerNames


def classes(module, *words):
    return sorted(name for name, c in vars(module).items() if inspect.isclass(c) and c.__module__ == module.__name__
                  and any(w in name for w in words))


arguments = [f.name for f in dataclasses.fields(TrainingArguments)]
names = {
    "arguments": arguments + [f.name for f in dataclasses.fields(Seq2SeqTrainingArguments) if f.name not in arguments],
    "events": [n for n in vars(trainer_callback.TrainerCallback) if n.startswith("on_")],
    "callbacks": classes(trainer_callback, "Callback") + ["JITCheckpointCallback"],
    "schedules": [s.value for s in trainer_utils.SchedulerType],
    "optimizers": [o.value for o in OptimizerNames],
    "samplers": sorted(set(classes(trainer_pt_utils, "Sampler", "Shard") + classes(data_loader, "Sampler", "Shard"))),
    "loaders": [n for n in classes(data_loader, "DataLoader") if "Mixin" not in n and "Adapter" not in n],
    "collators": [n for n in classes(data_collator, "Collator") if "Mixin" not in n] + ["default_data_collator"],
    "trackers": sorted(set(INTEGRATION_TO_CALLBACK) | {str(getattr(k, "value", k)) for k in tracking.LOGGER_TYPE_TO_CLASS}),
    "accelerate": sorted(n for n, v in vars(accelerate).items() if not n.startswith("_") and not inspect.ismodule(v)),
    "handlers": sorted(n for n in vars(utils) if n.endswith(("Kwargs", "Plugin", "Configuration"))),
}
with open("huggingface.json", "w") as f:
    json.dump({"accelerate_version": accelerate.__version__, "transformers_version": transformers.__version__, **names}, f, indent=1)
    f.write("\n")
