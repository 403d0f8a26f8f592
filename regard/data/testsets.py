"""The test sets that sacreBLEU knows, with its own checksums: `wmt14-de-en`, `wmt21/dev-en-de`, `iwslt17-de-en`."""

from __future__ import annotations

import http.client
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

from regard.errors import UserError


def names() -> list[str]:
    """The sets, without their languages."""
    from sacrebleu.dataset import DATASETS

    return list(DATASETS)


def found(name: str) -> tuple[Any, str] | None:
    """The set and the languages that a name speaks of; None where there is no such set."""
    from sacrebleu.dataset import DATASETS

    for known in sorted(DATASETS, key=len, reverse=True):
        if name == known or name.startswith(f"{known}-"):
            pair = name[len(known) + 1 :]
            if pair not in DATASETS[known].langpairs:
                pairs = ", ".join(DATASETS[known].langpairs)
                raise UserError(f"{name}: sacreBLEU's {known} is there for {pairs}; name it {known}-LANGUAGES")
            return DATASETS[known], pair
    return None


def get(name: str, folder: Path, mirror: str | None = None) -> list[Path]:
    """Writes `test.SOURCE` and `test.TARGET`, the first of several references."""
    known = found(name)
    assert known is not None
    dataset, pair = known
    if mirror:
        dataset.data = [f"{mirror.rstrip('/')}/{address.rsplit('/', 1)[-1]}" for address in dataset.data]
    try:
        files = [dataset.get_source_file(pair), dataset.get_reference_files(pair)[0]]
    except (OSError, http.client.HTTPException, tarfile.TarError, zipfile.BadZipFile, SystemExit) as error:
        said = "its checksum is wrong" if isinstance(error, SystemExit) else str(error)
        raise UserError(
            f"{name} could not be fetched from {', '.join(dataset.data)}: {said}; remove what sacreBLEU keeps of it "
            f"(~/.sacrebleu/{dataset.name}) and try again"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    outs = [folder / f"test.{language}" for language in pair.split("-")]
    for file, out in zip(files, outs, strict=True):
        shutil.copyfile(file, out)
    return outs
