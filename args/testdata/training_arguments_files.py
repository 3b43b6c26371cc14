"""Writes training_arguments_files.jsonl: the files that transformers writes for each argument with each legal value.

    pip install transformers==5.24.0 torch accelerate deepspeed
    python training_arguments_files.py > training_arguments_files.jsonl

Each line is a JSON object: the arguments given to TrainingArguments, and how the result of to_json_string differs from
training_args.json, which has the defaults. The values are True and False of a switch, every member of an enumeration,
every form of a union, and some numbers and texts of the others.
"""

import dataclasses
import json
import logging
import os
import sys
import tempfile
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

from accelerate.parallelism_config import ParallelismConfig
from transformers import TrainingArguments, __version__
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_utils import HubStrategy, IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames

BASE = {"output_dir": "out", "report_to": "none"}


def members(enum):
    return [m.value for m in enum]


KWARGS = [
    ("cosine", {"num_cycles": 1.5}),
    ("cosine_with_restarts", {"num_cycles": 1.5}),
    ("cosine_with_restarts", {"num_cycles": 3}),
    ("polynomial", {"lr_end": 1e-6, "power": 2.0}),
    ("inverse_sqrt", {"timescale": 100}),
    ("cosine_with_min_lr", {"min_lr": 1e-3}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.1, "num_cycles": 0.5}),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1, "warmup_lr_rate": 0.5}),
    ("warmup_stable_decay", {"num_decay_steps": 10, "decay_type": "1-sqrt", "min_lr_ratio": 0.1}),
]

DEEPSPEED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "overlap_comm": True},
    "bf16": {"enabled": "auto"},
}

# name -> values; a value is what the argument gets, or a Case with further arguments that it needs
@dataclasses.dataclass
class Case:
    value: object
    more: dict


