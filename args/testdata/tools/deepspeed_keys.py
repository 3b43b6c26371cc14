"""Writes deepspeed_keys.tsv: every key of DeepSpeed's configuration, with its default.

    DS_BUILD_OPS=0 pip install deepspeed==0.19.8 torch
    python deepspeed_keys.py > deepspeed_keys.tsv

The keys of a section are the fields of its class, and their aliases; those of the whole file, and of sections without a
class, are the ones that DeepSpeedConfig asks for. The parameters of optimizers and schedules are those of their classes.
"""

import inspect
import json
import logging
import os
import typing

logging.disable(logging.CRITICAL)
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import pydantic
from deepspeed.ops.adam import FusedAdam
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime import lr_schedules
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config

KEYS = {}


class Spy(dict):
    """A section that notes the keys which it is asked for."""

    def __init__(self, prefix, values=()):
        super().__init__(values)
        self.prefix = prefix

    def note(self, key, default=None):
        if isinstance(key, str):
            KEYS.setdefault(self.prefix + key, default)

    def get(self, key, default=None):
        self.note(key, default)
        return super().get(key, default)

    def __contains__(self, key):
        self.note(key)
        return super().__contains__(key)

    def __getitem__(self, key):
        self.note(key)
        return super().__getitem__(key)

    def keys(self):
        return SpyKeys(self)

    def __copy__(self):
        return self


class SpyKeys:
    def __init__(self, spy):
        self.spy = spy

    def __contains__(self, key):
        return key in self.spy

    def __iter__(self):
        return iter(list(dict.keys(self.spy)))


def models(annotation):
    """The classes of configuration in a type."""
    if inspect.isclass(annotation) and issubclass(annotation, pydantic.BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from models(inner)


def model(cls, prefix):
    for name, field in cls.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        for key in {name, field.alias or name}:
            KEYS[prefix + key] = default
            for inner in models(field.annotation):
                model(inner, prefix + key + ".")


def parameters(function, prefix):
    for name, p in inspect.signature(function).parameters.items():
        if name not in ("self", "params", "optimizer"):
            KEYS[prefix + name] = None if p.default is inspect.Parameter.empty else p.default


SECTIONS = {"checkpoint", "data_types", "activation_checkpointing", "flops_profiler", "aio", "torch_autocast", "timers"}
spy = Spy("", {"train_batch_size": 1})
for section in SECTIONS:
    dict.__setitem__(spy, section, Spy(section + "."))
DeepSpeedConfig(spy)
for section in ("fp16", "bf16", "zero_optimization"):
    model({"fp16": DeepSpeedFP16Config, "bf16": DeepSpeedBF16Config, "zero_optimization": DeepSpeedZeroConfig}[section],
          section + ".")
parameters(FusedAdam.__init__, "optimizer.params.")
for schedule in (lr_schedules.WarmupLR, lr_schedules.WarmupDecayLR, lr_schedules.WarmupCosineLR):
    parameters(schedule.__init__, "scheduler.params.")
for key in ("optimizer.type", "optimizer.params", "scheduler.type", "scheduler.params"):
    KEYS[key] = None

print(f"# deepspeed {deepspeed.__version__}: key, default")
for key in sorted(KEYS):
    try:
        text = json.dumps(KEYS[key])
    except TypeError:
        text = json.dumps(str(KEYS[key]))
    print(key, text, sep="\t")
