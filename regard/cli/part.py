"""A long file that can be begun today and finished tomorrow."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from regard.errors import UserError
from regard.runs.lock import seize


class Part:
    """A file that is written beside its place, and renamed when it is whole.

    A note beside it says after each lot how much of it counts, and what it was made of: bytes behind that are those of
    a lot that was cut short.
    """

    def __init__(self, out: Path, job: Mapping[str, Any]) -> None:
        self.out = out
        self.path = out.with_name(f".{out.name}.part")
        self.note = out.with_name(f".{out.name}.json")
        self.job = json.loads(json.dumps(job, default=str))
        self.tally: Counter[str] = Counter()
        self.file: IO[bytes]

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if not self.tally["lines"]:  # nothing was made yet that anybody would want to go on with
            self.path.unlink(missing_ok=True)
            self.note.unlink(missing_ok=True)

    def begin(self) -> Part:
        """A new file, where there is none and none is under way."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        if self.out.exists():
            raise UserError(f"{self.out} is there already; name another --out, or move it away")
        if self.note.exists() and (lines := self.noted()["tally"].get("lines", 0)):
            raise UserError(
                f"{self.out} was begun before and has got to line {lines:,}: go on with --resume, or remove "
                f"{self.path} and {self.note} to begin anew"
            )
        self.file = self.path.open("ab")
        seize(self.file, f"another process is writing {self.out}; wait for it, or name another --out")
        self.file.truncate(0)
        self.write([], self.tally)
        return self

    def resume(self, optional: Collection[str] = ()) -> Part:
        """The file where it was left; by those only who do the same with the same.

        `optional` keys of the job count only if the note has them: earlier versions did not write them.
        """
        if not self.note.exists():
            raise UserError(f"nothing to go on with: {self.out} was not begun, or it is finished; leave --resume out")
        noted = self.noted()
        unknown = set(optional) - set(noted["job"])
        other = differences(noted["job"], {key: self.job[key] for key in self.job if key not in unknown})
        if other:
            raise UserError(f"{self.out} can go on only as it was begun: {'; '.join(other)}")
        if not self.path.exists() or self.path.stat().st_size < noted["bytes"]:
            raise UserError(f"{self.path} is shorter than {self.note} says; remove both to begin anew")
        self.file = self.path.open("r+b")
        seize(self.file, f"another process is writing {self.out}; it needs no help")
        self.file.truncate(noted["bytes"])
        self.file.seek(noted["bytes"])
        self.tally = Counter(noted["tally"])
        return self

    def read_rows(self) -> Iterator[str]:
        """Yield the lines that were written before."""
        with self.path.open("rb") as file:
            for line in file:
                yield line.decode(errors="replace").removesuffix("\n")

    def noted(self) -> dict[str, Any]:
        """What the note says."""
        try:
            noted = json.loads(self.note.read_bytes())
            return {"job": dict(noted["job"]), "bytes": int(noted["bytes"]), "tally": dict(noted["tally"])}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.note} cannot be read; remove it and {self.path} to begin anew") from error

    def write(self, lines: Iterable[str], tally: Counter[str]) -> None:
        """One more lot, on the disk before the note says so, and what has been counted with it."""
        self.file.write("".join(line + "\n" for line in lines).encode())
        self.file.flush()
        os.fsync(self.file.fileno())
        beside = self.note.with_name(f"{self.note.name}.part")
        document = {"job": self.job, "bytes": self.file.tell(), "tally": tally}
        beside.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
        beside.replace(self.note)
        self.tally = tally

    def finish(self) -> None:
        """All is written: the file takes its name."""
        self.path.replace(self.out)
        self.note.unlink()


def differences(was: Mapping[str, Any], now: Mapping[str, Any], above: str = "") -> list[str]:
    """What is not the same, key by key, also inside of mappings."""
    found = []
    for key in {**now, **was}:
        old, new = was.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, f"{above}{key}.")
        elif old != new:
            found.append(f"{above}{key} was {old!r}, not {new!r}")
    return found
