"""Plots of attention: heatmaps, text heatmaps, bar charts, animations, and the files they are saved as."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, FontProperties, fontManager
from matplotlib.textpath import TextPath
from PIL import Image

from regard.errors import UserError
from regard.evaluate.translation_metrics import LengthGroup
from regard.plot import heatmap
from regard.plot.attention_overlay import (
    AttentionOverlay,
    WeightedWords,
    plot_attention_overlay,
    plot_weighted_words,
)
from regard.plot.charts import plot_bleu_by_length, plot_curves
from regard.plot.heatmap import (
    DecodingStep,
    format_alignment_matrix,
    plot_decoding_steps,
    plot_heatmap,
    plot_heatmaps,
    write_decoding_animation,
    write_figure,
)

WEIGHTS = np.array([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]], dtype=np.float32)
SOURCE, TARGET = ["▁the", "▁house", "</s>"], ["▁Haus", "</s>"]


def tick_labels(figure: Figure, axis: str) -> list[str]:
    axes = figure.axes[0]
    return [label.get_text() for label in (axes.get_xticklabels() if axis == "x" else axes.get_yticklabels())]


def text_in_svg(figure: Figure, path: Path) -> list[str]:
    """Save a figure as SVG and return its visible text."""
    with mpl.rc_context({"svg.fonttype": "none"}):
        write_figure(figure, path)
    texts = ElementTree.fromstring(path.read_text(encoding="utf-8")).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(text.itertext()).strip() for text in texts]


def test_heatmap_shows_weights_and_tokens() -> None:
    figure = plot_heatmap(WEIGHTS, SOURCE, TARGET, "a title")
    (image,) = figure.axes[0].get_images()
    shown = image.get_array()
    assert shown is not None
    np.testing.assert_array_equal(np.asarray(shown), WEIGHTS)
    assert image.get_clim() == (0, 1), "the colour scale must be the same in every figure"
    assert tick_labels(figure, "x") == SOURCE
    assert tick_labels(figure, "y") == TARGET
    assert figure.get_suptitle() == "a title"
    assert figure.axes[0].yaxis_inverted(), "the first target word is at the top"
    assert len(figure.axes) == 2, "the matrix and its colour bar"


def test_marks_that_stand_alone_are_labelled_without_their_spacer(tmp_path: Path) -> None:
    """A word vocabulary has `␣.` for a full stop after a space, and `‿-‿` for a hyphen without spaces."""
    source, target = ["a", "‿-‿", "b", "␣.", "</s>"], ["␣", "(␣", "␣."]
    weights = np.full((3, 5), 0.2, np.float32)
    figure = plot_heatmap(weights, source, target)
    assert tick_labels(figure, "x") == ["a", "-", "b", ".", "</s>"]
    assert tick_labels(figure, "y") == ["␣", "(", "."]
    (of_head, *_) = plot_heatmaps({"head 1": weights}, source, target).axes
    assert [label.get_text() for label in of_head.get_yticklabels()] == ["␣", "(", "."]
    steps = text_in_svg(plot_decoding_steps(weights, source, target), tmp_path / "steps.svg")
    assert "␣." not in steps
    assert {".", "(", "-"} <= {*steps}


def test_heatmap_of_local_attention_shows_window_and_gaussian() -> None:
    steps = [DecodingStep("▁Haus", [], window=(0, 1), gaussian=(0.4, 1.0)), DecodingStep("</s>", [], window=(1, 2))]
    axes = plot_heatmap(WEIGHTS, SOURCE, TARGET, steps=steps).axes[0]
    borders = [patch.get_window_extent().transformed(axes.transData.inverted()) for patch in axes.patches]
    assert [(round(border.x0), round(border.x1)) for border in borders] == [(0, 1), (1, 2)]
    curve, tick = axes.get_lines()
    x, y = curve.get_data()
    assert np.asarray(x)[np.argmin(y)] == pytest.approx(0.4, abs=0.05), "the y axis points down"
    assert np.asarray(tick.get_xdata()).tolist() == [0.4, 0.4]


def test_characters_without_a_font_are_reported_in_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    default = [entry for entry in fontManager.ttflist if entry.name.startswith("DejaVu")]
    monkeypatch.setattr(fontManager, "ttflist", default)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    monkeypatch.setattr(heatmap, "_reported", [])
    heatmap._find_fallback_family.cache_clear()
    heatmap._add_new_fonts.cache_clear()
    try:
        for name in ("a.png", "b.png"):
            write_figure(plot_heatmap(WEIGHTS, ["日本", "語", "</s>"], ["हिन्दी", "</s>"], "漢字"), tmp_path / name)
    finally:
        heatmap._find_fallback_family.cache_clear()
        heatmap._add_new_fonts.cache_clear()
    assert [str(warning.message) for warning in recwarn if "Glyph" in str(warning.message)] == []
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("no installed font has ")
    assert ": install Noto Sans " in lines[0]


@pytest.mark.parametrize(
    ("character", "advice"),
    [
        (
            "語",
            ": install Noto Sans CJK, the package fonts-noto-cjk of Debian, google-noto-sans-cjk-fonts of Fedora "
            "or font-noto-sans-cjk of Homebrew",
        ),
        (
            "ก",
            ": install Noto Sans Thai, the package fonts-noto-core of Debian, google-noto-sans-thai-fonts of Fedora "
            "or font-noto-sans-thai of Homebrew",
        ),
        ("🤗", ""),
        ("𝔸", ""),
        ("\ue000", ""),
    ],
)
def test_font_advice_names_fonts_that_exist(
    character: str, advice: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heatmap, "_reported", [])
    heatmap._report_missing_character(character)
    assert capfd.readouterr().err.endswith(f"pictures show as a box{advice}\n")


def test_each_font_file_is_read_once_for_all_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    get_font = font_manager.get_font

    def count(path: str) -> Any:
        opened.append(path)
        return get_font(path)

    monkeypatch.setattr(font_manager, "get_font", count)
    monkeypatch.setattr(heatmap, "_reported", [""])
    heatmap._find_fallback_family.cache_clear()
    heatmap._read_code_points.cache_clear()
    for number in range(0xE000, 0xE004):  # private use: no font needs to have them
        heatmap._find_fallback_family(chr(number))
    assert len(opened) == len(set(opened)) > 0


def test_characters_that_the_default_font_lacks_are_drawn_with_another_installed_font(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = FontEntry(fname="/fonts/cjk.otf", name="Noto Sans CJK JP")
    default = [entry for entry in fontManager.ttflist if entry.name.startswith("DejaVu")]
    monkeypatch.setattr(fontManager, "ttflist", [*default, entry])
    has_character = heatmap._has_character
    monkeypatch.setattr(
        heatmap,
        "_has_character",
        lambda path, one: one == "日" if path == entry.fname else has_character(path, one),
    )
    heatmap._find_fallback_family.cache_clear()
    try:
        assert [heatmap._find_fallback_family(one) for one in "aä日"] == [None, None, "Noto Sans CJK JP"]
    finally:
        heatmap._find_fallback_family.cache_clear()
    assert capfd.readouterr().err == ""


def test_font_that_was_installed_after_matplotlib_listed_all_fonts_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    default = [entry for entry in fontManager.ttflist if entry.name == "DejaVu Sans"]
    other = next(entry for entry in fontManager.ttflist if entry.name == "STIXNonUnicode")
    lacking = {ord(character) for character in "日ก"}.union(
        *(font_manager.get_font(e.fname).get_charmap() for e in default)
    )
    character = chr(min(set(font_manager.get_font(other.fname).get_charmap()) - lacking))
    monkeypatch.setattr(fontManager, "ttflist", default)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [other.fname])
    heatmap._find_fallback_family.cache_clear()
    heatmap._add_new_fonts.cache_clear()
    try:
        assert heatmap._find_fallback_family(character) == "STIXNonUnicode"
    finally:
        heatmap._find_fallback_family.cache_clear()
        heatmap._add_new_fonts.cache_clear()


def test_arabic_letters_are_joined_and_run_from_right_to_left() -> None:
    """DejaVu Sans, which matplotlib brings, has the joined letters as Unicode's presentation forms as well."""
    font = FontProperties(family="DejaVu Sans")
    shaped, forms = (TextPath((0, 0), word, size=20, prop=font) for word in ("بيت", "\ufe91\ufef4\ufe96"))
    np.testing.assert_allclose(np.asarray(shaped.vertices), np.asarray(forms.vertices))


