"""Writes generate.json: the tokens that transformers' Seq2SeqTrainer predicts with predict_with_generate, for the GPT-2
in models/gpt2/testdata/tiny. Usage: generate.py [--out FOLDER].
"""

import argparse
import json
import pathlib
import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, Seq2SeqTrainer, Seq2SeqTrainingArguments

HERE = pathlib.Path(__file__).resolve().parent
PROMPTS = [[5, 3, 5, 9, 3], [7, 1, 2, 2, 8], [9, 9], [1, 4], [6]]
MAX_LENGTH = 14


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=HERE)
    out = parser.parse_args().out
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(HERE / "../../models/gpt2/testdata/tiny", dtype=torch.float32).eval()
    model.config.pad_token_id = 0
    generated = []
    with tempfile.TemporaryDirectory() as folder:
        args = Seq2SeqTrainingArguments(
            folder, predict_with_generate=True, generation_max_length=MAX_LENGTH, per_device_eval_batch_size=1, use_cpu=True,
            report_to=[], disable_tqdm=True, generation_config=GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0))
        trainer = Seq2SeqTrainer(model=model, args=args)
        for prompt in PROMPTS:  # one call each, since a causal model's batch would be padded on the wrong side
            rows = trainer.predict([{"input_ids": prompt, "labels": prompt}]).predictions
            assert rows[0, :len(prompt)].tolist() == prompt
            generated.append(rows[0, len(prompt):MAX_LENGTH].tolist())  # without the padding to the model's own limit
    text = json.dumps({"versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "max_length": MAX_LENGTH,
                       "prompts": PROMPTS, "generated": generated})
    (out / "generate.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
