from transformers import PreTrainedTokenizerFast as Tokenizer  # noqa: F401
