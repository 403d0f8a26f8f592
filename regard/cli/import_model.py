"""`regard import`: read a pretrained MarianMT model of Hugging Face as a run."""

from __future__ import annotations

from pathlib import Path

from regard.cli.options import describe_options
from regard.console import log_message


@describe_options
def import_model(folder: Path, out: Path, source: str | None = None, target: str | None = None) -> None:
    """Read a MarianMT model of Hugging Face, such as one of OPUS-MT, as a run: translate with it, or fine-tune it.

    Example: regard import opus-mt-en-de --out runs/opus
    """
    from regard.runs.huggingface import import_run

    import_run(folder, out, (source, target))
    log_message(
        f"{out} is a run: translate with it (regard translate {out}), or fine-tune it "
        f"(regard train DATA --init-from {out} --out RUN)"
    )
