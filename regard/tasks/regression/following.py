"""Series through a model: numbers for each step."""

from __future__ import annotations

import numpy as np
import torch

from regard.data.order import cuts
from regard.data.ragged import Indices
from regard.models.regression import Regressor
from regard.tasks.memory import in_pieces
from regard.tasks.regression.examples import Examples
from regard.tasks.regression.files import Table


@torch.inference_mode()
def follow(model: Regressor, examples: Examples, device: torch.device, batch_tokens: int) -> list[Table]:
    """What the model gives for each series, in order, in the scale of training; in batches of about one length."""

    def of_rows(rows: Indices) -> dict[int, Table]:
        batch = examples.batch(rows).to(device)
        outputs = model(batch.source, batch.lengths).double().cpu().numpy()
        return {row: outputs[at, : examples.sizes[row]] for at, row in enumerate(rows.tolist())}

    order = np.argsort(examples.sizes, kind="stable")
    lots = [some for rows in cuts(order, examples.sizes, batch_tokens) for some in in_pieces(of_rows, rows)]
    found = {row: table for some in lots for row, table in some.items()}
    return [found[row] for row in range(len(examples))]
