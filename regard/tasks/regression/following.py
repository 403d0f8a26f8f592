"""Series through a model: numbers for each step."""

from __future__ import annotations

import torch

from regard.data.ragged import Indices
from regard.models.regression import Regressor
from regard.tasks.memory import in_order
from regard.tasks.regression.examples import Examples
from regard.tasks.regression.files import Table


@torch.inference_mode()
def follow(model: Regressor, examples: Examples, device: torch.device, batch_tokens: int) -> list[Table]:
    """What the model gives for each series, in order, in the scale of training; in batches of about one length."""

    def of_rows(rows: Indices) -> list[Table]:
        batch = examples.batch(rows).to(device)
        outputs = model(batch.source, batch.lengths).double().cpu().numpy()
        return [own[:length] for own, length in zip(outputs, batch.lengths.tolist(), strict=True)]

    return in_order(of_rows, examples.sizes, batch_tokens)
