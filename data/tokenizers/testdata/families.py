"""Makes families/*.json.gz and families/golden: small tokenizers with the pipelines of model families, and what
HuggingFace's tokenizers make of hostile texts with them.

The components are those of the families' own files. The vocabularies are trained on ../trained/corpus.txt and the
fragments of hostile.py.
"""

import base64
import gzip
import io
import json
import os
import pathlib
import random
import sys
import tempfile

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parents[2] / "tests" / "parity"))
import differ  # noqa: E402
import golden  # noqa: E402
import hostile  # noqa: E402

CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = CL100K.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORD, ENDS = r"[^\r\n\p{L}\p{N}]?", r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = WORD + UPPER + "*" + LOWER + "+" + SHORT + "|" + WORD + UPPER + "+" + LOWER + "*" + SHORT + r"|\p{N}{1,3}|" + ENDS
TEKKEN = WORD + UPPER + "*" + LOWER + "+|" + WORD + UPPER + "+" + LOWER + r"*|\p{N}|" + ENDS
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
RARE = r"(?<=[a-z])(?=[A-Z])|[A-Z]?[a-z]+|\d+|[^\s\w]+"  # for which there is no scanner
LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
EOT = AddedToken("<|endoftext|>", normalized=False, special=True)
ODD = [EOT, AddedToken("<mask>", lstrip=True, special=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
       AddedToken("word", single_word=True), AddedToken("É clair", normalized=True)]


def around(name, token, end=()):
    """A template with a token before and others after."""
    special = [(t, name.token_to_id(t)) for t in [token, *end]]
    return processors.TemplateProcessing(single=" ".join([token, "$A", *end]), special_tokens=special,
                                         pair=" ".join([token + ":0", "$A:0", *end, token + ":1", "$B:1", *[e + ":1" for e in end]]))


def byte_level(split, normalizer=None, processor=None, added=(EOT,), size=420, **settings):
    t = Tokenizer(models.BPE(**settings))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = split
    t.decoder = decoders.ByteLevel()
    t.post_processor = processor or processors.ByteLevel(trim_offsets=False)
    train(t, trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    t.add_tokens(list(added))
    return t


def by(*patterns, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([*[pre_tokenizers.Split(Regex(p), behavior, invert) for p in patterns], LEVEL])


def train(tokenizer, trainer):
    corpus = (here / "trained" / "corpus.txt").read_bytes().decode()
    tokenizer.train_from_iterator([*corpus.splitlines(keepends=True), *hostile.FRAGMENTS * 3], trainer)


def byte_fallback(normalizer, split, decoder, alphabet=120, fuse=True, size=640, special=("<unk>", "<s>", "</s>")):
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=fuse))
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # trained on words
    tokens = [*special, *[f"<0x{b:02X}>" for b in range(256)]]
    train(t, trainers.BpeTrainer(vocab_size=size, special_tokens=tokens, limit_alphabet=alphabet, show_progress=False))
    state = json.loads(t.to_str())
    state["added_tokens"] = [a for a in state["added_tokens"] if a["content"] in special]
    state["pre_tokenizer"] = split
    t = Tokenizer.from_str(json.dumps(state))
    t.decoder = decoder
    return t


def built():
    llama3 = byte_level(by(CL100K), ignore_merges=True)
    llama3.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around(llama3, "<|endoftext|>")])
    yield "llama3", llama3
    yield "gpt2", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), processor=processors.ByteLevel(trim_offsets=True))
    roberta = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), added=[*ODD, "<s>", "</s>"])
    roberta.post_processor = processors.RobertaProcessing(("</s>", roberta.token_to_id("</s>")), ("<s>", roberta.token_to_id("<s>")))
    yield "roberta", roberta
    yield "qwen3", byte_level(by(QWEN), normalizers.NFC())
    yield "qwen35", byte_level(by(QWEN35), normalizers.NFC())
    yield "o200k", byte_level(by(O200K, behavior="removed", invert=True), added=ODD)
    yield "tekken", byte_level(by(TEKKEN), ignore_merges=True)
    yield "deepseek", byte_level(by(*DEEPSEEK), added=ODD)
    yield "smollm", byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                        pre_tokenizers.ByteLevel(add_prefix_space=False)]))
    yield "nfkc", byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFKC(), added=ODD)
    yield "rare", byte_level(by(RARE))
    partial = json.loads(byte_level(by(CL100K)).to_str())  # bytes without a token are left out
    lost = sorted(partial["model"]["vocab"])[-40:-30]
    partial["model"]["merges"] = [m for m in partial["model"]["merges"] if not any(x in "".join(m) for x in lost)]
    partial["model"]["vocab"] = {k: v for k, v in partial["model"]["vocab"].items() if not any(x in k for x in lost)}
    yield "holes", Tokenizer.from_str(json.dumps({**partial, "added_tokens": []}))

    fallback = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    llama2 = byte_fallback(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None,
                           decoders.Sequence([*fallback, decoders.Strip(" ", 1, 0)]))
    llama2.post_processor = around(llama2, "<s>")
    yield "llama2", llama2
    gemma = byte_fallback(normalizers.Replace(" ", "▁"), {"type": "Split", "pattern": {"String": " "},
                          "behavior": "MergedWithPrevious", "invert": False}, decoders.Sequence(fallback), fuse=False)
    gemma.add_tokens(["\n\n", "▁▁", AddedToken("  ", normalized=False)])
    gemma.post_processor = around(gemma, "<s>", ["</s>"])
    yield "gemma", gemma
    meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}
    yield "mistral", byte_fallback(normalizers.Sequence([]), meta, decoders.Sequence([*fallback, decoders.Strip(" ", 1, 0)]))
    yield "metaspace", byte_fallback(normalizers.NFKC(), {**meta, "prepend_scheme": "always", "split": True},
                                     decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))

    for name, lower, accents in [("bert", True, None), ("bert-cased", False, False), ("bert-accents", False, True)]:
        t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=60))
        t.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=accents, handle_chinese_chars=lower)
        t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        t.decoder = decoders.WordPiece(cleanup=lower)
        train(t, trainers.WordPieceTrainer(vocab_size=900, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                           limit_alphabet=200, show_progress=False))
        sep, cls = ("[SEP]", t.token_to_id("[SEP]")), ("[CLS]", t.token_to_id("[CLS]"))
        t.post_processor = processors.BertProcessing(sep, cls) if accents else processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[sep, cls])
        t.add_tokens([AddedToken("Straße", single_word=True), AddedToken("naïve")] if lower else [])
        yield name, t

    yield from unigrams()

    clip = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>", continuing_subword_prefix=""))
    clip.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                            normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")])
    clip.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("contiguous"),
                                                  pre_tokenizers.Digits(individual_digits=False)])
    clip.decoder = decoders.BPEDecoder()
    train(clip, trainers.BpeTrainer(vocab_size=500, special_tokens=["<unk>"], end_of_word_suffix="</w>", limit_alphabet=100,
                                    show_progress=False))
    yield "clip", clip


