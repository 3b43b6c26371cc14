"""Makes ../unicode.json.gz: what HuggingFace's tokenizers takes each character for.

The library asks several tables of different versions of Unicode: Oniguruma's for regular expressions, the regex
crate's for the \\w of the pre-tokenizer Whitespace, Rust's own for numbers, unicode_categories' for BERT's punctuation
and control characters, and one of Unicode 9 for normal forms. So each property is read from the library itself,
character by character.
"""

import gzip
import json
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATEGORIES = [r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}", r"\p{N}", r"\p{P}", r"\p{S}", r"\s"]
CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


# What Unicode 15, Go's, has of normal forms beyond Python 3.11's unicodedata, which knows Unicode 14.
UNICODE_15 = [(0x10EFD, 0x10EFF), (0x11F41, 0x11F42), (0x1E030, 0x1E06D), (0x1E08F, 0x1E08F), (0x1E4EC, 0x1E4EF)]


def matched(pattern):
    """The characters that a regular expression matches."""
    text = "".join(CHARACTERS)
    return set(text) - set(normalizers.Replace(Regex(pattern), "").normalize_str(text))


def that(holds):
    return {c for c in CHARACTERS if holds(c)}


def properties():
    """Sets of characters, in the order of their bits from 1<<4 on."""
    word, bert, digits = pre_tokenizers.Whitespace(), pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(True)
    bert_only = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    clean = normalizers.BertNormalizer(**{**bert_only, "clean_text": True})
    accents = normalizers.BertNormalizer(**{**bert_only, "strip_accents": True})
    strip, nfd, nfkd = normalizers.StripAccents(), normalizers.NFD(), normalizers.NFKD()
    yield that(lambda c: len(word.pre_tokenize_str("a" + c)) == len(word.pre_tokenize_str(c)) == 1)
    yield that(lambda c: len(bert.pre_tokenize_str("a" + c)) > 1)
    yield that(lambda c: len(digits.pre_tokenize_str("a" + c)) > 1)
    yield that(lambda c: clean.normalize_str(c) == "")
    yield that(lambda c: accents.normalize_str(c) == "")
    yield that(lambda c: strip.normalize_str(c) == "")
    # Of a later Unicode than the library's normal forms, which leave them alone. U+0345 has the highest class, 240.
    yield that(lambda c: nfkd.normalize_str(c) == c and unicodedata.normalize("NFKD", c) != c
               or any(first <= ord(c) <= last for first, last in UNICODE_15)
               or 0 < unicodedata.combining(c) < 240 and nfd.normalize_str("\u0345" + c) == "\u0345" + c)
    yield from map(matched, [r"\w", r"\d", r"\p{Han}", r"[\w]"])  # ² is a \w, but not within a class


def main(path):
    classes = dict.fromkeys(map(chr, range(0x110000)), 0)
    for i, pattern in enumerate(CATEGORIES):
        for c in matched(pattern):
            classes[c] = i + 1
    for bit, characters in enumerate(properties()):
        for c in characters:
            classes[c] |= 1 << (4 + bit)
    runs = []
    for c in map(chr, range(0x110000)):
        if runs and runs[-1][1] == classes[c]:
            runs[-1][0] += 1
        else:
            runs.append([1, classes[c]])
    lower = normalizers.Lowercase()
    lowered = {c: lower.normalize_str(c) for c in CHARACTERS if lower.normalize_str(c) != c}
    out = {"made_by": "tokenizers " + tokenizers.__version__, "runs": runs, "lower": lowered}
    text = json.dumps(out, separators=(",", ":")).encode()
    with open(path, "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0, filename="") as z:
        z.write(text)


if __name__ == "__main__":
    main(sys.argv[1])
