# SPDX-License-Identifier: Apache-2.0
"""Writes tiny random models as GGUF, as llama.cpp's converter lays them out, and golden.json: the logits that
transformers computes with the dequantized weights, and the tokens that llama.cpp makes of texts.

    pip install torch transformers==5.24.0 gguf==0.19.0 sentencepiece tokenizers
    npm install node-llama-cpp@3.22.1
    python golden.py node_modules/node-llama-cpp/dist/index.js

It also writes each model in float32 to a temporary folder, and stops unless llama.cpp continues a text by the same
tokens as transformers.
"""
import io
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType as T

here = pathlib.Path(__file__).parent
node = str(pathlib.Path(sys.argv[1]).resolve())
TEXT = ("The rain in Spain stays mainly in the plain. It's 12 past 3, and 1234 people said: don't!\n"
        "def f(x):\n    return x + 100\n\nThen 12, 123 and 1234 again; the end of the 12th day.  Naïve, déjà vu.\n") * 20
LINES = ["", "Hello 1234 world", " 12  345", "It's the 12th, don't!", "I'LL GO", "a\n\n  b\t\tc", "naïve café", "日本語 12年",
         "١٢٣ १२३ ½ x²", "<|im_start|>user\nhi 12<|im_end|>\n", "the  end   ", "\n", "🙂👍🏽 ok", "e\u0301 and é"]
VOCAB = 292


def byte_pairs():
    t = tokenizers.Tokenizer(tokenizers.models.BPE())
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    model = json.loads(t.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(m) if isinstance(m, list) else m for m in model["merges"]]


def sentence_pieces():
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")), model_writer=out, model_type="bpe", byte_fallback=True,
        vocab_size=VOCAB + 40, character_coverage=1.0, minloglevel=2, normalization_rule_name="identity",
        remove_extra_whitespaces=False, user_defined_symbols=["<|im_start|>", "<|im_end|>"])
    p = sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())
    kinds = [2 if p.is_unknown(i) else 3 if p.is_control(i) else 6 if p.is_byte(i) else 1 for i in range(len(p))]
    tokens = [p.id_to_piece(i) for i in range(len(p))]
    for i, token in enumerate(tokens):
        if token.startswith("<|im_"):
            kinds[i] = 3
    return tokens, kinds, [p.get_score(i) for i in range(len(p))]


def add_tokenizer(w, pre):
    if pre in ("spm", "gemma"):
        tokens, kinds, scores = sentence_pieces()
        if pre == "gemma":  # its converter writes runs of spaces as such
            tokens = [" " * len(t) if len(t) > 1 and not t.strip("▁") else t for t in tokens]
            kinds = [4 if len(t) > 1 and not t.strip() else k for t, k in zip(tokens, kinds)]
            w.add_add_space_prefix(False)
        w.add_tokenizer_model("llama")
        w.add_tokenizer_pre("default")
        w.add_token_list(tokens)
        w.add_token_scores(scores)
        w.add_token_types(kinds)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_unk_token_id(0)
    else:
        tokens, merges = byte_pairs()
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(pre)
        w.add_token_list(tokens)
        w.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
        w.add_token_merges(merges)
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_pad_token_id(2)
        if pre == "smollm":
            w.add_add_bos_token(False)
    w.add_chat_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")
    return len(tokens)


