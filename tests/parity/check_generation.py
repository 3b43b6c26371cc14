"""Checks that transformers, given nothing but a folder that we saved, continues texts as we do.

    check_generation.py DIR GENERATION.json

GENERATION.json is a list of {"prompt", "ids", "new"}: a text, the ids that we give the model for it, and the ids with
which it goes on greedily. Checked: AutoTokenizer.from_pretrained(DIR)(prompt) has our ids; generate of
AutoModelForCausalLM.from_pretrained(DIR), without sampling and with the folder's own generation_config.json, has our new
ids; the tokenizer decodes the ids to the prompt. Exits 1 on any difference.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers


def differences(tokenizer, model, prompt, ids, new):
    """What transformers does otherwise."""
    batch = tokenizer(prompt, return_tensors="pt")
    theirs = batch["input_ids"][0].tolist()
    if theirs != ids:
        yield f"ids {ids}, transformers has {theirs}"
        return
    if (text := tokenizer.decode(ids, skip_special_tokens="<|" not in prompt)).removeprefix(tokenizer.bos_token or "") != prompt:
        yield f"transformers decodes the ids to {text!r}"
    with torch.no_grad():
        out = model.generate(**batch, do_sample=False, max_new_tokens=len(new))[0].tolist()[len(ids):]
    if out != new:
        yield f"goes on with {new}, transformers with {out}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("generation", type=pathlib.Path)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32).eval()
    texts = json.loads(args.generation.read_text(encoding="utf-8"))
    differ = 0
    for t in texts:
        for what in differences(tokenizer, model, t["prompt"], t["ids"], t["new"]):
            print(f"{t['prompt']!r}: {what}")
            differ += 1
    print(f"{len(texts)} prompts, {differ} differ; the first goes on {tokenizer.decode(texts[0]['new'])!r}")
    return 1 if differ or not texts else 0


if __name__ == "__main__":
    sys.exit(main())
