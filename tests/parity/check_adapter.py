"""Checks that a LoRA adapter which examples/finetune trained computes in PEFT what it computes here, and the other way
round.

    check_adapter.py [MODEL [ROWS.jsonl]] [--steps 20] [--length 48] [--tolerance 1e-6]

MODEL is a folder of a chat model, that of examples/finetune by default, and ROWS its conversations. Three adapters
are trained by `go run ./examples/finetune`: one that it makes itself (--use_peft, all linear layers), one with
modules that are trained whole, and one that PEFT made with ranks and alphas of their own for some layers. Checked for
each: PEFT loads the folder without a missing or unexpected key, its matrices are the file's, bit for bit, and the
adapter changes the model; logits of a few rows agree. Then PEFT trains the adapter on and saves it, we load it, and
all is checked again. Where both sides compute in float64, norms included, logits may differ by the tolerance, in
units of the largest. In float32 either side rounds: ours may be three times as far from float64 as PEFT's, and five
times, or ten tolerances, from those of the model that PEFT merged. torch computes on one thread. Exits 1 on any
violation.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import types

import peft
import torch
import transformers
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).parents[2]
TESTDATA = ROOT / "examples/finetune/testdata"
# How finetune makes an adapter, or what PEFT makes for it to train on.
CASES = {
    "made here": ["--use_peft", "--lora_target_modules", "all-linear", "--lora_r", "8"],
    "with a whole module": ["--use_peft", "--lora_target_modules", "q_proj", "--lora_target_modules", "down_proj",
                            "--lora_modules_to_save", "norm", "--use_rslora"],
    "patterns": dict(r=4, lora_alpha=6, target_modules="all-linear", bias="all", use_rslora=True, lora_dropout=0.1,
                     rank_pattern={"down_proj": 2, r"layers\.1.*k_proj": 3}, alpha_pattern={"q_proj": 5, "o_proj": 1.5},
                     modules_to_save=["post_attention_layernorm"]),
}


def load(model, adapter, dtype=torch.float32, **more):
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype, attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(base, adapter, autocast_adapter_dtype=False, **more).to(dtype).eval()
    for m in model.modules():
        if dtype == torch.float64 and type(m).__name__.endswith("RMSNorm"):
            m.forward = types.MethodType(norm, m)
    return model


def norm(self, x):
    """An RMSNorm in the dtype of x: that of transformers is float32 whatever x is."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def logits(model, ids):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.double()


def lockstep(*argv):
    done = subprocess.run(["go", "run", *argv], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"go run {' '.join(argv)}:\n{done.stdout}{done.stderr}")


def check_files(adapter, model):
    """What of a saved adapter is not in PEFT's model as it is in the file."""
    saved = load_file(adapter / "adapter_model.safetensors")
    loaded = peft.get_peft_model_state_dict(model)
    if saved.keys() != loaded.keys():
        yield f"keys {sorted(saved.keys() ^ loaded.keys())} are on one side alone"
    for name in saved.keys() & loaded.keys():
        if not torch.equal(saved[name].float(), loaded[name].float()):
            yield f"{name} is not in PEFT as it is in the file"
    if not any(t.abs().max() > 0 for name, t in saved.items() if "lora_B" in name):
        yield "the adapter changes nothing"


def logits_here(args, adapter, ids, scratch, *flags):
    (scratch / "ids.json").write_text(json.dumps(ids))
    lockstep("./tests/parity/export", "--ids", str(scratch / "ids.json"), "--adapter", str(adapter), *flags,
             str(args.model), str(scratch))
    return load_file(scratch / "logits.safetensors")["logits"].double()


def check_logits(args, title, adapter, ids, scratch):
    """Where logits with an adapter differ."""
    model = load(args.model, adapter)
    yield from check_files(adapter, model)
    theirs, exact = logits(model, ids), logits(load(args.model, adapter, torch.float64), ids)
    merged, plain = logits(model.merge_and_unload(), ids), logits(
        transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval(), ids)
    ours, ours_exact = (logits_here(args, adapter, ids, scratch, *f) for f in ([], ["--float64"]))
    apart = lambda a, b: ((a - b).abs().max() / exact.abs().max()).item()
    print(f"{title}: in float64 {apart(ours_exact, exact):.2g} of the largest, {exact.abs().max():.3g}; in float32 "
          f"{apart(ours, theirs):.2g}, from PEFT's float64 {apart(ours, exact):.2g} and PEFT's "
          f"{apart(theirs, exact):.2g}; from those merged by PEFT {apart(ours, merged):.2g}; the adapter changes "
          f"{apart(exact, plain):.2g}",
          flush=True)
    if ours.shape != theirs.shape or not apart(ours_exact, exact) <= args.tolerance:
        yield f"logits in float64 differ by {apart(ours_exact, exact)} of the largest"
    if not apart(ours, exact) <= max(args.tolerance, 3 * apart(theirs, exact)):
        yield f"logits in float32 are {apart(ours, exact)} of the largest away, PEFT's {apart(theirs, exact)}"
    if not apart(ours, merged) <= max(10 * args.tolerance, 5 * apart(theirs, exact)):
        yield f"logits differ from merged ones by {apart(ours, merged)} of the largest"
    if not apart(exact, plain) > 100 * args.tolerance:
        yield "the adapter changes nothing that could be compared"


def train_on(args, adapter, ids, out):
    """PEFT trains an adapter on rows of tokens, and saves it."""
    model = load(args.model, adapter, is_trainable=True).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.learning_rate)
    for _ in range(3):
        model(input_ids=torch.tensor(ids), labels=torch.tensor(ids)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(out)


def check(args, name, how, ids, scratch):
    """What is wrong with one adapter, both ways."""
    argv = how
    if isinstance(how, dict):
        base = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **how)).save_pretrained(scratch / "fresh")
        argv = ["--adapter", str(scratch / "fresh")]
    lockstep("./examples/finetune", "--model_name_or_path", str(args.model), "--train_file", str(args.rows),
             "--output_dir", str(scratch / "ours"), "--max_steps", str(args.steps), "--max_length", "64",
             "--learning_rate", str(args.learning_rate), "--per_device_train_batch_size", "2", "--save_strategy", "no",
             "--max_new_tokens", "0", *argv)
    yield from check_logits(args, f"{name}, trained here", scratch / "ours", ids, scratch)
    train_on(args, scratch / "ours", ids, scratch / "theirs")
    yield from check_logits(args, f"{name}, trained on by PEFT", scratch / "theirs", ids, scratch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path, default=TESTDATA / "model")
    parser.add_argument("rows", nargs="?", type=pathlib.Path, default=TESTDATA / "chats.jsonl")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--learning_rate", type=float, default=1e-3)
    parser.add_argument("--tolerance", type=float, default=1e-6)
    args = parser.parse_args()
    args.model, args.rows = args.model.absolute(), args.rows.absolute()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"peft {peft.__version__}, transformers {transformers.__version__}, torch {torch.__version__}")
    ids = transformers.AutoTokenizer.from_pretrained(args.model)(args.rows.read_text())["input_ids"]
    ids = [ids[i * args.length:(i + 1) * args.length] for i in range(2)]
    faults = []
    for name, how in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            faults += [f"{name}: {fault}" for fault in check(args, name, how, ids, pathlib.Path(scratch))]
    for fault in faults:
        print("FAULT:", fault)
    print("ok" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
