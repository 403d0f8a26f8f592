"""Model card of an exported run, as Hugging Face has them: languages, data, metrics with signatures, and usage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from regard.runs.run import Run, summarize_run
from regard.version import VERSION

CARD = """---
{header}---

# {name}

A Transformer that translates{pair}, trained with regard {version} (recipe `{recipe}`, {steps:,} updates).

## Usage

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained({name!r}), AutoModelForSeq2SeqLM.from_pretrained({name!r})
batch = tokenizer(["A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```

`generate` searches as `regard translate --length-penalty 0` does. The folder was written by
`regard export {run} --to huggingface --out {name}`; `regard import {name} --out RUN` reads it.

## Data

{data}

## Metrics

{metrics}

## Licence

{license}
"""


def format_model_card(run: Run, name: str, license: str | None) -> str:
    """Return the model card of a run that is exported to the folder `name`."""
    config = run.read_config()
    data = config["data"]
    languages = [data[side] for side in ("source", "target") if data.get(side)]
    header = {
        **({"language": languages} if languages else {}),
        **({"license": license} if license else {}),
        **{"library_name": "transformers", "pipeline_tag": "translation", "tags": ["translation", "regard"]},
    }
    corpora = {"Training data": data.get("train"), "Dev data": data.get("dev")}
    lines = [f"- {what}: {', '.join(Path(path).name for path in paths)}" for what, paths in corpora.items() if paths]
    start = config["training"].get("init_from")
    lines += [f"- Fine-tuned from: {Path(start).name}"] if start else []
    return CARD.format(
        header=yaml.safe_dump(header, sort_keys=False),
        name=name,
        pair=f" from {languages[0]} to {languages[1]}" if len(languages) == 2 else "",
        version=VERSION,
        recipe=config.get("recipe"),
        steps=summarize_run(run.folder).steps,
        run=run.folder,
        data="\n".join(lines) or "The run does not name its data.",
        metrics=_format_metrics(run, config),
        license=license or "Not given.",
    )


def _format_metrics(run: Run, config: dict[str, Any]) -> str:
    """Return a table of the dev metrics of the model that is used."""
    from regard.evaluate.translation_metrics import bleu, chrf

    best = summarize_run(run.folder).best
    rows = [row for row in run.iterate_metrics() if row["kind"] == "dev" and best and row["step"] == best.step]
    if not rows:
        return "The model has not been validated."
    lowercase, tokenize = config["text"]["lowercase"], config.get("evaluation", {}).get("tokenize", "auto")
    signatures = {
        "bleu": bleu(["a"], ["a"], lowercase, "13a" if tokenize == "auto" else tokenize).signature,
        "chrf": chrf(["a"], ["a"], lowercase).signature,
    }
    escaped = {name: signature.replace("|", "\\|") for name, signature in signatures.items()}
    lines = [f"| {name} | {rows[-1][name]:.2f} | {signature} |" for name, signature in escaped.items()]
    return "\n".join(["| metric | dev | signature of sacreBLEU |", "|---|---|---|", *lines])
