"""Trains a byte-level BPE with HuggingFace's tokenizers and writes tokenizer.json, to compare our trainer's merges.

    train_bpe.py CORPUS VOCAB [OUT] [--special TOKEN ...] [--min-frequency N]

CORPUS is a file (one document) or a folder (each file below it, sorted by path, is one document). The alphabet is
the 256 bytes; there is no prefix space; special tokens get the first ids.
"""

import argparse
import pathlib

import tokenizers


def train(documents, vocab, special=(), min_frequency=0):
    """Returns the tokenizer trained on the documents, whole strings."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.post_processor = tokenizers.processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab,
        min_frequency=min_frequency,
        special_tokens=list(special),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def documents(path):
    """The text of a file, or of every file of a folder; newlines stay as they are."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return [p.read_bytes().decode("utf-8") for p in files]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("vocab", type=int)
    parser.add_argument("out", type=pathlib.Path, nargs="?", default=pathlib.Path("tokenizer.json"))
    parser.add_argument("--special", nargs="*", default=[])
    parser.add_argument("--min-frequency", type=int, default=0)
    args = parser.parse_args()
    tokenizer = train(documents(args.corpus), args.vocab, args.special, args.min_frequency)
    tokenizer.save(str(args.out))
    print(f"{args.out}: {tokenizer.get_vocab_size()} tokens, tokenizers {tokenizers.__version__}")
