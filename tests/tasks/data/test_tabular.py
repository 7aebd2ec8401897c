"""Tables and texts: from cells to examples, from a table to a data set, from a data set to what devices have."""

import time
from logging import getLogger
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsketch.conf import Config, compose, device_json
from fedsketch.conf.targets import Targets
from fedsketch.errors import DataError
from fedsketch.tasks.data.columns import examples_of
from fedsketch.tasks.data.schema import Category, Number, Schema, Target, Text, load_schema
from fedsketch.tasks.data.tables import read_table
from fedsketch.tasks.data.tabular import own_table, read_examples, resolved, write_parts
from fedsketch.tasks.workload import Workload

INPUTS = {"age": Number(0, 100), "sex": Category(("f", "m"))}
DIAGNOSIS = Target(Targets.CLASSES, ("diagnosis",), ("benign", "malignant"))
SCHEMA = Schema(INPUTS, DIAGNOSIS, frozenset(["name"]))
HEADER = "name,age,sex,diagnosis\n"
YAML = """
columns:
  x: {number: [-1, 1]}
target: {column: y, class: [no, "yes"]}
client: hospital
""".replace("[no,", '["no",')


def _csv(folder: Path, text: str, name: str = "patients.csv") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_a_row_becomes_a_vector_by_the_schema_alone(tmp_path: Path) -> None:
    """Bounds become -1 and 1, what is outside or missing follows the rule, and no row depends on another."""
    rows = "a,0,f,benign\nb,75,m,malignant\nc,1e9,x,benign\nd,-inf, m ,benign\ne,,,benign\n\nf,NA,f,benign\n"
    examples = read_examples(_csv(tmp_path, HEADER + rows), SCHEMA)
    assert examples.inputs.tolist() == [
        [-1.0, 1.0, 0.0, 0.0],
        [0.5, 0.0, 1.0, 0.0],
        [1.0, 0.0, 0.0, 1.0],
        [-1.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 1.0],
        [0.0, 1.0, 0.0, 0.0],
    ]
    assert examples.targets.tolist() == [0, 1, 0, 0, 0, 0]
    alone = read_examples(_csv(tmp_path, HEADER + "b,75,m,malignant\n"), SCHEMA)
    assert torch.equal(alone.inputs[0], examples.inputs[1])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (HEADER + "a,old,f,benign\n", "line 2, column age: it is not a number"),
        (HEADER + "a,1,f,benign\nb,2,m,odd\n", "line 3, column diagnosis: it is none of"),
        (HEADER + "a,1,f,\n", "line 2, column diagnosis: it is none of"),
        (HEADER + "a,1,f\n", "line 2: 3 cells, and the header has 4"),
        (HEADER + 'a,1,f,"benign\n', "line 2: unexpected end of data"),
        (HEADER, "has no rows"),
        ("", "is empty"),
        ("name,age,age,diagnosis\n", "columns 2 and 3 have the same name"),
        ("name,sex,diagnosis\nx,f,benign\n", "has no column age"),
        ("name,age,sex,diagnosis,zip\nx,1,f,benign,8\n", "`zip: ignore`"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_column(
    tmp_path: Path, text: str, told: str
) -> None:
    with pytest.raises(DataError, match=r"patients\.csv") as refusal:
        read_examples(_csv(tmp_path, text), SCHEMA)
    assert told in str(refusal.value)


SECRET = "Meier Hans 1961-03-02"


@pytest.mark.parametrize(
    "text",
    [
        f"{HEADER}a,{SECRET},f,benign\n",
        f"{HEADER}a,1,f,benign\nb,NA,f,benign\na,{SECRET},f,benign\n",
        f"{HEADER}a,1,f,{SECRET}\n",
        f"{HEADER}a,1,f\n{SECRET},1,f\n",
        f'{HEADER}a,1,f,"{SECRET}\n',
        f"{SECRET},{SECRET},f,benign\n",
        f"{SECRET},1,f,benign\n",
    ],
    ids=["number", "later", "class", "short", "quote", "header", "no header"],
)
def test_no_cell_is_in_the_log(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    """As a device logs it, with the exceptions before it."""
    try:
        read_examples(_csv(tmp_path, text), SCHEMA)
    except DataError:
        getLogger("device").exception("Training failed")
    assert "patients.csv" in caplog.text
    assert not any(word in caplog.text for word in SECRET.split())


def test_a_cell_of_labels_is_not_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = Schema({"x": Number(0, 1)}, Target(Targets.LABELS, ("a", "b")))
    try:
        read_examples(_csv(tmp_path, f"x,a,b\n0,1,{SECRET}\n"), labels)
    except DataError:
        getLogger("device").exception("Training failed")
    assert "line 2, column b" in caplog.text
    assert not any(word.lower() in caplog.text.lower() for word in SECRET.split())


def test_other_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="There is no table"):
        read_examples(tmp_path / "none.csv", SCHEMA)
    (tmp_path / "latin.csv").write_bytes(HEADER.encode() + "a,1,f,b\xe4nign\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_examples(tmp_path / "latin.csv", SCHEMA)
    with pytest.raises(DataError, match="is a folder"):
        read_examples(tmp_path, SCHEMA)


def test_numbers_and_labels_as_targets(tmp_path: Path) -> None:
    price = Schema({"x": Number(0, 1)}, Target(Targets.NUMBERS, ("y",), bounds=Number(100, 300)))
    file = _csv(tmp_path, "x,y\n0,100\n0,250\n0,9999\n")
    assert read_examples(file, price).targets.tolist() == [-1.0, 0.5, 1.0]
    assert price.unit == 100
    with pytest.raises(DataError, match="line 2, column y: the number to learn is missing"):
        read_examples(_csv(tmp_path, "x,y\n0,\n"), price)
    labels = Schema({"x": Number(0, 1)}, Target(Targets.LABELS, ("a", "b")))
    file = _csv(tmp_path, "x,a,b\n0,1,0\n0,false,Yes\n")
    assert read_examples(file, labels).targets.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    with pytest.raises(DataError, match="line 2, column b: it is none of"):
        read_examples(_csv(tmp_path, "x,a,b\n0,1,2\n"), labels)


@pytest.mark.parametrize("characters", [False, True])
def test_texts_are_hashed_the_same_from_files_and_folders(tmp_path: Path, characters: bool) -> None:
    """Norm 1, and a word that two texts share is in the same bucket with the same sign."""
    texts = ["money now", "see you now", ""]
    schema = Schema(
        {"text": Text(1024, 2, characters)}, Target(Targets.CLASSES, ("label",), ("ham", "spam"))
    )
    rows = zip(texts, ("spam", "ham", "ham"), strict=True)
    file = _csv(tmp_path, "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows))
    examples = read_examples(file, schema)
    assert examples.inputs.norm(dim=1).tolist() == pytest.approx([1, 1, 0])
    assert float(examples.inputs[0] @ examples.inputs[1]) > 0.1
    for name, text in (("spam/a", texts[0]), ("ham/b", texts[1]), ("ham/c", texts[2])):
        path = tmp_path / "notes" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folder = read_examples(tmp_path / "notes", schema)
    assert torch.equal(folder.inputs, examples.inputs[[1, 2, 0]])
    assert folder.targets.tolist() == [0, 0, 1]
    (tmp_path / "notes" / "other").mkdir()
    with pytest.raises(DataError, match="is not a class of the schema"):
        read_examples(tmp_path / "notes", schema)


def test_the_hash_is_the_same_on_every_machine() -> None:
    """Devices of other versions would make other vectors of the same text, and no fingerprint would tell."""
    from fedsketch.tasks.data.columns import _hashed

    found = _hashed(["federated learning"], Text(8))[0]
    assert np.flatnonzero(found).tolist() == HASHED
    assert found[HASHED].tolist() == pytest.approx(SIGNS)


HASHED, SIGNS = [0, 1], [-(0.5**0.5), 0.5**0.5]


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """60 rows of three hospitals of different sizes; the number of a row is its x."""
    lines = [
        f"{row / 100},{'yes' if row % 3 else 'no'},{'abc'[min(row % 6, 2)]}\n" for row in range(60)
    ]
    _csv(tmp_path, YAML, "patients.schema.yaml")
    return _csv(tmp_path, "x,y,hospital\n" + "".join(lines))


def _config(table: Path, *overrides: str) -> Config:
    clients = ["clients.total=3", "clients.per_round=3", "model=logistic", "device=cpu"]
    return compose(["data=csv", f"data.root={table}", *clients, *overrides])


def test_a_table_is_split_by_the_seed_and_dealt_out_by_hospital(hospitals: Path) -> None:
    workload = Workload(_config(hospitals, "data/partition=natural"))
    dataset = workload.dataset
    assert (len(dataset.train), len(dataset.test)) == (48, 12)
    assert dataset.group_names == ("a", "b", "c")
    rows = torch.cat([dataset.train.inputs, dataset.test.inputs]).mul(100).round().long()
    assert sorted(rows.flatten().tolist()) == list(range(60))
    for client in range(3):
        shard = workload.shard(client).inputs.mul(100).round().long().flatten()
        assert {min(row % 6, 2) for row in shard.tolist()} == {client}
    other = Workload(_config(hospitals, "seed=1")).dataset
    assert not torch.equal(other.test.inputs, dataset.test.inputs)


def test_the_test_rows_can_be_a_column_or_a_file(hospitals: Path, tmp_path: Path) -> None:
    file = _csv(tmp_path, "x,y,hospital\n0.5,yes,a\n", "test.csv")
    whole = Workload(_config(hospitals, f"data.test_root={file}")).dataset
    assert (len(whole.train), whole.test.inputs.tolist()) == (60, [[0.5]])
    marked = _csv(tmp_path, "x,y,part\n0.1,yes,train\n0.2,no,test\n0.3,no,train\n", "marked.csv")
    _csv(tmp_path, YAML.replace("client: hospital", "test: part"), "marked.schema.yaml")
    by_column = Workload(_config(marked)).dataset
    assert by_column.test.inputs.flatten().tolist() == pytest.approx([0.2])
    alone = _csv(tmp_path, "x,y,part\n0.1,yes,train\n", "marked.csv")
    with pytest.raises(DataError, match="0 rows to test on and 1 to train on"):
        _ = Workload(_config(alone, "seed=2")).dataset


def test_a_table_without_hospitals_has_no_natural_partition(tmp_path: Path) -> None:
    _csv(tmp_path, YAML, "t.schema.yaml")
    table = _csv(tmp_path, "x,y\n0.1,yes\n0.2,no\n", "t.csv")
    with pytest.raises(DataError, match="no column hospital"):
        _ = Workload(_config(table)).dataset


def test_real_devices_are_told_no_file_and_no_column(hospitals: Path) -> None:
    """And simulated ones, which have nothing of their own, are told where the table is."""
    config = resolved(_config(hospitals, "runtime=processes", "data/partition=natural"))
    told = device_json(config)
    for secret in (str(hospitals), "patients", "schema.yaml", "hospital"):
        assert secret not in told
    schema = load_schema(hospitals.with_name("patients.schema.yaml"))
    assert schema.fingerprint in told
    simulated = _config(hospitals, "runtime=processes", "privacy.randomness=seeded")
    assert str(hospitals) in device_json(resolved(simulated))
    assert str(hospitals) in device_json(resolved(_config(hospitals)))


def test_a_servers_schema_stays_there(hospitals: Path) -> None:
    schema = hospitals.with_name("patients.schema.yaml")
    keys = ["data=folder", f"data.root={hospitals}", f"data.schema={schema}", "model=logistic"]
    config = resolved(compose(keys))
    assert "patients" not in device_json(config)
    fingerprint = load_schema(schema).fingerprint
    assert (config.data.shape, config.data.class_names) == ((1,), ("no", "yes"))  # type: ignore[attr-defined]
    assert config.data.fingerprint == fingerprint  # type: ignore[attr-defined]
    assert len(Workload(config).test) == 60


def test_what_devices_get_are_the_clients_rows(hospitals: Path, tmp_path: Path) -> None:
    """Each file holds what `shard` gives in a simulation, is read by the same fingerprint, and has no column beyond
    the
    schema's."""
    config = _config(hospitals, "data/partition=natural", "data.public=5")
    workload = Workload(config)
    files = [tmp_path / f"part{client}.csv" for client in range(3)]
    write_parts(config, workload.partitioned.client_indices, files)
    fingerprint = load_schema(hospitals.with_name("patients.schema.yaml")).fingerprint
    for client, file in enumerate(files):
        own, shard = own_table(file, fingerprint), workload.shard(client)
        assert torch.equal(own.inputs, shard.inputs)
        assert torch.equal(own.targets, shard.targets)
        assert file.read_text().startswith("x,y\n")
    with pytest.raises(DataError, match="has changed since its data card was made"):
        own_table(files[0], "0" * 32)


def test_public_rows_come_from_another_table(hospitals: Path, tmp_path: Path) -> None:
    public = _csv(tmp_path, "x,y,hospital\n-0.5,yes,z\n", "public.csv")
    assert Workload(_config(hospitals, f"data.public_root={public}")).public.inputs.tolist() == [
        [-0.5]
    ]
    with pytest.raises(DataError, match="1 examples of the test set"):
        _ = Workload(
            _config(hospitals, f"data.public_root={hospitals}", "data.test_share=0.01")
        ).public


def test_errors_of_numbers_are_told_in_the_units_of_the_table(tmp_path: Path) -> None:
    """Prices from 100 to 300: a model that always says 200 errs by 50 on 150 and 250."""
    from fedsketch.tasks.scores import evaluate

    schema = "columns: {x: {number: [0, 1]}}\ntarget: {column: y, number: [100, 300]}"
    _csv(tmp_path, schema, "p.schema.yaml")
    table = _csv(tmp_path, "x,y\n" + "0,150\n0,250\n" * 5, "p.csv")
    config = resolved(_config(table, "task=regression"))
    workload = Workload(config)
    model = workload.model()
    model.load(torch.zeros(model.size))
    found = evaluate(model, workload.dataset.train)
    assert (found["rmse"], found["mae"]) == pytest.approx((50.0, 50.0))
    assert found["loss"] == pytest.approx(0.25)


def test_a_table_of_another_task_is_refused(hospitals: Path) -> None:
    with pytest.raises(DataError, match="choose task=classification"):
        _ = Workload(_config(hospitals, "task=regression")).dataset


def test_large_tables_are_read_in_seconds(tmp_path: Path) -> None:
    """20,000 rows of 30 columns in a second; 100,000 rows take 2."""
    schema = Schema({f"c{i}": Number(0, 1) for i in range(30)}, DIAGNOSIS)
    row = ",".join(f"0.{i:02}" for i in range(30))
    header = ",".join([*schema.inputs, "diagnosis"])
    file = _csv(tmp_path, f"{header}\n" + f"{row},benign\n" * 20_000)
    began = time.process_time()
    table = read_table(file, schema)
    assert len(examples_of(table, schema)) == 20_000
    assert time.process_time() - began < 4


def test_a_loaded_model_reads_new_rows_without_their_targets(
    hospitals: Path, no_report: None, tmp_path: Path
) -> None:
    import fedsketch
    from fedsketch.client.app import app
    from fedsketch.runtime.environment import simulated_devices
    from fedsketch.runtime.local import LocalGrid
    from fedsketch.server.rounds import Rounds
    from tests.observers import Recorder

    config = _config(
        hospitals, "rounds=1", "secagg=none", "privacy=none", "strategy=fedavg", "task=binary"
    )
    with simulated_devices(config):
        Rounds(config, tmp_path / "run", Recorder()).run(LocalGrid(app, 3))
    hospitals.unlink()
    hospitals.with_name("patients.schema.yaml").unlink()
    model = fedsketch.load(tmp_path / "run")
    inputs = model.read(_csv(tmp_path, "x,whose\n0.5,a\n-1,b\n", "new.csv"))
    assert inputs.tolist() == [[0.5], [-1.0]]
    assert model(inputs).shape == (2, 1)
    assert model.classes == ("no", "yes")
    assert Number(100, 300).original(0.5) == 250


def test_texts_are_a_data_set_whose_schema_is_its_settings(tmp_path: Path) -> None:
    """Real devices read their parts by the same fingerprint as the server's."""
    lines = [f'"{"money now" if i % 2 else "see you"} {i}",{i % 2}\n' for i in range(20)]
    file = _csv(tmp_path, "text,label\n" + "".join(lines), "texts.csv")
    keys = ["data=text", f"data.root={file}", "data.buckets=64", "data.ngrams=2", "model=logistic"]
    clients = ["clients.total=2", "clients.per_round=2", "runtime=processes", "device=cpu"]
    config = resolved(compose([*keys, *clients]))
    workload = Workload(config)
    assert workload.data_shape == ((64,), 2)
    assert (len(workload.dataset.train), len(workload.dataset.test)) == (16, 4)
    files = [tmp_path / f"part{client}.csv" for client in range(2)]
    write_parts(config, workload.partitioned.client_indices, files)
    assert config.data.on_devices is not None  # type: ignore[attr-defined]
    fingerprint = config.data.on_devices.fingerprint  # type: ignore[attr-defined]
    assert torch.equal(own_table(files[1], fingerprint).inputs, workload.shard(1).inputs)
    with pytest.raises(ValueError, match="at least two different classes"):
        compose([*keys, "data.classes=[ham]"])
