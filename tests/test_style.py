"""The style guide: terms of the field as names, docstrings that stand alone, plain help texts and messages."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from regard.cli.app import app

PACKAGE = Path(__file__).parent.parent / "regard"
FILES = sorted(PACKAGE.rglob("*.py"))


def _split_words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words that once named things of this package for which the field has its own terms.
DIALECT = _split_words(
    """
    way ways look looks looked looking wish wishes lot lots told tell heard hearing octet octets halves abreast crew
    fleet shelf quicken leanly lean laid parted placed settled spoken worded wording carrying carried harvest reap
    board keeper keeping pace trail frontier cohort among bare beside aside hired knock worth verdict narrow
    narrowed outline survey judged judgement follower eye sight shown asked asking
    """
)
PLAIN_VARIABLES = _split_words("placed")  # as in `placed_nodes`, the nodes with positions in a target
# Words that no message, help text or recipe comment needs.
RIDDLES = re.compile(
    r"\b(whoever|somebody|nobody|one's own|octets|no number|what it is worth|goes on|there is no such|told|lots? of)\b",
    re.IGNORECASE,
)
OPENINGS = re.compile(
    r"(What|Whether|How|Where|Those|That|These|The same|Of|Whose|Who|None|One more|So far|As it|All of)\b"
)
PARTICIPLE = re.compile(r"[a-z]+(ed|en|ought|eft|ept|old|ade|own|aid|ound|elt)")
# Verbs, nouns and terms of the field that end like participles.
VERBS_AND_TERMS = _split_words(
    """
    read embed feed seed need open token hidden listen bound round sound fold unfold hold flatten shorten widen
    masked batched guided named left
    """
)
# Methods of protocols and classes that many modules implement; every other name has one meaning, thus few definitions.
SHARED_NAMES = _split_words(
    """
    iterate_examples compute_metrics make_sample
    main forward backward build load save read write run train evaluate start step select encode decode predict
    translate close open reset update parse prepare create check names to get add attend begin plot plot_state loss
    make_batch make_attention_lines make_image_overlay num_rows num_targets num_tokens parse_json_input parse_lines
    read_inputs release_memory split_into to_dict to_text trim_padding vocabulary_layers expand_beams reorder_beams
    keep_rows concat_states hidden_states step_from_embedding embedding_size apply_bpe_dropout parts record split
    loss_sum loss_count losses make_router search describe sizes validate run_batch load_dev_set write_synthetic_corpus
    read_examples measure_length make_split_pair explain_too_few learn_vocabulary load_vocabulary make_training_set
    make_dev_set make_dev_example compute_logits is_supported linear feed_forward self_attention cross_attention
    add_norm count_tokens cross_entropy lstm_gates
    """
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _iterate_definitions() -> Iterator[tuple[Path, Definition]]:
    for path in FILES:
        for node in ast.walk(_parse(path)):
            if isinstance(node, Definition):
                yield path, node


def _format_location(path: Path, node: Definition) -> str:
    return f"{path.relative_to(PACKAGE.parent)}:{node.lineno} {node.name}"


@cache
def _has_dialect(name: str) -> bool:
    return any(word.lower() in DIALECT for word in re.split(r"_|(?<=[a-z])(?=[A-Z])", name))


def _begins_with_participle(name: str) -> bool:
    if name.startswith("__"):
        return False
    first = name.strip("_").split("_")[0]
    return bool(PARTICIPLE.fullmatch(first)) and first not in VERBS_AND_TERMS


def _iterate_strings(node: ast.AST) -> Iterator[str]:
    """Yield the literal parts of all strings inside a node."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def test_names_are_terms_of_the_field() -> None:
    modules = [str(path) for path in FILES if _has_dialect(path.stem)]
    names = [_format_location(path, node) for path, node in _iterate_definitions() if _has_dialect(node.name)]
    assert [*modules, *names] == []


