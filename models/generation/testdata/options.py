"""Writes options.json: what transformers' generate makes of the GPT-2 in models/gpt2/testdata/tiny, greedily, with several options, and of a batch that is
padded on the left. Usage: options.py [--out FOLDER].
"""

import argparse
import json
import pathlib

import torch
import transformers
from transformers import AutoModelForCausalLM

HERE = pathlib.Path(__file__).resolve().parent
PROMPT = [5, 3, 5, 9, 3]
BATCH = [PROMPT, [7], [1, 2, 1, 2, 1, 2, 1]]
NEW, PAD = 24, 0
OPTIONS = [
    *({"repetition_penalty": penalty} for penalty in (1.0, 1.1, 1.5, 0.8)),
    *({"no_repeat_ngram_size": n} for n in (1, 2, 3)),
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
]


def generate(model, prompts, options):
    longest = max(map(len, prompts))
    ids = torch.tensor([[PAD] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    options = {"eos_token_id": None, "pad_token_id": PAD} | options
    return model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW, **options)[:, longest:].tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(HERE / "../../gpt2/testdata/tiny", dtype=torch.float32).eval()
    runs = [{"options": options, "new": generate(model, [PROMPT], options)} for options in OPTIONS]
    runs.append({"options": {}, "prompts": BATCH, "new": generate(model, BATCH, {})})
    end = runs[0]["new"][0][2]  # it would end the text at once
    ended = [{"eos_token_id": end}, {"eos_token_id": end, "min_new_tokens": 6}]
    runs += [{"options": options, "new": [row[: row.index(end) + 1] if end in row else row for row in generate(model, [PROMPT], options)]} for options in ended]
    text = json.dumps({"versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "prompt": PROMPT, "runs": runs})
    (out / "options.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
