"""The loss of an output layer whose logits are never all there: on a CPU some rows at a time, on a GPU by kernels."""
