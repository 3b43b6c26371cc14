"""Generates with transformers, as bench/generation asks by lines on the standard input: TEXTS PROMPT NEW, the numbers of texts, of tokens of each prompt
and of new tokens. Answers each with the seconds that it took. The model has SmolLM2-135M's shape and random weights, float32.
"""

import sys
import time

import torch
import transformers


def main():
    hidden, inner, layers, heads, kv, vocabulary, threads = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv, vocab_size=vocabulary,
        max_position_embeddings=2048, tie_word_embeddings=True, rope_theta=100000.0, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    print("ready", transformers.__version__, torch.__version__, flush=True)
    for line in sys.stdin:
        texts, prompt, new = map(int, line.split())
        ids = torch.arange(texts * prompt).reshape(texts, prompt) % vocabulary
        start = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, min_new_tokens=new)
        assert out.shape == (texts, prompt + new)
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main()
