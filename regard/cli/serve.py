"""`regard serve`: the HTTP service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, fields
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from regard.cli.translate import read_two_column_file
from regard.errors import UserError
from regard.serve.settings import Settings


def add_settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command with `**settings` an option for each field of `Settings`."""
    annotations = get_type_hints(Settings, include_extras=True)
    own = Signature.from_callable(command, eval_str=True).parameters.values()
    options = [_make_option(setting, annotations[setting.name]) for setting in fields(Settings)]
    parameters = [*(parameter for parameter in own if parameter.kind is not Parameter.VAR_KEYWORD), *options]
    command.__dict__["__signature__"] = Signature(parameters)
    return command


def _make_option(setting: Field[Any], annotation: Any) -> Parameter:
    """Return the option of a setting; it is repeatable for a collection, which `serve` builds from a list."""
    default = setting.default
    if setting.name in ("glossary", "cors"):
        annotation, default = Annotated[list[str] | None, *annotation.__metadata__], None
    return Parameter(setting.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@add_settings_options
def serve(
    runs: Annotated[list[str], typer.Argument(help="Runs to serve; RUN=en-de if a run does not name its languages.")],
    **settings: Any,
) -> None:
    """Serve models over HTTP with LibreTranslate's API, and a web page that shows the attention.

    Example: regard serve runs/mine --port 5000
    """
    try:
        from regard.serve import serve as run
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'regard[serve]'") from error
    if settings["require_key"] and settings["keys"] is None:
        raise UserError("--require-key needs --keys, the file that `regard keys add` writes")
    public_url = settings["public_url"]
    if public_url and not public_url.startswith(("http://", "https://")):
        raise UserError(f"--public-url must be a URL like https://example.org, not {public_url!r}")
    settings["glossary"] = _read_glossaries(settings["glossary"] or [])
    settings["cors"] = tuple(settings["cors"] or ())
    run(runs, Settings(**settings))


def _read_glossaries(arguments: list[str]) -> dict[str, dict[str, str]]:
    """Read glossary files, by the language pair before each (`en-de=FILE`)."""
    glossaries: dict[str, dict[str, str]] = {}
    for argument in arguments:
        pair, _, path = argument.rpartition("=")
        if pair in glossaries:
            raise UserError(
                f"--glossary {argument}: there is another one{f' for {pair}' if pair else ''}; put them in one file"
            )
        glossaries[pair] = read_two_column_file(Path(path))
    return glossaries
