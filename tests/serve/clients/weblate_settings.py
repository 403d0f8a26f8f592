"""Save the settings of LibreTranslate in Weblate, as its form does, and translate with them: URL, key, texts.

Runs in an environment with the package weblate. Prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

# Libraries for pictures and checks of files, which need C libraries and are imported when Django starts.
ABSENT = ("aeidon", "borgbackup", "cairo", "gi", "tesserocr")


class AbsentFinder:
    """Import system for the absent libraries."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> MagicMock:
        return MagicMock(__path__=[], __spec__=spec)

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(AbsentFinder())

import django  # noqa: E402
from django.conf import settings  # noqa: E402
from weblate import settings_example  # noqa: E402

values = {name: value for name, value in vars(settings_example).items() if name.isupper()}
values["DATABASES"] = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
values["CACHES"] = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
settings.configure(**{**values, "SITE_DOMAIN": "localhost"})
django.setup()

from weblate.machinery.forms import LibreTranslateMachineryForm  # noqa: E402
from weblate.machinery.libretranslate import LibreTranslateTranslation  # noqa: E402

url, key, *texts = sys.argv[1:]
form = LibreTranslateMachineryForm(LibreTranslateTranslation, data={"url": url, "key": key})
saved: dict[str, Any] = {"errors": [str(error) for errors in form.errors.values() for error in errors]}
if form.is_valid():
    client = LibreTranslateTranslation(form.cleaned_data)
    found = client.download_multiple_translations("en", "de", [(text, None) for text in texts])
    saved["languages"] = sorted(client.download_languages())
    saved["translations"] = [found[text][0]["text"] for text in texts]
sys.stdout.write(json.dumps(saved))
