"""Does transformers load a text classifier that Lockstep saved, without a missing or unexpected key, and agree with it?

    python check_classifier.py DIR [TEXT ...]

Prints how transformers' pipeline classifies the texts, for comparison with examples/classify --serve, and "ok"; or fails.
"""

import sys

import transformers

transformers.logging.set_verbosity_error()
model, info = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1], output_loading_info=True)
if type(model) is not transformers.GPT2ForSequenceClassification:
    sys.exit(f"the folder is a {type(model).__name__}")
for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    if info[kind]:
        sys.exit(f"{kind}: {sorted(info[kind])}")
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
if tokenizer.pad_token_id != model.config.pad_token_id:
    sys.exit(f"the tokenizer pads with {tokenizer.pad_token_id}, the model with {model.config.pad_token_id}")
print(f"{sum(p.numel() for p in model.parameters())} parameters, classes {model.config.id2label}")
classify = transformers.pipeline("text-classification", model=model.eval(), tokenizer=tokenizer)
for text, answer in zip(sys.argv[2:], classify(sys.argv[2:], batch_size=len(sys.argv), truncation=True) if sys.argv[2:] else []):
    print(f"{answer['label']} {answer['score']:.6f}: {text}")
print("ok")
