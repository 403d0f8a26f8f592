"""The wheel and the sdist: contents, metadata and installation. `make dist` tries them in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml

from regard.version import VERSION

ROOT = Path(__file__).parent.parent


def list_package_files() -> set[str]:
    """Return the files of the package, without what Python and editors leave there."""
    files = (path for path in (ROOT / "regard").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in files if path.suffix != ".pyc"}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build the sdist from the checkout, and the wheel from the sdist, as `python -m build` does."""
    checkout, folder = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("distributions")
    shutil.copytree(ROOT / "regard", checkout / "regard", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / f"regard-{VERSION}-py3-none-any.whl", folder / f"regard-{VERSION}.tar.gz"


@pytest.mark.slow
def test_wheel_and_sdist_contain_every_file_of_the_package(distributions: tuple[Path, Path]) -> None:
    wheel, sdist = distributions
    expected = list_package_files()
    assert {"regard/py.typed", "regard/recipes/default.yaml", "regard/serve/page/index.html"} <= expected
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert in_wheel == expected
    assert expected | {"LICENSE", "README.md", "pyproject.toml"} <= in_sdist


@pytest.mark.slow
def test_metadata_of_the_wheel_names_version_licence_and_extras(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[0]) as archive:
        metadata = message_from_bytes(archive.read(f"regard-{VERSION}.dist-info/METADATA"))
        assert f"regard-{VERSION}.dist-info/licenses/LICENSE" in archive.namelist()
    assert (metadata["Name"], metadata["Version"], metadata["License-Expression"]) == ("regard", VERSION, "Apache-2.0")
    assert {"serve", "export", "formats", "asian"} <= set(metadata.get_all("Provides-Extra", []))
    assert str(metadata.get_payload()).startswith("# regard")


@pytest.mark.slow
def test_installed_wheel_runs_without_the_checkout(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path)]
    subprocess.run([*pip, str(distributions[0])], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    regard = [sys.executable, "-P", "-m", "regard"]
    for arguments, expected in (
        (["--version"], f"regard {VERSION}"),
        (["recipes", "default"], "# Default: "),
        (["data", "make", "--pairs", "20", "--out", "corpus"], "train 20 pairs"),
    ):
        done = subprocess.run(
            [*regard, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert expected in done.stdout


def test_citation_readme_and_changelog_name_the_version_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == VERSION
    assert f'license = "{citation["license"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f"version = {{{VERSION}}}," in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n## [{VERSION}] - {citation['date-released']}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: str(path.stem))
def test_issue_forms_are_complete(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name != "config.yml":
        assert {"name", "description", "body"} <= set(form)
        identifiers = [field["id"] for field in form["body"] if field["type"] != "markdown"]
        assert len(identifiers) == len(set(identifiers)) > 0
