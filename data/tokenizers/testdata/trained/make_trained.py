"""Makes tokenizer.json and ids.json: HuggingFace's BPE trainer on corpus.txt, and the ids of lines.txt under it.

corpus.txt is one document, taken from this project's sources, with some lines of other scripts and odd spaces at
its end. lines.txt are 200 lines that are not in it. ids.json: for every line its ids and its pre-tokens.
"""

import pathlib
import shutil
import sys

import tokenizers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tests" / "parity"))
import check_tokenizer  # noqa: E402
import golden  # noqa: E402
import train_bpe  # noqa: E402

VOCAB, SPECIAL = 600, ["<|endoftext|>"]

here = pathlib.Path(__file__).resolve().parent
out = golden.start(__file__, __doc__)
tokenizer = train_bpe.train(train_bpe.documents(here / "corpus.txt"), VOCAB, SPECIAL)
tokenizer.save(str(out / "tokenizer.json"))

entries = []
for line in check_tokenizer.lines_of(here / "lines.txt"):
    pieces = [line[a:b] for _, (a, b) in tokenizer.pre_tokenizer.pre_tokenize_str(line)]
    entries.append({"ids": tokenizer.encode(line, add_special_tokens=False).ids, "splits": pieces})
golden.save_json(out / "ids.json", {"made_by": golden.versions(tokenizers), "vocab_size": VOCAB, "special": SPECIAL, "lines": entries})
for name in ["corpus.txt", "lines.txt"]:
    if out != here:
        shutil.copy(here / name, out / name)
