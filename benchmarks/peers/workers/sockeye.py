"""Worker of Sockeye, which has only Transformers; for training."""

from __future__ import annotations

import torch
from sockeye import constants as C
from sockeye.data_io import DataConfig
from sockeye.encoder import EmbeddingConfig
from sockeye.loss import CrossEntropyLoss
from sockeye.model import ModelConfig, SockeyeModel, initialize_parameters
from sockeye.training import ModelWithLoss
from sockeye.transformer import TransformerConfig

from benchmarks.peers.workers.worker_protocol import Run, answer_requests, make_update_run
from benchmarks.peers.workloads import DROPOUT, PAIRS, SMOOTHING, TOKENS, ModelSizes, Workload


def build_run(work: Workload) -> Run | None:
    """Return a function that runs the workload once; None if the toolkit has no such model."""
    if work.task != "train" or work.model == "rnn":
        return None
    model = SockeyeModel(make_config(work.sizes)).train()
    model.apply(initialize_parameters)
    sources, targets = work.make_sources()[..., None].int(), work.make_targets().int()
    given, labels = targets[:, :-1, None].contiguous(), {C.TARGET_LABEL_NAME: targets[:, 1:].contiguous()}
    lengths = torch.full((PAIRS, 2), TOKENS, dtype=torch.int32)  # of the source, and of what is put before it
    lengths[:, 1] = 0
    # As its trainer does: the model is traced, the loss is not.
    traced = torch.jit.trace(model, (sources, lengths, given, lengths[:, 0]), strict=False)  # type: ignore[no-untyped-call]
    with_loss = ModelWithLoss(traced, [CrossEntropyLoss(label_smoothing=SMOOTHING)])
    adam = torch.optim.Adam(model.parameters(), 1e-6)

    return make_update_run(adam, lambda: with_loss(sources, lengths, given, lengths[:, 0], labels)[0])


def make_config(sizes: ModelSizes) -> ModelConfig:
    """Return its configuration: pre-norm, which is its default, and one matrix for all embeddings."""
    half = TransformerConfig(
        model_size=sizes.size,
        attention_heads=sizes.heads,
        feed_forward_num_hidden=sizes.feedforward,
        act_type=C.RELU,
        num_layers=sizes.layers,
        dropout_attention=0.0,
        dropout_act=0.0,
        dropout_prepost=DROPOUT,
        positional_embedding_type=C.FIXED_POSITIONAL_EMBEDDING,
        preprocess_sequence="n",
        postprocess_sequence="dr",
        max_seq_len_source=TOKENS,
        max_seq_len_target=TOKENS,
        depth_key_value=sizes.size,
    )
    words = EmbeddingConfig(sizes.vocabulary_size, sizes.size, dropout=DROPOUT)
    data = DataConfig(
        data_statistics=None,
        max_seq_len_source=TOKENS,
        max_seq_len_target=TOKENS,
        num_source_factors=1,
        num_target_factors=1,
    )
    return ModelConfig(data, sizes.vocabulary_size, sizes.vocabulary_size, words, words, half, half)


if __name__ == "__main__":
    answer_requests(build_run)