ARABIC, HEBREW = ["بيت", "صغير", "</s>"], ["הבית", "</s>"]


def test_source_from_right_to_left_begins_at_the_right_of_every_picture() -> None:
    for source, is_reversed in ((ARABIC, True), (SOURCE, False), (["家", "は", "</s>"], False)):
        step = DecodingStep("x", [("x", 1.0)], WEIGHTS[0])
        frame = heatmap.make_figure((6, 5), 80)
        heatmap._plot_frame(frame, [step], source)
        figures = [plot_heatmap(WEIGHTS, source, TARGET), plot_decoding_steps(WEIGHTS, source, TARGET)]
        shown = [figures[0].axes[0], *figures[1].axes, frame.axes[0]]
        assert [axes.xaxis_inverted() for axes in shown] == [is_reversed] * 4
        assert tick_labels(figures[0], "x") == source
    assert plot_heatmap(WEIGHTS, ARABIC, HEBREW).axes[0].yaxis_inverted(), "the first target word stays at the top"


def test_title_of_an_animation_begins_on_the_side_of_its_script() -> None:
    for words, side in ((ARABIC, "right"), (SOURCE, "left")):
        frame = heatmap.make_figure((6, 5), 80)
        heatmap._plot_frame(frame, [DecodingStep(word, [(word, 1.0)]) for word in words], SOURCE)
        assert frame._suptitle.get_horizontalalignment() == side  # type: ignore[attr-defined]