def values():
    steps = [0.25, 1, 10]
    cpu = {"use_cpu": True}
    yield "output_dir", ["out", "~/out", None]
    yield "per_device_train_batch_size", [1, 32]
    yield "per_device_eval_batch_size", [1, 32]
    yield "num_train_epochs", [1, 0.5, 10.0]
    yield "max_steps", [-1, 1, 1000]
    yield "learning_rate", [0.0, 1e-3, 1]
    evaluated = {"eval_strategy": "steps", "eval_steps": 10}
    needs = {"reduce_lr_on_plateau": evaluated, "greedy": evaluated}  # other schedules need arguments of their own
    needs |= {t: {"lr_scheduler_kwargs": kw} for t, kw in KWARGS}
    yield "lr_scheduler_type", [Case(v, needs.get(v, {})) for v in members(SchedulerType)]
    yield "lr_scheduler_kwargs", [None, {}, "{}"] + [Case(kw, {"lr_scheduler_type": t}) for t, kw in KWARGS]
    yield "warmup_steps", [0, 0.1, 1, 500]
    yield "optim", members(OptimizerNames)
    yield "optim_args", [None, Case("momentum=0.9", {"optim": "sgd"})]
    for name in ("weight_decay", "adam_beta1", "adam_beta2"):
        yield name, [0.0, 0.1]
    yield "adam_epsilon", [1e-8, 1e-6]
    yield "optim_target_modules", [None, "all-linear", ["attn", "mlp"]]
    yield "gradient_accumulation_steps", [1, 8]
    yield "max_grad_norm", [0.0, 0.5]
    yield "label_smoothing_factor", [0.0, 0.1]
    for name in ("bf16", "fp16", "bf16_full_eval", "fp16_full_eval"):
        yield name, [False, Case(True, cpu)]
    yield "tf32", [None, False]
    for name in ("activation_checkpointing", "gradient_checkpointing"):
        yield name, [None, False, True]
        yield name + "_kwargs", [None, {"use_reentrant": False}, '{"use_reentrant": true}']
    yield "torch_compile_backend", [None, "inductor", "eager"]
    yield "torch_compile_mode", [None, "default", "reduce-overhead"]
    yield "liger_kernel_config", [None, {"rope": True, "swiglu": False}]
    yield "neftune_noise_alpha", [None, 5.0]
    yield "torch_empty_cache_steps", [None, 4]
    yield "logging_strategy", members(IntervalStrategy)
    yield "logging_steps", steps
    yield "include_num_input_tokens_seen", ["no", "all", "non_padding", True, False]
    for name in ("log_level", "log_level_replica"):
        yield name, ["detail", "debug", "info", "warning", "error", "critical", "passive"]
    yield "disable_tqdm", [None, False, True]
    yield "report_to", ["none", ["none"], [], "tensorboard", ["tensorboard"], *INTEGRATION_TO_CALLBACK]
    yield "run_name", [None, "a run"]
    yield "project", ["huggingface", "mine"]
    for name in ("trackio_space_id", "trackio_bucket_id"):
        yield name, [None, "mine"]
    yield "trackio_static_space_id", [None, "mine", False]
    yield "eval_strategy", members(IntervalStrategy)
    yield "eval_steps", [None, *(Case(v, {"eval_strategy": "steps"}) for v in steps)]
    yield "eval_delay", [0, 2, 0.5]
    yield "eval_accumulation_steps", [None, 4]
    yield "include_for_metrics", [[], ["inputs"], ["inputs", "loss"]]
    yield "save_strategy", [
        Case(v, {"eval_strategy": "epoch", "metric_for_best_model": "loss"}) if v == "best" else v
        for v in members(SaveStrategy)
    ]
    yield "save_steps", steps
    yield "save_total_limit", [None, 1, 3]
    yield "hub_token", [None, "secret"]
    yield "hub_private_repo", [None, True, False]
    yield "hub_model_id", [None, "me/model"]
    yield "hub_strategy", members(HubStrategy)
    yield "hub_revision", [None, "dev"]
    both = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    yield "load_best_model_at_end", [False, Case(True, both)]
    yield "metric_for_best_model", [None, Case("accuracy", both), Case("eval_loss", both)]
    yield "greater_is_better", [None, Case(True, both | {"metric_for_best_model": "f1"}), False]
    yield "seed", [0, 2**32 - 1]
    yield "data_seed", [None, 7]
    yield "accelerator_config", [
        None, {}, "{}", {"split_batches": False}, {"even_batches": True}, {"dispatch_batches": False},
        {"use_seedable_sampler": True}, {"gradient_accumulation_kwargs": {"num_steps": 2}},
    ]
    yield "parallelism_config", [None, ParallelismConfig(), ParallelismConfig(dp_replicate_size=2)]
    yield "dataloader_num_workers", [0, 4]
    yield "dataloader_prefetch_factor", [None, Case(4, {"dataloader_num_workers": 2})]
    yield "dataloader_multiprocessing_context", [None, "fork", "spawn", "forkserver"]
    yield "label_names", [None, ["labels"], ["start", "end"]]
    yield "train_sampling_strategy", ["random", "sequential", "group_by_length", "batch_rebalance"]
    yield "length_column_name", ["length", "rows"]
    for name in ("ddp_find_unused_parameters", "ddp_broadcast_buffers", "ddp_static_graph"):
        yield name, [None, True, False]
    yield "ddp_bucket_cap_mb", [None, 50]
    yield "ddp_backend", [None, "nccl", "gloo", "mpi", "xccl", "hccl", "cncl", "mccl"]
    yield "ddp_timeout", [60, 180000000]
    layers = {"transformer_layer_cls_to_wrap": "GPT2Block"}
    old = {"version": 1}
    yield "fsdp", [
        None, False, True, "", [], "full_shard", "shard_grad_op", "full_shard auto_wrap", "shard_grad_op auto_wrap",
        "full_shard offload", "full_shard auto_wrap offload", ["full_shard", "auto_wrap"], ["shard_grad_op"],
        Case("full_shard auto_wrap", {"fsdp_config": layers}),
        Case("hybrid_shard", {"fsdp_config": old}), Case("hybrid_shard_zero2", {"fsdp_config": old}),
        Case("no_shard", {"fsdp_config": old}), Case("shard_grad_op", {"fsdp_config": old}),
    ]
    on = {"fsdp": True}
    yield "fsdp_config", [None, {}, layers] + [
        Case(v, on)
        for v in (
            {}, layers, {"fsdp_transformer_layer_cls_to_wrap": ["GPT2Block", "GPT2MLP"]},
            {"reshard_after_forward": True}, {"reshard_after_forward": False}, {"reshard_after_forward": "true"},
            {"activation_checkpointing": True}, {"activation_checkpointing": False}, {"cpu_offload": True},
            {"cpu_ram_efficient_loading": True}, {"state_dict_type": "FULL_STATE_DICT"},
            {"state_dict_type": "SHARDED_STATE_DICT"}, {"min_num_params": 0},
            {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 1000}, {"auto_wrap_policy": "NO_WRAP"},
            {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, {"version": 2, "xla": False}, {"fsdp_version": 2},
            old | {"backward_prefetch": "backward_pre", "forward_prefetch": True},
            old | {"use_orig_params": True, "sync_module_states": True, "limit_all_gathers": True},
        )
    ]
    yield "deepspeed", [None, DEEPSPEED, json.dumps(DEEPSPEED), "ds.json"]
    yield "debug", ["", [], "underflow_overflow", "tpu_metrics_debug", "underflow_overflow tpu_metrics_debug"]
    yield "resume_from_checkpoint", [None, "out/checkpoint-500"]
    yield "local_rank", [-1]


def write():
    listed = dict(values())
    defaults = json.loads(TrainingArguments(**BASE).to_json_string())
    for f in dataclasses.fields(TrainingArguments):
        if f.type is bool and f.name not in listed:
            listed[f.name] = [False, True]
    for f in dataclasses.fields(TrainingArguments):
        for case in listed.pop(f.name):
            value, more = (case.value, case.more) if isinstance(case, Case) else (case, {})
            given = more | {f.name: value}
            arguments = BASE | json_copy(given)
            backend = arguments.pop("ddp_backend", None)  # the constructor would connect to the other ranks
            result = TrainingArguments(**arguments)
            result.ddp_backend = backend
            result = json.loads(result.to_json_string())
            written = {k: v for k, v in result.items() if v != defaults[k] or type(v) is not type(defaults[k])}
            print(json.dumps({"name": f.name, "given": shown(given), "written": written}))
    assert not listed, listed


def json_copy(given):
    """TrainingArguments changes the dictionaries that it is given."""
    return {k: json.loads(json.dumps(v)) if isinstance(v, (dict, list)) else v for k, v in given.items()}


def shown(given):
    return {k: repr(v) if isinstance(v, ParallelismConfig) else v for k, v in given.items()}


print(json.dumps({"transformers": __version__}))
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    with open("ds.json", "w") as f:
        json.dump(DEEPSPEED, f)
    os.environ["HOME"] = "/home/user"
    write()
