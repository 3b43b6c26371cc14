"""Checks that transformers loads a folder that we saved, and computes the same logits.

    check_model.py DIR [--ids IDS.json --logits LOGITS.safetensors] [--tolerance 1e-4]

DIR has model.safetensors and config.json, and maybe tokenizer.json. IDS.json is a list of rows of token ids of one
length; LOGITS.safetensors has our logits [rows, length, vocabulary] under the name "logits". Checked: every tensor of
model.safetensors opens in the safetensors library and is finite; AutoModelForCausalLM.from_pretrained reports no missing,
unexpected or mismatched key; the weights in the model are the file's, bit for bit; the logits agree; tokenizer.json
loads and its ids fit the vocabulary. Exits 1 on any violation.
"""

import argparse
import json
import pathlib
import sys

import safetensors
import torch
import transformers


def check_file(path):
    """Opens every tensor with the safetensors library; returns them and what is wrong."""
    tensors, faults = {}, []
    with safetensors.safe_open(path, framework="pt") as f:
        for name in f.keys():
            tensors[name] = f.get_tensor(name)
            if not tensors[name].isfinite().all():
                faults.append(f"{name} is not finite")
        dtypes = sorted({str(t.dtype) for t in tensors.values()})
        print(f"safetensors: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} elements, {dtypes}, metadata {f.metadata()}")
    return tensors, faults


def check_load(folder, tensors):
    """Loads the model with transformers; returns it and what is wrong."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    faults = []
    for kind in ["missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"]:
        found = sorted(info.get(kind) or [])
        print(f"transformers: {kind}: {found or 'none'}")
        if found:
            faults.append(f"{kind}: {found}")
    loaded = model.state_dict()
    for name, t in tensors.items():
        if name not in loaded or not torch.equal(loaded[name], t.float()):
            faults.append(f"{name} is not in the model as it is in the file")
    return model.eval(), faults


def check_logits(model, ids_path, logits_path, tolerance):
    """Compares our logits with transformers'; returns what is wrong."""
    ids = torch.tensor(json.loads(ids_path.read_text()))
    with safetensors.safe_open(logits_path, framework="pt") as f:
        ours = f.get_tensor("logits").float()
    with torch.no_grad():
        want = model(ids).logits
    if ours.shape != want.shape:
        return [f"logits have shape {list(ours.shape)}, want {list(want.shape)}"]
    worst = (ours - want).abs().max().item()
    same = (ours.argmax(-1) == want.argmax(-1)).float().mean().item()
    print(f"logits: {list(want.shape)}, standard deviation {want.std().item():.4g}, max abs difference {worst:.3g}, same argmax {same:.2%}")
    return [] if worst <= tolerance else [f"logits differ by {worst}, want at most {tolerance}"]


def check_tokenizer(path, config):
    """Loads tokenizer.json as transformers does; returns what is wrong."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    text = "func main() { fmt.Println(\"Hello, 世界\") }\n"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    print(f"tokenizer: {len(tokenizer)} tokens, model vocabulary {config.vocab_size}, {len(ids)} ids for {text!r}")
    faults = [] if len(tokenizer) <= config.vocab_size else ["the tokenizer has more tokens than the model"]
    if tokenizer.decode(ids, clean_up_tokenization_spaces=False) != text:
        faults.append("the tokenizer does not give a text back")
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--ids", type=pathlib.Path)
    parser.add_argument("--logits", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    if (args.ids is None) != (args.logits is None):
        parser.error("--ids and --logits go together")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}, safetensors {safetensors.__version__}")

    tensors, faults = check_file(args.folder / "model.safetensors")
    model, more = check_load(args.folder, tensors)
    faults += more
    if args.ids is not None:
        faults += check_logits(model, args.ids, args.logits, args.tolerance)
    if (args.folder / "tokenizer.json").exists():
        faults += check_tokenizer(args.folder / "tokenizer.json", model.config)
    for fault in faults:
        print("FAULT:", fault)
    print("ok" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
