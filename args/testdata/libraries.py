"""Writes libraries.tsv: the names of arguments in trl and in accelerate launch.

    pip install trl==1.16.0 accelerate==1.15.0 torch
    python libraries.py TRL_FOLDER > libraries.tsv    # the folder trl of the package

The names of trl are the fields of the classes for supervised fine-tuning that TrainingArguments does not have.
"""

import ast
import dataclasses
import pathlib
import sys

from accelerate.commands.launch import launch_command_parser
from transformers import TrainingArguments

CLASSES = {"trainer/model_config.py": "ModelConfig", "trainer/sft_config.py": "SFTConfig", "scripts/utils.py": "ScriptArguments"}
# of the launcher itself, not of what a program is given
LAUNCHER = {"help", "module", "no_python", "quiet", "training_script", "training_script_args", "debug", "env", "vm"}
PREFIXES = ("megatron_lm_", "fp8_", "parallelism_config_", "tpu", "aws_", "mpirun_")

theirs = {f.name for f in dataclasses.fields(TrainingArguments)}
names = set()
for file, cls in CLASSES.items():
    for node in ast.parse(pathlib.Path(sys.argv[1], file).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == cls:
            names |= {("trl", s.target.id) for s in node.body if isinstance(s, ast.AnnAssign) and s.target.id not in theirs}
for action in launch_command_parser()._actions:
    if action.dest not in LAUNCHER | theirs and not action.dest.startswith(PREFIXES):
        names.add(("accelerate launch", action.dest))
for library, name in sorted(names):
    if not name.startswith("_"):
        print(library, name, sep="\t")