def _iterate_variables(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of every assigned variable, attribute or dataclass field, and of every parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_variables_and_attributes_are_terms_of_the_field() -> None:
    names = [
        f"{path.relative_to(PACKAGE)}:{line} {name}"
        for path in FILES
        for line, name in _iterate_variables(_parse(path))
        if _has_dialect(name) and not PLAIN_VARIABLES & set(name.split("_"))
    ]
    assert names == []


def test_functions_are_verb_phrases() -> None:
    functions = [
        _format_location(path, node)
        for path, node in _iterate_definitions()
        if not isinstance(node, ast.ClassDef) and not _is_property(node) and _begins_with_participle(node.name)
    ]
    assert functions == []


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_docstrings_stand_on_their_own() -> None:
    docstrings = [(_format_location(path, node), ast.get_docstring(node)) for path, node in _iterate_definitions()]
    docstrings += [(str(path), ast.get_docstring(_parse(path))) for path in FILES]
    assert [f"{location}: {text[:60]}" for location, text in docstrings if text and OPENINGS.match(text)] == []


def _iterate_public(nodes: Iterable[ast.stmt]) -> Iterator[Definition]:
    """Yield functions, classes and methods whose name, and whose class, does not begin with an underscore."""
    for node in nodes:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _iterate_public(node.body)


def test_public_functions_and_classes_have_a_docstring() -> None:
    missing = [
        _format_location(path, node)
        for path in FILES
        for node in _iterate_public(_parse(path).body)
        if not ast.get_docstring(node)
    ]
    assert missing == []


def _has_complete_first_line(docstring: str) -> bool:
    """Return whether the first line is a sentence with all its brackets closed, and a paragraph of its own."""
    first, *rest = docstring.split("\n")
    is_balanced = all(first.count(opening) == first.count(closing) for opening, closing in ("()", "[]", "{}"))
    return is_balanced and first.count("`") % 2 == 0 and first.endswith((".", "?", "!", ":")) and not "".join(rest[:1])


def test_first_line_of_a_docstring_stands_alone() -> None:
    docstrings = [(_format_location(path, node), ast.get_docstring(node)) for path, node in _iterate_definitions()]
    docstrings += [(str(path), ast.get_docstring(_parse(path))) for path in FILES]
    assert [location for location, text in docstrings if text and not _has_complete_first_line(text)] == []


def test_a_public_name_is_defined_in_few_modules() -> None:
    modules = defaultdict(set)
    for path, node in _iterate_definitions():
        if not node.name.startswith("_") and node.name not in SHARED_NAMES:
            modules[node.name].add(path.relative_to(PACKAGE).as_posix())
    assert {name: sorted(paths) for name, paths in modules.items() if len(paths) > 3} == {}


def test_modules_are_short_enough_to_read() -> None:
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert {path: length for path, length in lengths.items() if length > 450} == {}


def test_error_messages_have_no_riddles() -> None:
    messages = [
        f"{path.relative_to(PACKAGE)}:{node.lineno} {text}"
        for path in FILES
        for node in ast.walk(_parse(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("UserError", "log_message", "ValueError", "TypeError")
        for text in _iterate_strings(node)
        if RIDDLES.search(text)
    ]
    assert messages == []


def _iterate_help() -> Iterator[tuple[str, str]]:
    """Yield each command and option with its help text."""

    def iterate_command(command: object, name: str) -> Iterator[tuple[str, str]]:
        yield name, (getattr(command, "help", None) or "").partition("\n\nExample:")[0].strip()
        for parameter in getattr(command, "params", ()):
            yield f"{name} {parameter.opts[0]}", (getattr(parameter, "help", None) or "").strip()
        for child_name, child in getattr(command, "commands", {}).items():
            yield from iterate_command(child, f"{name} {child_name}")

    yield from iterate_command(typer.main.get_command(app), "regard")


@pytest.mark.parametrize(("name", "text"), sorted(_iterate_help()), ids=lambda value: value.replace(" ", "_")[:40])
def test_help_is_a_plain_sentence(name: str, text: str) -> None:
    sentences = re.split(r"(?<=[.!?;:])\s", text.replace("\n", " "))
    assert text
    assert text[0] == text[0].upper()
    assert text[-1] in ".)"
    assert not RIDDLES.search(text)
    assert not OPENINGS.match(text)
    assert max(len(sentence.split()) for sentence in sentences) <= 25


def test_recipe_comments_have_no_riddles() -> None:
    comments = [
        f"{path.name}: {line.strip()}"
        for path in sorted((PACKAGE / "recipes").rglob("*.yaml"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if "#" in line and RIDDLES.search(line.partition("#")[2])
    ]
    assert comments == []


@pytest.mark.parametrize(
    ("name", "has_dialect", "is_participle"),
    [("told_metrics", True, True), ("Keeper", True, False), ("placed", True, True), ("read_file", False, False)],
)
def test_the_checks_find_dialect(name: str, has_dialect: bool, is_participle: bool) -> None:
    assert _has_dialect(name) == has_dialect
    assert _begins_with_participle(name) == is_participle


@pytest.mark.parametrize(
    ("docstring", "is_complete"),
    [
        ("Return the mean.", True),
        ("Return the mean.\n\nOf all rows.", True),
        ("Return tanh(W [c.\n\nh]).", False),
        ("Return the mean", False),
        ("Return the mean\nof all rows.", False),
    ],
)
def test_the_check_finds_broken_first_lines(docstring: str, is_complete: bool) -> None:
    assert _has_complete_first_line(docstring) == is_complete
