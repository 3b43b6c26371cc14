"""Writes libraries.tsv: the names of arguments in trl, peft and accelerate launch, and the classes that have them.

    pip install trl==1.16.0 peft==0.21.2 accelerate==1.15.0 torch
    python libraries.py TRL_FOLDER PEFT_FOLDER > libraries.tsv    # the folders of the packages

The names of trl are the fields of the classes that its scripts and trainers parse, those of peft the fields of its
configurations; names of TrainingArguments are left out, and those of peft that any model may have. The names of
accelerate are the flags of accelerate launch.
"""

import ast
import dataclasses
import pathlib
import sys

from accelerate.commands.launch import launch_command_parser
from transformers import TrainingArguments

# of the launcher itself, not of what a program is given
LAUNCHER = {"help", "module", "no_python", "quiet", "training_script", "training_script_args", "debug", "env", "vm"}
# words of peft that are hyperparameters of models, or settings of data, elsewhere
GENERIC = set("""act_fn adapters alpha beta beta1 beta2 block_size block_share buffer_size cache_file depth direction eps
gamma group_size hidden_size init_scale init_type nblocks num_attention_heads num_groups num_layers num_ranks num_samples
num_tasks para progressbar random_seed rho rng_seed scale scaling share_embeddings sparse sparsity tau token_dim
tokenizer_name_or_path top_k topk u use_entropy variant verbose weight_tying whiten""".split())

theirs = {f.name for f in dataclasses.fields(TrainingArguments)}
names = {}


def fields(library, folder, wanted, without=()):
    """Notes the annotated fields of the classes of a package."""
    for file in sorted(pathlib.Path(folder).rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and wanted(file, node.name):
                for s in node.body:
                    if isinstance(s, ast.AnnAssign) and s.target.id not in theirs | set(without):
                        names.setdefault((library, s.target.id), set()).add(node.name)


fields("trl", sys.argv[1], lambda file, name: file.name != "vllm_serve.py" and (
    file.name.endswith("_config.py") and name.endswith("Config")
    or name.endswith("ScriptArguments") or name == "DatasetMixtureConfig"))
fields("peft", sys.argv[2], lambda file, name: file.name == "config.py" and name.endswith("Config")
       and ("tuners" in file.parts or name == "PeftConfig"), GENERIC)
for action in launch_command_parser()._actions:
    if action.dest not in LAUNCHER | theirs:
        names[("accelerate launch", action.dest)] = {"launch"}
for (library, name), classes in sorted(names.items()):
    if not name.startswith("_"):
        print(library, name, " ".join(sorted(classes)), sep="\t")
