"""Writes mesh.jsonl: what accelerate and transformers write of the sizes of a mesh.

    pip install transformers==5.24.0 accelerate==1.15.0 torch
    python mesh.py > mesh.jsonl

Each line has the sizes and what a library makes of them: the file of `accelerate config` (yaml), the variables of
`accelerate launch` (environment), the fields of a ParallelismConfig (object), the file of a DistributedConfig (file).
"""

import contextlib
import dataclasses
import json
import os
import tempfile
import warnings

warnings.filterwarnings("ignore")

import accelerate
import transformers
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils.launch import prepare_extend_env_parallelism_config
from transformers.distributed import DistributedConfig

SIZES = [
    {},
    {"dp_shard_size": 4},
    {"dp_replicate_size": 2, "dp_shard_size": 2},
    {"dp_shard_size": 2, "tp_size": 2},
    {"dp_shard_size": 2, "cp_size": 2},
    {"dp_shard_size": 2, "sp_size": 2},
    {"dp_replicate_size": 2, "dp_shard_size": 2, "cp_size": 2, "tp_size": 2},
]
DISTRIBUTED = [
    {},
    {"fsdp_size": 4},
    {"dp_replicate_size": 2, "fsdp_size": 2, "fsdp_cpu_offload": True, "fsdp_mixed_precision": True},
    {"tp_size": 2},
    {"tp_size": 2, "tp_plan": "auto"},
    {"tp_size": 2, "pp_size": 2},
    {"tp_size": 2, "fsdp_size": 2, "dp_replicate_size": 2},
]


def yaml(sizes):
    """As accelerate/commands/config/cluster.py asks for them: all sizes but that of sp."""
    names = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
    if set(sizes) - set(names):
        return None
    section = {"parallelism_config_" + n: sizes.get(n, 1) for n in names}
    if sizes.get("cp_size", 1) > 1:
        section["parallelism_config_cp_comm_strategy"] = "allgather"
    world = 1
    for n in sizes.values():
        world *= n
    config = ClusterConfig(
        compute_environment="LOCAL_MACHINE", distributed_type="FSDP", mixed_precision="bf16", use_cpu=False,
        debug=False, num_processes=world, parallelism_config=section,
        fsdp_config={"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_state_dict_type": "FULL_STATE_DICT"},
    )
    config.to_yaml_file("a.yaml")
    with open("a.yaml") as f:
        return f.read()


def environment(sizes):
    flags = [f"--parallelism_config_{name}={n}" for name, n in sizes.items()]
    args = launch_command_parser().parse_args([*flags, "train.py"])
    variables = prepare_extend_env_parallelism_config(args, {})
    return {k: v for k, v in variables.items() if k.startswith(("PARALLELISM_", "ACCELERATE_"))}


def fields(sizes):
    config = ParallelismConfig(**sizes)
    text = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    return {k: dataclasses.asdict(v) if dataclasses.is_dataclass(v) else v for k, v in text.items()}


print(json.dumps({"accelerate": accelerate.__version__, "transformers": transformers.__version__}))
with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
    for sizes in SIZES:
        for form in (yaml, environment, fields):
            if (written := form(sizes)) is not None:
                name = {"fields": "object"}.get(form.__name__, form.__name__)
                print(json.dumps({"form": name, "sizes": sizes, "written": written}))
    for sizes in DISTRIBUTED:
        config = DistributedConfig(**sizes)
        config.to_json_file("d.json")
        with open("d.json") as f:
            print(json.dumps({"form": "file", "sizes": sizes, "written": json.load(f)}))
    assert os.path.exists("d.json")
