"""Writes repetition.json: what transformers' generate makes of the GPT-2 in models/gpt2/testdata/tiny, greedily, for a few
repetition penalties. Usage: repetition.py [--out FOLDER].
"""

import argparse
import json
import pathlib

import torch
import transformers
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
PROMPT = [5, 3, 5, 9, 3]
NEW = 24


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(HERE / "../../gpt2/testdata/tiny", dtype=torch.float32).eval()
    runs = []
    for penalty in [1.0, 1.1, 1.5, 0.8]:
        ids = torch.tensor([PROMPT])
        new = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, repetition_penalty=penalty,
                             eos_token_id=None, pad_token_id=0)[0, len(PROMPT):].tolist()
        runs.append({"penalty": penalty, "new": new})
    text = json.dumps({"versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "prompt": PROMPT, "runs": runs}, indent=1)
    (out / "repetition.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
