"""A first schema names columns and tells nothing else of the data; until it is filled in, nothing reads it."""

from pathlib import Path

import pytest

from fedsketch.errors import DataError
from fedsketch.runtime.schema_command import main
from fedsketch.tasks.data.schema import load_schema

TABLE = "age,sex,ill,hospital\n41,f,yes,north\n,m,no,south\n77,f,no,north\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "patients.csv"
    file.write_text(TABLE)
    return file


def test_a_first_schema_holds_no_cell_of_the_table(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(table), "--target", "ill", "--client", "hospital"]) == 0
    file = table.with_name("patients.schema.yaml")
    told = file.read_text().split("docs/how-to/own_tables.md\n")[1]
    assert told == (
        "columns:\n  age:\n    number: [null, null]\n  sex:\n    category: []\n"
        "target:\n  column: ill\n  class: []\nclient: hospital\n"
    )
    with pytest.raises(DataError, match="from public knowledge and not from the data"):
        load_schema(file)
    filled = told.replace("[null, null]", "[0, 110]").replace("class: []", 'class: ["no", "yes"]')
    file.write_text(filled)
    with pytest.raises(DataError, match="sex needs a list of its public values, at least 1"):
        load_schema(file)
    file.write_text(filled.replace("category: []", "category: [f, m]"))
    assert load_schema(file).shape == (4,)
    assert main([str(table), "--target", "ill"]) == 1
    assert "it is not replaced" in capsys.readouterr().err


def test_what_cannot_be_begun_is_one_sentence(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, told in (
        ([str(table), "--target", "cost"], "no column cost"),
        ([str(table.with_name("none.csv")), "--target", "ill"], "There is no table"),
    ):
        assert main(arguments) == 1
        assert told in capsys.readouterr().err
    assert not table.with_name("patients.schema.yaml").exists()