# Rules for characters and their clusters, as SentencePiece's normalizer has them: those that are decomposed or wide, those
# that become nothing, a space or several, and one of which another one is a beginning.
RULES = {"e\u0301": "é", "a\u0308": "ä", "o\u0302\u0301": "ố", "Ａ": "A", "ﬁ": "fi", "ﷺ": "صلى الله عليه وسلم", "\r": " ",
         "\n": " ", "\t": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\u00ad": "", "½": "1⁄2", "№": "No", "Å": "å",
         "か\u3099": "が", "x": "ks", "\u1680": " ", "ß": "ss"}


def charsmap(rules):
    """precompiled_charsmap of rules: those of SentencePiece by their name, or a dictionary."""
    out = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as f:
        settings = {"normalization_rule_name": rules}
        if isinstance(rules, dict):
            for old, new in rules.items():
                f.write(" ".join(f"{ord(c):X}" for c in old) + "\t" + " ".join(f"{ord(c):X}" for c in new) + "\n")
            f.flush()
            settings = {"normalization_rule_tsv": f.name}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["ab cd ef gh"] * 9), model_writer=out, minloglevel=2,
                                                 vocab_size=13, hard_vocab_limit=False, **settings)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(out.getvalue())
    return base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()


def unigrams():
    """The pipelines that transformers' converters make of Unigram models."""
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    meta = pre_tokenizers.Metaspace(prepend_scheme="always")
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), meta])
    quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    small = normalizers.Precompiled(base64.b64decode(charsmap(RULES)))
    nmt = normalizers.Precompiled(base64.b64decode(charsmap("nmt_nfkc")))
    accents = [normalizers.NFKD(), normalizers.StripAccents()]
    for name, normalizer, split, fallback, special in [
        ("t5", nmt, words, False, ["<pad>", "</s>", "<unk>"]),
        ("xlmr", normalizers.Sequence([small, spaces]), meta, False, ["<s>", "<pad>", "</s>", "<unk>"]),
        ("albert", normalizers.Sequence([*quotes, *accents, normalizers.Lowercase(), small, spaces]), meta, False,
         ["<pad>", "<unk>", "[CLS]", "[SEP]"]),
        ("xlnet", normalizers.Sequence([*quotes, small, spaces]), words, False, ["<unk>", "<s>", "</s>", "<cls>", "<sep>"]),
        ("deberta", normalizers.Sequence([normalizers.Strip(), small, spaces]), meta, True, ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]),
        ("unigram", normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), spaces]),
         pre_tokenizers.Metaspace(prepend_scheme="first", split=False), True, ["<unk>"]),
    ]:
        t = Tokenizer(models.Unigram())
        t.normalizer, t.pre_tokenizer, t.decoder = normalizer, meta, decoders.Metaspace(prepend_scheme="always")
        unk = next(s for s in special if "unk" in s.lower())
        train(t, trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token=unk, show_progress=False))
        state = json.loads(t.to_str())
        vocab = state["model"]["vocab"]
        if fallback:  # not all bytes: the others stay unknown
            vocab += [[f"<0x{b:02X}>", 0.0] for b in range(256) if b not in (0xE6, 0xB8)]
            state["model"]["byte_fallback"] = True
        if name == "xlmr":  # letters that no token has alone
            state["model"]["vocab"] = [v for i, v in enumerate(vocab) if i < 8 or v[0] not in "aeä漢"]
        t = Tokenizer.from_str(json.dumps(state))
        t.pre_tokenizer = split
        if len(special) > 1:
            end = next(s for s in special if s in ("</s>", "[SEP]", "<sep>"))
            t.post_processor = around(t, next((s for s in special if s in ("<s>", "[CLS]", "<cls>")), end), [end])
        t.add_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("Émile", normalized=True)])
        yield name, t