def test_shaded_line_from_right_to_left_begins_at_the_right(tmp_path: Path) -> None:
    figure = plot_weighted_words(
        [WeightedWords("one", ARABIC, [0.1, 0.2, 0.7]), WeightedWords("two", SOURCE, [0.3] * 3)]
    )
    words = [text for text in figure.texts if text.get_text() not in ("one", "two")]
    x = [text.get_position()[0] for text in words]
    assert x[:3] == sorted(x[:3], reverse=True)
    assert x[3:] == sorted(x[3:])
    assert {text.get_horizontalalignment() for text in words[:3]} == {"right"}
    assert all(0 < position < 1 for position in x)
    write_figure(figure, tmp_path / "a.png")
    fonts = [
        font_manager.get_font(font_manager.findfont(FontProperties(family=[family])))
        for family in words[0].get_fontfamily()
    ]
    assert all(any(ord(letter) in font.get_charmap() for font in fonts) for letter in ARABIC[0])


def test_wide_characters_of_a_shaded_line_do_not_overlap() -> None:
    narrow, wide = (plot_weighted_words([WeightedWords("", [word, "x"], [0.5] * 2)]) for word in ("abcd", "日本語文"))
    assert wide.get_size_inches()[0] > narrow.get_size_inches()[0] + 0.25


def test_image_panels_of_a_caption_from_right_to_left_begin_at_the_right() -> None:
    figure = plot_attention_overlay(AttentionOverlay(None, ARABIC, np.ones((3, 2, 2), dtype=np.float32)))
    figure.canvas.draw()
    titles = {axes.get_title(): axes.get_position().x0 for axes in figure.axes}
    assert titles[ARABIC[0]] > titles[ARABIC[1]] > titles[ARABIC[2]]


def test_terminal_does_not_reverse_lines_around_words_from_right_to_left() -> None:
    lines = format_alignment_matrix(WEIGHTS[:, :2], ["הבית", "x"], ["a", "بيت"]).splitlines()
    assert lines[1] == "\u2068بيت\u2069 │░░░░"
    assert lines[0].startswith("  a │")
    assert lines[-1].endswith("└ \u2068הבית\u2069")


def test_figure_grows_with_the_attention_matrix() -> None:
    def size(columns: int, rows: int) -> tuple[float, float]:
        figure = plot_heatmap(np.zeros((rows, columns), dtype=np.float32), ["w"] * columns, ["v"] * rows)
        return float(figure.get_figwidth()), float(figure.get_figheight())

    small, wide, high = size(3, 3), size(30, 3), size(3, 30)
    assert wide[0] > 2 * small[0]
    assert wide[1] == small[1]
    assert high[1] > 2 * small[1]
    assert high[0] == small[0]


