"""The schema of a table: what is refused, and what its fingerprint covers."""

from pathlib import Path

import pytest

from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError
from fedsketch.tasks.data.schema import Category, Number, Schema, Text, beside, load_schema

GOOD = """
columns:
  age: {number: [0, 110]}
  sex: {category: [f, m]}
  note: {text: 16, ngrams: 2}
  name: ignore
target: {column: diagnosis, class: [benign, malignant]}
client: hospital
"""


@pytest.fixture
def read(tmp_path: Path) -> object:
    def from_text(text: str) -> Schema:
        file = tmp_path / "patients.schema.yaml"
        file.write_text(text)
        return load_schema(file)

    return from_text


def test_it_says_what_the_columns_are(read: object) -> None:
    schema = read(GOOD)  # type: ignore[operator]
    assert schema.inputs == {
        "age": Number(0.0, 110.0),
        "sex": Category(("f", "m")),
        "note": Text(16, 2),
    }
    assert schema.shape == (1 + 3 + 16,)
    assert (schema.target.kind, schema.class_names) == (Targets.CLASSES, ("benign", "malignant"))
    assert (schema.client, schema.ignored, schema.unit) == ("hospital", {"name"}, None)


def _laughs(levels: int) -> str:
    """A list of 9^levels texts, in 700 bytes if it has 9 levels."""
    lists = ["&a [" + ",".join("x" * 9) + "]"]
    for inner, outer in zip("abcdefgh"[: levels - 1], "bcdefghi", strict=False):
        lists.append(f"&{outer} [" + ",".join([f"*{inner}"] * 9) + "]")
    return GOOD.replace("client: hospital", f"client: [{', '.join(lists)}]")


@pytest.mark.parametrize(
    "content",
    [
        _laughs(6),
        GOOD.replace("110", "1" + "0" * 400),
        GOOD.replace("110", "1" + "0" * 5000),
        GOOD.replace("hospital", "2001-99-99"),
        GOOD.replace("hospital", "[" * 2000),
        GOOD.replace("hospital", "[" + "x," * 3000 + "x]"),
        GOOD + "? [" + "x," * 3000 + "x]\n: 1\n",
        GOOD + "x" * 3000 + ": 1\n",
        GOOD + "x" * 1000 + ": 1\n",
    ],
    ids=["aliases", "large", "longest", "date", "deep", "list", "key", "name", "word"],
)
def test_a_small_file_cannot_become_a_large_error(read: object, content: str) -> None:
    """700 bytes with aliases stood for a billion texts, and the error repeated them: 2.5 GB of memory."""
    with pytest.raises(DataError) as caught:
        read(content)  # type: ignore[operator]
    assert len(str(caught.value)) < 1000


def test_aliases_are_refused_with_a_sentence(read: object) -> None:
    with pytest.raises(DataError, match="line 4: write the value out instead of an alias"):
        read(GOOD.replace("age: {", "age: &a {").replace("[f, m]", "*a"))  # type: ignore[operator]


def test_the_fingerprint_covers_what_examples_are_made_by(read: object) -> None:
    whole = read(GOOD).fingerprint  # type: ignore[operator]
    for same in (
        GOOD.replace("[0, 110]", "[0.0, 110.0]"),
        GOOD.replace("client: hospital", ""),
        GOOD.replace("  name: ignore\n", ""),
    ):
        assert read(same).fingerprint == whole  # type: ignore[operator]
    others = {
        GOOD.replace("110", "111"),
        GOOD.replace("[f, m]", "[m, f]"),
        GOOD.replace("text: 16", "text: 17"),
        GOOD.replace("ngrams: 2", "ngrams: 1"),
        GOOD.replace("age:", "years:"),
        GOOD.replace("[benign, malignant]", "[malignant, benign]"),
        GOOD.replace("column: diagnosis", "column: outcome"),
    }
    prints = {read(other).fingerprint for other in others}  # type: ignore[operator]
    assert len(prints) == len(others)
    assert whole not in prints


def test_what_a_client_gets_has_the_same_fingerprint(read: object) -> None:
    targets = (
        "target: {column: diagnosis, class: [benign, malignant]}",
        "target: {column: price, number: [0, 5]}",
        "target: {labels: [a, b]}",
    )
    for target in targets:
        schema = read(GOOD.replace(targets[0], target))  # type: ignore[operator]
        assert read(schema.to_yaml()).fingerprint == schema.fingerprint  # type: ignore[operator]


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (GOOD.replace("{number: [0, 110]}", "number"), "age is a number without bounds"),
        (GOOD.replace("[0, 110]", "[0, null]"), "from public knowledge and not from the data"),
        (GOOD.replace("[0, 110]", "null"), "one more release"),
        (GOOD.replace("[0, 110]", "[110, 0]"), "the smaller one first"),
        (GOOD.replace("[0, 110]", "[0, .inf]"), "two numbers"),
        (GOOD.replace("[f, m]", "[yes, no]"), "into quotes"),
        (GOOD.replace("[f, m]", "[f, f]"), "occurs twice"),
        (GOOD.replace("[f, m]", "null"), "a list of its public values, at least 1"),
        (GOOD.replace("ngrams: 2", "ngrams: 9"), "n from 1 to 8"),
        (GOOD.replace("ngrams", "grams"), "no key 'grams'"),
        (GOOD.replace("{category: [f, m]}", "words"), "column sex is one of"),
        (GOOD.replace("[benign, malignant]", "[benign]"), "public values, at least 2"),
        (GOOD.replace("column: diagnosis, class: [benign, malignant]", "column: cost"), "without bounds"),
        (GOOD.replace("column: diagnosis", "column: age"), "age has two uses"),
        (GOOD.replace("hospital", "diagnosis"), "diagnosis has two uses"),
        (GOOD.replace("client:", "clients:"), "no key 'clients'"),
        ("columns: {a: ignore}\ntarget: {labels: [b]}", "no column to learn from"),
        ("columns: {a: {number: [0, 1]}}", "lacks the key target"),
        ("just words", "is a mapping"),
        ("columns: [", "not readable YAML"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_the_file(read: object, bad: str, told: str) -> None:
    with pytest.raises(DataError, match=r"patients\.schema\.yaml") as refusal:
        read(bad)  # type: ignore[operator]
    assert told in str(refusal.value)


def test_it_is_looked_for_beside_the_data(tmp_path: Path) -> None:
    assert beside(tmp_path / "patients.csv") == tmp_path / "patients.schema.yaml"
    assert beside(tmp_path / "notes") == tmp_path / "notes.schema.yaml"
    with pytest.raises(DataError, match="There is no schema"):
        load_schema(tmp_path / "patients.schema.yaml")
