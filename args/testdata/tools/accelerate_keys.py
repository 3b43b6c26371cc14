"""Writes accelerate_keys.tsv: every key of the file that `accelerate config` writes, with its default.

    pip install accelerate==1.15.0 torch
    python accelerate_keys.py > accelerate_keys.tsv

The keys of the file are the fields of ClusterConfig. Those of its sections are the arguments of `accelerate launch` by
their groups, since the launcher sets an argument for each key of a section.
"""

import dataclasses
import json

import accelerate
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser

SECTIONS = {
    "DeepSpeed Arguments": "deepspeed_config",
    "FSDP Arguments": "fsdp_config",
    "Megatron-LM Arguments": "megatron_lm_config",
    "FP8 Arguments": "fp8_config",
    "MPI Arguments": "mpirun_config",
    "ParallelismConfig Arguments": "parallelism_config",
}
keys = {}
for f in dataclasses.fields(ClusterConfig):
    keys[f.name] = None if f.default is dataclasses.MISSING else f.default
found = set()
for group in launch_command_parser()._action_groups:
    section = SECTIONS.get(group.title)
    if section is None:
        continue
    found.add(group.title)
    for action in group._group_actions:
        keys[f"{section}.{action.dest}"] = action.default
assert found == set(SECTIONS), [g.title for g in launch_command_parser()._action_groups]

print(f"# accelerate {accelerate.__version__}: key, default")
for key in sorted(keys):
    print(key, json.dumps(keys[key], default=str), sep="\t")
