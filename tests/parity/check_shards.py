"""Checks that transformers loads the same model from one file of weights and from several with an index.

    check_shards.py WHOLE SPLIT LIMIT

WHOLE has model.safetensors, as lockstep merge-weights writes it; SPLIT has model-0000k-of-0000n.safetensors and
model.safetensors.index.json, as --max_shard_size LIMIT and merge-weights --max_shard_size LIMIT write them. Checked: transformers
reports no missing, unexpected or mismatched key for either; all weights are those of WHOLE, bit for bit; the index names
every tensor's file and the sum of bytes; huggingface_hub, given the model's state_dict and LIMIT, cuts the files at the same
tensors. Exits 1 on any violation.
"""

import json
import pathlib
import sys

import huggingface_hub
import safetensors.torch
import torch
import transformers


def load(folder):
    """Loads a model; returns it and what is wrong."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, dtype="auto")
    faults = []
    for kind in ["missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"]:
        if found := sorted(info.get(kind) or []):
            faults.append(f"{folder}: {kind}: {found}")
    return model, faults


def names(folder):
    """The tensors of each file, and the sizes of the files' tensors in bytes."""
    files, sizes = {}, {}
    for path in sorted(folder.glob("model-*.safetensors")):
        tensors = safetensors.torch.load_file(path)
        files[path.name] = sorted(tensors)
        sizes[path.name] = sum(t.numel() * t.element_size() for t in tensors.values())
    return files, sizes


def main():
    whole, split, limit = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    one, faults = load(whole)
    many, more = load(split)
    faults += more
    want = safetensors.torch.load_file(whole / "model.safetensors")
    for model, folder in [(one, whole), (many, split)]:
        state = model.state_dict()
        faults += [f"{folder}: {n} differs from {whole}" for n, t in want.items() if not torch.equal(state[n], t)]
    files, sizes = names(split)
    index = json.loads((split / "model.safetensors.index.json").read_text())
    if index["weight_map"] != {n: f for f, list in files.items() for n in list}:
        faults.append("the index does not name the files of the tensors")
    if index["metadata"]["total_size"] != sum(sizes.values()):
        faults.append(f"total_size {index['metadata']['total_size']}, want {sum(sizes.values())}")
    state = {n: t for n, t in one.state_dict().items() if n in want}
    cut = huggingface_hub.split_torch_state_dict_into_shards(state, max_shard_size=limit)
    theirs = {f: sorted(list) for f, list in cut.filename_to_tensors.items()}
    if theirs != files:
        faults.append(f"huggingface_hub cuts at other tensors: {theirs}, want {files}")
    print(f"{len(want)} tensors, {sum(sizes.values())} bytes in {len(files)} files of at most {max(sizes.values())}; "
          f"transformers {transformers.__version__}, huggingface_hub {huggingface_hub.__version__}")
    for fault in faults:
        print("FAULT:", fault)
    sys.exit(bool(faults))


main()
