"""Writes the goldens that tell what transformers' TrainingArguments have.

    pip install transformers==5.24.0 torch accelerate
    python training_arguments.py > transformers.tsv              # name, type and default of every field
    python training_arguments.py json > training_args.json       # what to_json_string makes of the defaults
    python training_arguments.py values > values.tsv             # the values of arguments that have a list of them

With folders of earlier releases it lists the names that have gone since: the last of these releases that had the name,
its type and its default.

    for v in 4.1.1 4.11.3 4.19.4 4.30.2 4.38.2 4.46.3 4.57.1 5.0.0 5.8.0; do
        pip download --no-deps -d old/$v transformers==$v && unzip -q old/$v/*.whl transformers/training_args.py -d old/$v
    done
    python training_arguments.py old/* > older.tsv
"""

import ast
import dataclasses
import os
import sys


def kind(text):
    """The type's name on Lockstep's side; any is a value of several types."""
    text = str(text).replace("typing.", "").replace("Optional[", "").replace("]", "").replace("<class '", "").replace("'>", "")
    parts = {p.strip() for p in text.replace("Union[", "").replace(",", "|").split("|")} - {"None", "NoneType", ""}
    if any("dict" in p or "Config" in p for p in parts):
        return "any"
    if any("list" in p.lower() for p in parts):
        return "list" if len(parts) == 1 else "any"
    if "Literal" in text:
        return "any"
    for name in ("bool", "int", "float"):
        if parts == {name}:
            return name
    return "string"


def text(value):
    """The default as Lockstep's tables show it."""
    if value is None or value == [] or value == "":
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(getattr(value, "value", value))


def newest():
    from transformers import TrainingArguments, __version__

    print(f"# transformers {__version__}")
    for f in dataclasses.fields(TrainingArguments):
        default = f.default
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        print(f.name, kind(f.type), text(default), sep="\t")


def values():
    from transformers import TrainingArguments, __version__
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
    from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
    from transformers.training_args import OptimizerNames

    print(f"# transformers {__version__}")
    lists = {f.name: f.metadata["choices"] for f in dataclasses.fields(TrainingArguments) if "choices" in f.metadata}
    enums = {"lr_scheduler_type": SchedulerType, "optim": OptimizerNames, "save_strategy": SaveStrategy}
    enums |= dict.fromkeys(("logging_strategy", "eval_strategy"), IntervalStrategy)
    lists |= {name: [v.value for v in enum] for name, enum in enums.items()}
    lists["report_to"] = [*INTEGRATION_TO_CALLBACK, "all", "none"]
    lists["include_num_input_tokens_seen"] = ["all", "non_padding", "no"]  # named in the help text alone
    for name in sorted(lists):
        print(name, *lists[name], sep="\t")


def fields(path):
    """The fields in a source file, which cannot be imported beside the newest release."""
    for cls in ast.parse(open(path).read()).body:
        if not (isinstance(cls, ast.ClassDef) and cls.name == "TrainingArguments"):
            continue
        for s in cls.body:
            if not isinstance(s, ast.AnnAssign):
                continue
            default, init = s.value, True
            if isinstance(s.value, ast.Call):
                words = {k.arg: k.value for k in s.value.keywords}
                default = words.get("default")
                init = "init" not in words
            try:
                value = ast.literal_eval(default) if default is not None else None
            except ValueError:
                value = ast.unparse(default)
            if init and s.target.id != "_VALID_DICT_FIELDS":
                yield s.target.id, kind(ast.unparse(s.annotation)), text(value)


def older(folders):
    from transformers import TrainingArguments, __version__

    have = {f.name for f in dataclasses.fields(TrainingArguments)}
    last = {}
    for folder in sorted(folders, key=lambda f: [int(n) for n in os.path.basename(f).split(".")]):
        for name, of, default in fields(os.path.join(folder, "transformers", "training_args.py")):
            last[name] = (os.path.basename(folder), of, default)
    print(f"# names that transformers {__version__} has no longer: last release, type, default")
    for name in sorted(last):
        if name not in have:
            print(name, *last[name], sep="\t")


if sys.argv[1:] == ["json"]:
    from transformers import TrainingArguments

    print(TrainingArguments(output_dir="out", report_to="none").to_json_string())
elif sys.argv[1:] == ["values"]:
    values()
elif len(sys.argv) > 1:
    older(sys.argv[1:])
else:
    newest()
