"""Makes golden.json, golden_tokenizer.json: HuggingFace tokenizers trained and used on real text.

Usage: python golden.py            (made with tokenizers 0.22.2)

The corpus is recombined from the texts below; it
mixes languages, code, digits and white space so that every alternative of GPT-2's
regular expression and its look-ahead occur.
"""

import json
import pathlib
import random

import tokenizers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
SPECIAL = ["<|endoftext|>", "<|pad|>"]

BASE = [
    "The quick brown fox jumps over the lazy dog. It's what they'd've said; we'll see, I'm sure!\n",
    "func (t *Tensor) At(i, j int) float32 {\n\tif i < 0 || i >= t.rows {\n\t\tpanic(\"out of range\")\n\t}\n\treturn t.data[i*t.cols+j]\n}\n",
    "Grüße aus Köln: schöne Straßen, große Häuser,  zwei  Leerzeichen.   \n\n\n",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.\n",
    "いろはにほへと ちりぬるを 我が世誰ぞ 常ならむ\u3000有為の奥山\n",
    "الخط العربي ١٢٣٤٥ ½ ¾ Ⅷ 1234567890 3.14159e-10 0xDEADBEEF\n",
    "emoji 😀😃👩‍👩‍👧 flags 🇩🇪 combining e\u0301 a\u0308\u0323 zero\u200bwidth nbsp\u00a0here\u2003em\n",
    "\ttabs\t\tand \r\n carriage\r\nreturns\x0b\x0c\x85 control\x00\x01\x1c\x1f\x7f\n",
    "banana bananas anananas nanana abcabcabc ababab aaaa aaaaaaaa return returns returned turn Returning\n",
]


def documents():
    """A deterministic corpus: the base texts, and random recombinations of their words."""
    rng = random.Random(20)
    words = sorted({w for text in BASE for w in text.split(" ")})
    docs = list(BASE)
    for _ in range(400):
        docs.append("".join(rng.choice(words) + rng.choice([" ", " ", " ", "", "  ", "\n", "'s ", "'ll", "_"]) for _ in range(rng.randrange(1, 30))))
    return docs


def questions(docs):
    rng = random.Random(21)
    chars = sorted({c for text in docs for c in text})
    texts = ["", " ", "  ", "\n\n", SPECIAL[0], f"a{SPECIAL[0]} {SPECIAL[1]}{SPECIAL[1]}b", "<|endoftext|", "'s'S'LL'll", "=" * 200, "ab" * 150]
    texts += docs[:40]
    texts += ["".join(rng.choice(chars) for _ in range(rng.randrange(1, 60))) for _ in range(150)]
    texts += ["".join(rng.choice(" \n\t\u00a0ab'1.") for _ in range(rng.randrange(1, 40))) for _ in range(150)]
    return texts


def train(docs, vocab_size, min_frequency):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    t.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    t.decoder = decoders.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(docs, trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return t


def main():
    docs = documents()
    texts = questions(docs)
    runs = []
    for size, least in [(400, 0), (1000, 2), (1600, 0)]:
        t = train(docs, size, least)
        state = json.loads(t.to_str())
        runs.append({
            "vocab_size": size, "min_frequency": least,
            "merges": [" ".join(m) for m in state["model"]["merges"]],
            "ids": [t.encode(text).ids for text in texts],
        })
        if size == 400:
            t.save(str(HERE / "golden_tokenizer.json"))
    golden = {"tokenizers": tokenizers.__version__, "special": SPECIAL, "documents": docs, "texts": texts, "runs": runs}
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
