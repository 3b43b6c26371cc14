"""Makes trainer/: the folder that HuggingFace's Trainer writes after it has trained a small text classifier.

The texts are tokenized as people do it, with truncation and padding to a length, which the tokenizer then keeps in its
tokenizer.json. The classes have no names, only numbers.

trainer/config.json, model.safetensors, tokenizer.json, tokenizer_config.json: as Trainer.save_model writes them, without
its training_args.bin.
trainer/golden.json: texts, their ids and the logits of the saved model, read again. One text is longer than the model.
"""

import pathlib
import sys
import tempfile

import tokenizers
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tests" / "parity"))
import golden  # noqa: E402

LENGTH = 24
THINGS, PRAISE, BLAME = ["food", "room", "film", "garden"], ["good", "great", "lovely"], ["bad", "awful", "dreary"]

out = golden.start(__file__, __doc__) / "trainer"
transformers.logging.set_verbosity_error()
texts, labels = [], []
for i in range(48):
    words = BLAME if i % 3 == 0 else PRAISE
    texts.append(f"The {THINGS[i % 4]} was{' really' * (i % 5)} {words[i // 3 % 3]}, they said.")
    labels.append(0 if i % 3 == 0 else 1)

bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
bpe.decoder = tokenizers.decoders.ByteLevel()
bpe.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
    vocab_size=300, special_tokens=["<|endoftext|>", "<|pad|>"], show_progress=False,
    initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|endoftext|>", pad_token="<|pad|>",
                                                 model_max_length=LENGTH)
config = transformers.GPT2Config(
    vocab_size=len(tokenizer), n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
    pad_token_id=tokenizer.pad_token_id, num_labels=2)
model = transformers.GPT2ForSequenceClassification(config)

rows = [{**tokenizer(t, truncation=True, padding="max_length", max_length=LENGTH), "labels": label}
        for t, label in zip(texts, labels)]
with tempfile.TemporaryDirectory() as work:
    arguments = transformers.TrainingArguments(
        output_dir=work, num_train_epochs=20, learning_rate=1e-2, per_device_train_batch_size=8, report_to="none",
        use_cpu=True, save_strategy="no", disable_tqdm=True, seed=1)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(out)
(out / "training_args.bin").unlink()
(out / "model.safetensors").chmod(0o644)

ask = ["The garden was lovely, they said.", "The room was really awful, they said.",
       "The film was" + " really" * 40 + " dreary, they said.", "What?"]
tokenizer = transformers.AutoTokenizer.from_pretrained(out)
model = transformers.AutoModelForSequenceClassification.from_pretrained(out).eval()
batch = tokenizer(ask, truncation=True, padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**batch).logits
golden.save_json(out / "golden.json", {
    "made_by": golden.versions(transformers, tokenizers), "texts": ask,
    "ids": [tokenizer(t, truncation=True)["input_ids"] for t in ask], "logits": logits.tolist()})
