from transformers import PreTrainedTokenizerFast


class Tokenizer(PreTrainedTokenizerFast):
    pass