def main():
    out = golden.start(__file__, __doc__) / "families"
    (out / "golden").mkdir(parents=True, exist_ok=True)
    only = os.environ.get("CASES", "").split()
    for name, tokenizer in built():
        if only and name not in only:
            continue
        tokenizer = Tokenizer.from_str(tokenizer.to_str())
        rng, lines = random.Random(name), []
        added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
        for i in range(80):
            part = hostile.FRAGMENTS[3 * i:3 * i + 3]
            first = "x".join(part) if part else hostile.text(rng, added)
            lines.append(line(tokenizer, first, hostile.text(rng, added), rng.randrange(6, 40)))
        pack(out / f"{name}.json.gz", tokenizer.to_str(pretty=True))
        pack(out / "golden" / f"{name}.json.gz", json.dumps({"made_by": golden.versions(tokenizers), "name": name, "lines": lines},
                                                            ensure_ascii=False, separators=(",", ":")))


def line(tokenizer, first, second, room):
    got = differ.expected(tokenizer, first, second, room)
    pair = tokenizer.encode(first, second)
    tokenizer.no_truncation()
    tokenizer.enable_padding(direction="left", pad_id=1, pad_to_multiple_of=8)
    padded = tokenizer.encode(first)
    tokenizer.no_padding()
    ids, offsets, types = got.pop("Pair")
    return {"first": first, "second": second, "room": room, **{k.lower(): v for k, v in got.items()}, "pair_ids": ids,
            "pair_offsets": offsets, "pair_types": types, "pair_sequences": [-1 if s is None else s for s in pair.sequence_ids],
            "padded_ids": padded.ids, "padded_attention": padded.attention_mask}


def pack(path, text):
    with open(path, "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0, filename="") as z:
        z.write(text.encode())


if __name__ == "__main__":
    main()
