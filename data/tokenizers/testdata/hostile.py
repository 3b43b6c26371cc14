"""Texts that tokenizers get wrong: of all scripts and planes, normal forms, spaces, digits, emoji, control characters."""

import unicodedata

FRAGMENTS = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", "\u00a0", "\u3000", "\u2003", "\u0085", "\u200b", "\u2028", "\x0b", "\x1c",
    "'s", "'S", "'ll", "'LL", "'ve", "'re", "'d", "'T", "'m", "'\u017f", "\u2019s", "n't", " do not", " 's", "'", "''", "\"", "`",
    "hello", "Hello", " world", "WORLD", "HTMLParser", "camelCase", "snake_case", "I'M", "they'd've", "naïve", "Straße", "ÅNGSTRÖM", "İstanbul",
    "1", "12", "123", "1234", "12345678901", "3.14", "½", "٣", "Ⅷ", "²", "１２", "x10y",
    ".", ",", "!", "?", "...", "::", "/", "//", "#", "##", "_", "▁", "▁▁", "<", ">", "<0x0A>", "\\", "{}", "()", "$", "€", "+=", "-", "—", "…",
    "你好", "世界。", "日本語", "ひらがな", "カタカナ", "한국어", "\u1112\u1161\u11ab", "각", "Привет", "МИР", "Ελλάδα", "ΣΑΣ", "שלום", "العربية", "हिन्दी", "ไทย", "தமிழ்", "ქართული",
    "e\u0301", "é", "a\u0323\u0308", "a\u0308\u0323", "\u0301", "\u0301\u0316", "ﬁ", "ﬀ", "ǅ", "ʰ", "Å", "\u212b", "ệ", "e\u0302\u0323", "q\u0307\u0323",
    "😀", "👩\u200d👩\u200d👧", "🇩🇪", "👍🏽", "❤\ufe0f", "☃", "\U00020000", "\U0002f800", "\U000e0041", "\U0001d400", "\U0001f1e6",
    "\x00", "\x01", "\x7f", "\ufeff", "\ufffd", "\ue000", "\U0010ffff", "\u0378", "\u202e", "\u00ad", "\u0600",
    "func main() {\n\treturn x[i]\n}\n", "https://example.com/a?b=c&d=%20", "a" * 20, "ab" * 40, "=" * 30, "ha" * 8, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]
RANGES = [(0, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x8FF), (0x900, 0xDFF), (0xE00, 0x1CFF), (0x1D00, 0x20CF),
          (0x20D0, 0x2BFF), (0x2C00, 0x31FF), (0x3400, 0x9FFF), (0xA000, 0xABFF), (0xAC00, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF),
          (0x20000, 0x323AF), (0xE0000, 0xE01EF), (0x10000, 0x10FFFF)]


def text(rng, added=()):
    """A random text. Some have added tokens in them."""
    parts = []
    for _ in range(rng.randrange(1, 9)):
        kind = rng.randrange(10)
        if kind < 6:
            parts.append(rng.choice(FRAGMENTS))
        elif kind < 8:
            low, high = rng.choice(RANGES)
            parts.append("".join(character(rng, low, high) for _ in range(rng.randrange(1, 4))))
        elif kind == 8 and added:
            parts.append(rng.choice(added))
        else:
            parts.append("".join(rng.choice("abcdefghijklmnopqrstuvwxyzABC  ") for _ in range(rng.randrange(1, 12))))
        if rng.random() < 0.3:
            parts.append(" ")
    out = "".join(parts)
    if rng.random() < 0.2:
        out = unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), out)
    return out


def character(rng, low, high):
    c = rng.randrange(low, high + 1)
    return chr(c) if not 0xD800 <= c <= 0xDFFF else " "
