"""Does transformers' HfArgumentParser read a training_args.json, and what does TrainingArguments make of it?

    python check_arguments.py CHECKPOINT/training_args.json

It prints the arguments whose values are not TrainingArguments' defaults.
"""

import sys

from transformers import HfArgumentParser, TrainingArguments

(read,) = HfArgumentParser(TrainingArguments).parse_json_file(sys.argv[1], allow_extra_keys=True)
defaults = TrainingArguments(output_dir=read.output_dir, report_to="none").to_dict()
for name, value in read.to_dict().items():
    if value != defaults[name]:
        print(f"{name}: {value!r} (default {defaults[name]!r})")
print("read")
