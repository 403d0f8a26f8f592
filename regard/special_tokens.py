"""Special tokens (padding, unknown, beginning and end of sentence): the first four ids of every vocabulary."""

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
