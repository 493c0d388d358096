"""A pair of random models, small enough for every test: a target, and a draft that is the target with noise."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 256


def make(directory, vocabulary=259, noise=0.02, seed=0, layers=2):
    """Save target and draft below `directory`; their weights are large, so that the text is varied."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.35,
        bos_token_id=0,
        eos_token_id=257 if vocabulary > 257 else None,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(directory / "target")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * noise * weight.std())
    model.save_pretrained(directory / "draft")
    return directory