def permute(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def unpermute(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def tensors(model, cfg, arch, types):
    """The tensors of GGUF by name, and the state of the model that they dequantize to."""
    names = gguf.get_tensor_name_map(arch, cfg.num_hidden_layers)
    permuted = arch in (gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.SMOLLM3)
    gemma = arch in (gguf.MODEL_ARCH.GEMMA2, gguf.MODEL_ARCH.GEMMA3)
    found, state = {}, {}
    for name, p in model.state_dict().items():
        if name == "lm_head.weight" and cfg.tie_word_embeddings:
            continue
        x = p.float().numpy()
        heads = cfg.num_attention_heads if ".q_proj" in name else cfg.num_key_value_heads
        turned = permuted and (".q_proj" in name or ".k_proj" in name)
        if turned:
            x = permute(x, heads)
        if gemma and name.endswith("norm.weight"):
            x = x + 1
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        t = T.F32 if x.ndim == 1 else types(to)
        data = gguf.quantize(np.ascontiguousarray(x), t)
        found[to] = (data, t)
        x = gguf.dequantize(data, t)
        if gemma and name.endswith("norm.weight"):
            x = x - 1
        state[name] = torch.tensor(unpermute(x, heads) if turned else x)
    return found, state


def write(path, model, name, pre, types):
    cfg = model.config
    arch = gguf.MODEL_ARCH[name.upper()]
    w = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    w.add_context_length(cfg.max_position_embeddings)
    w.add_embedding_length(cfg.hidden_size)
    w.add_block_count(cfg.num_hidden_layers)
    w.add_feed_forward_length(cfg.intermediate_size)
    w.add_head_count(cfg.num_attention_heads)
    w.add_head_count_kv(cfg.num_key_value_heads)
    w.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    rope = cfg.rope_parameters
    w.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    dim = getattr(cfg, "head_dim", None) or cfg.hidden_size // cfg.num_attention_heads
    if name in ("qwen3", "gemma2", "gemma3"):
        w.add_key_length(dim)
        w.add_value_length(dim)
    if name in ("llama", "smollm3"):
        w.add_vocab_size(cfg.vocab_size)
        w.add_rope_dimension_count(dim)
    if name in ("gemma2", "gemma3"):
        w.add_sliding_window(cfg.sliding_window)
    if name == "gemma2":
        w.add_attn_logit_softcapping(cfg.attn_logit_softcapping)
        w.add_final_logit_softcapping(cfg.final_logit_softcapping)
    found, state = tensors(model, cfg, arch, types)
    if name == "phi3":
        original = rope["original_max_position_embeddings"]
        w.add_rope_dimension_count(dim)
        w.add_sliding_window(cfg.sliding_window or 0)
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(cfg.max_position_embeddings / original) / math.log(original)))
        for kind in ("long", "short"):
            found[f"rope_factors_{kind}.weight"] = (np.array(rope[kind + "_factor"], dtype=np.float32), T.F32)
    if rope.get("rope_type") == "llama3":
        freqs = 1 / rope["rope_theta"] ** (np.arange(0, dim, 2) / dim)
        length, low, high = 8192, rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = np.clip((length * freqs / (2 * math.pi) - low) / (high - low), 0, 1)
        found["rope_freqs.weight"] = ((1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32), T.F32)
    assert add_tokenizer(w, pre) == cfg.vocab_size, cfg.vocab_size
    for to, (data, t) in found.items():
        w.add_tensor(to, data, raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return state


def oracle(path, task, given):
    script = here / "llama.mjs"
    out = subprocess.run(["node", script, node, path, task], input=json.dumps(given), capture_output=True, text=True)
    if out.returncode:
        sys.exit(out.stderr)
    return json.loads(out.stdout)


def main():
    size = dict(hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
                max_position_embeddings=256, initializer_range=0.3, bos_token_id=1, eos_token_id=2, pad_token_id=None)
    llama3 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=8192)
    long = dict(rope_type="longrope", rope_theta=1e4, long_factor=[1.0, 1.5, 2, 2.5, 3, 4, 5, 6],
                short_factor=[1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7], original_max_position_embeddings=256)
    models = {
        "llama": ("Llama", "smollm", 2, dict(tie_word_embeddings=True,
                  rope_parameters=dict(rope_type="default", rope_theta=1e5))),
        "llama3": ("Llama", "llama-bpe", 1, dict(tie_word_embeddings=False, rope_parameters=llama3)),
        "qwen2": ("Qwen2", "qwen2", 1, dict(tie_word_embeddings=True)),
        "qwen3": ("Qwen3", "qwen2", 1, dict(head_dim=32, tie_word_embeddings=False)),
        "olmo2": ("Olmo2", "dbrx", 1, dict(tie_word_embeddings=False)),
        "smollm3": ("SmolLM3", "smaug-bpe", 4, dict(tie_word_embeddings=True)),
        "phi3": ("Phi3", "spm", 1, dict(tie_word_embeddings=False, rope_parameters=long, max_position_embeddings=512,
                      original_max_position_embeddings=256)),
        "gemma3": ("Gemma3", "gemma", 6, dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=8, rms_norm_eps=1e-6,
                   tie_word_embeddings=True)),
        "gemma2": ("Gemma2", "gemma", 3, dict(head_dim=16, query_pre_attn_scalar=16, sliding_window=8, rms_norm_eps=1e-6,
                   attn_logit_softcapping=1.5, final_logit_softcapping=2.0, tie_word_embeddings=True)),
    }
    # The types in turn, so that each is somewhere.
    kinds = [T.Q8_0, T.Q4_0, T.Q4_1, T.F16, T.BF16, T.F32]
    golden = {"lines": LINES, "models": {}}
    only = os.environ.get("CASES", "").split()
    if only:  # the others stay as they are
        golden = json.loads((here / "golden.json").read_text(encoding="utf-8"))
    for seed, (file, (cls, pre, layers, more)) in enumerate(models.items()):
        if only and file not in only:
            continue
        torch.manual_seed(seed)
        name = "llama" if file == "llama3" else file
        config = getattr(transformers, cls + ("TextConfig" if cls == "Gemma3" else "Config"))
        vocab = VOCAB + 40 if pre in ("spm", "gemma") else VOCAB
        cfg = config(vocab_size=vocab, num_hidden_layers=layers, **(size | more))
        model = getattr(transformers, cls + "ForCausalLM")(cfg).eval().float()
        with torch.no_grad():
            for n, p in model.named_parameters():
                if p.ndim == 1:
                    p.add_(torch.randn_like(p) * 0.2)
        ids = torch.randint(3, vocab, (1, 24)).tolist()
        with tempfile.TemporaryDirectory() as tmp:
            whole = pathlib.Path(tmp) / "f32.gguf"
            model.load_state_dict(write(whole, model, name, pre, lambda _: T.F32), strict=False)
            want = model.generate(torch.tensor(ids), max_new_tokens=12, do_sample=False, eos_token_id=None)
            want, got = want[0, 24:].tolist(), oracle(whole, "continue", ids[0])
            print(file, "llama.cpp continues alike:", got == want)
            if got != want:
                sys.exit(f"{want} {got}")
        path = here / (file + ".gguf")
        turn = iter(range(1000))

        def types(to):
            if "token_embd" in to or to.startswith("output"):
                return T.Q4_0
            return kinds[next(turn) * 5 % 6] if "ffn" in to else kinds[next(turn) % 3]

        model.load_state_dict(write(path, model, name, pre, types), strict=False)
        with torch.no_grad():
            logits = model(torch.tensor(ids)).logits[0, [1, -1]]
        golden["models"][file] = {"ids": ids[0], "logits": [[round(x, 5) for x in row] for row in logits.tolist()],
                                  "tokens": oracle(path, "tokens", LINES)}
        print(file, path.stat().st_size, "bytes")
    text = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    (here / "golden.json").write_text(text.replace('],"', '],\n"').replace('},"', '},\n"') + "\n", encoding="utf-8")


main()