@pytest.mark.parametrize(
    ("name", "magic"),
    [("a.png", b"\x89PNG\r\n\x1a\n"), ("b.svg", b"<?xml"), ("c.pdf", b"%PDF-"), ("d.PNG", b"\x89PNG")],
)
def test_file_extension_decides_the_image_format(name: str, magic: bytes, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / name
    write_figure(plot_heatmap(WEIGHTS, SOURCE, TARGET), path)
    assert path.read_bytes().startswith(magic)


def test_svg_is_well_formed_and_contains_the_tokens(tmp_path: Path) -> None:
    found = text_in_svg(plot_heatmap(WEIGHTS, ["<b>", "a&b", "ß"], TARGET, "x < y"), tmp_path / "a.svg")
    assert {"<b>", "a&b", "ß", "▁Haus", "</s>", "x < y"} <= set(found)


@pytest.mark.parametrize("name", ["picture", "picture.txt", "picture.", "picture.png.gz"])
def test_unknown_extension_is_an_error_that_lists_the_known_ones(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / name
    with pytest.raises(UserError) as caught:
        write_figure(plot_heatmap(WEIGHTS, SOURCE, TARGET), path)
    assert str(caught.value).startswith(f"{path}: unknown image format; the name must end in ")
    assert ".png, " in str(caught.value)
    assert ".svg" in str(caught.value)
    assert not path.parent.exists()


def test_dollar_signs_are_not_rendered_as_math(tmp_path: Path) -> None:
    words = ["$5", "$x^2$", "\\$", "$", "100$\\frac$"]
    weights = np.full((1, len(words)), 0.2, dtype=np.float32)
    found = text_in_svg(plot_heatmap(weights, words, ["$$"], "cost: $a_1$"), tmp_path / "a.svg")
    assert {*words, "$$", "cost: $a_1$"} <= set(found)


def test_text_heatmap_matches_the_expected_characters() -> None:
    weights = np.array([[1.0, 0.1, 0.0], [0.25, 0.45, 0.65]], dtype=np.float32)
    expected = [
        "Haus │██    ",
        "  da │░░▒▒▓▓",
        "     └──────",
        "      │ │ └ there",
        "      │ └ house",
        "      └ a",
    ]
    assert format_alignment_matrix(weights, ["a", "house", "there"], ["Haus", "da"]) == "\n".join(expected)


def test_text_heatmap_has_five_equal_shades() -> None:
    weights = np.array([[0.0, 0.19, 0.21, 0.39, 0.41, 0.59, 0.61, 0.79, 0.81, 1.0, 1.5, -0.5]], dtype=np.float32)
    first = format_alignment_matrix(weights, ["s"] * 12, [""]).splitlines()[0]
    assert first == " │" + "    " + "░░░░" + "▒▒▒▒" + "▓▓▓▓" + "██████" + "  "


def test_text_heatmap_aligns_wide_and_combining_characters() -> None:
    weights = np.array([[1.0], [0.0], [1.0]], dtype=np.float32)
    lines = format_alignment_matrix(weights, ["house"], ["房子", "a\u0308", "abcd"]).splitlines()
    assert lines[:4] == ["房子 │██", "   a\u0308 │  ", "abcd │██", "     └──"]


def test_text_heatmap_of_an_empty_matrix() -> None:
    assert format_alignment_matrix(np.zeros((0, 0), dtype=np.float32), [], []) == " └"
    assert format_alignment_matrix(np.zeros((0, 1), dtype=np.float32), ["a"], []) == " └──\n  └ a"


def test_text_heatmap_needs_one_row_per_target_token() -> None:
    with pytest.raises(ValueError, match="zip"):
        format_alignment_matrix(WEIGHTS, SOURCE, ["one"])


def test_heatmaps_of_several_heads_are_labelled() -> None:
    heads = {f"layer 1, head {head}": (WEIGHTS * head / 3).astype(np.float32) for head in (1, 2, 3)}
    figure = plot_heatmaps(heads, SOURCE, TARGET)
    drawn = [axes for axes in figure.axes if axes.get_images()]
    assert [axes.get_xlabel() for axes in drawn] == list(heads)
    for axes, weights in zip(drawn, heads.values(), strict=True):
        np.testing.assert_array_equal(np.asarray(axes.get_images()[0].get_array()), weights)
    assert len(figure.axes) == 4
    assert not figure.axes[3].axison


def test_each_decoding_step_has_a_bar_chart_of_its_weights() -> None:
    figure = plot_decoding_steps(WEIGHTS, SOURCE, TARGET)
    assert [axes.get_ylabel() for axes in figure.axes] == TARGET
    for axes, row in zip(figure.axes, WEIGHTS, strict=True):
        np.testing.assert_allclose(
            [bar.get_height() for bar in axes.patches],  # type: ignore[attr-defined]
            row,
        )


def test_bleu_by_length_plots_one_line_per_system() -> None:
    systems = {
        "a$b": [LengthGroup("1–10", 5, 30.0), LengthGroup("11–20", 2, 20.0)],
        "b": [LengthGroup("1–10", 5, 10.0)] * 2,
    }
    axes = plot_bleu_by_length(systems).axes[0]
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()] == [[30.0, 20.0], [10.0, 10.0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1–10\n5 pairs", "11–20\n2 pairs"]
    assert axes.get_legend() is not None
    only_one = plot_bleu_by_length({"b": systems["b"]})
    assert only_one.axes[0].get_legend() is None
    assert (plot_curves({"b": [(1, 2)]}, "", "x", "y").dpi, only_one.dpi) == (110, 150), "the page's images are small"


def test_animation_has_one_frame_per_decoding_step(tmp_path: Path) -> None:
    vector = np.linspace(-1, 1, 8, dtype=np.float32)
    trace = [
        DecodingStep("▁Haus", [("▁Haus", 0.7), ("▁Hof", 0.2)], WEIGHTS[0], vector, vector),
        DecodingStep("</s>", [("</s>", 0.9), ("▁und", 0.1)], WEIGHTS[1], -vector, vector),
    ]
    write_decoding_animation(trace, SOURCE, tmp_path / "deep" / "a.gif")
    with Image.open(tmp_path / "deep" / "a.gif") as picture:
        assert picture.n_frames == 2  # type: ignore[attr-defined]
        first = np.asarray(picture.convert("RGB"))
        picture.seek(1)
        assert not np.array_equal(first, np.asarray(picture.convert("RGB")))
    write_decoding_animation([DecodingStep("x", [("x", 1.0)])], SOURCE, tmp_path / "no-attention.gif")
    assert (tmp_path / "no-attention.gif").read_bytes().startswith(b"GIF8")


def test_words_are_shaded_by_their_weights(tmp_path: Path) -> None:
    lines = [WeightedWords("one", ["the", "house$"], [0.0, 1.0], 0.5), WeightedWords("two", ["a"], [0.2])]
    figure = plot_weighted_words(lines)
    words = [text.get_text() for text in figure.texts]
    assert words == ["one", "the", "house$", "two", "a"]
    patches: list[Any] = [text.get_bbox_patch() for text in figure.texts]
    blues = [1 - patch.get_facecolor()[0] for patch in patches]
    assert blues[2] > blues[0] > blues[4] > blues[1] == blues[3]
    assert "house$" in text_in_svg(figure, tmp_path / "a.svg")


def test_long_shaded_line_wraps_and_its_largest_weight_is_darkest() -> None:
    words, weights = ["word"] * 50, [0.01] * 49 + [0.02]
    figure = plot_weighted_words(
        [WeightedWords("mean", words, weights, 0.3, darkest_weight=0.02), WeightedWords("next", ["a"], [1.0])]
    )
    assert [text.get_text() for text in figure.texts if text.get_text()] == ["mean", *["word"] * 50, "next", "a"]
    rows = {round(text.get_position()[1], 6) for text in figure.texts}
    assert len(rows) == 4
    assert figure.get_size_inches()[0] < 12
    last = [text for text in figure.texts if text.get_text() == "word"][-1]
    only = next(text for text in figure.texts if text.get_text() == "a")
    patches: list[Any] = [last.get_bbox_patch(), only.get_bbox_patch()]
    assert patches[0].get_facecolor() == patches[1].get_facecolor()
