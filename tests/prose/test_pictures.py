"""Pictures are what their script draws, and small."""

import runpy

from tests.docs.pages import DOCS


def test_pictures_are_small_and_made_by_the_script() -> None:
    """The SVG files are what the script draws; whoever changes one by hand loses it."""
    made = runpy.run_path(str(DOCS / "images" / "make_pictures.py"))
    drawn = {"round": made["round_picture"]()} | {
        f"strategy_{name}": text for name, text in made["PICTURES"].items()
    }
    for name, text in drawn.items():
        assert (DOCS / "images" / f"{name}.svg").read_text() == text, "run make_pictures.py"
        assert "prefers-color-scheme: dark" in text
    for picture in (DOCS / "images").glob("*.png"):
        assert picture.stat().st_size < 300_000, picture.name
