"""The command `fedsketch-export FOLDER`: writes the trained model as one file for torch.export or ONNX, which needs no
fedsketch."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from fedsketch.command_line import Parser, run_command
from fedsketch.errors import ModelError
from fedsketch.server.loaded_model import LoadedModel, load
from fedsketch.server.run_folder import RunFolder

SUFFIXES = {"torch": ".pt2", "onnx": ".onnx"}
_BATCH = 2  # size of the batch with which the model is traced; 1 would be taken for a constant


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console script; returns 0, or 1 after one sentence on stderr."""
    return run_command(_parser(), arguments, _export)


def _export(asked: argparse.Namespace) -> None:
    if asked.to == "onnx":
        refuse_missing_onnx()
    print(export(load(asked.folder, best=asked.best), asked.to, _target(asked)))


def export(model: LoadedModel, to: str, path: Path) -> Path:
    """Write the model, with its normalisation and features, for batches of any size."""
    traced = _traced(model)
    if to == "torch":
        torch.export.save(traced, path)
        return path
    try:
        torch.onnx.export(
            traced,
            f=str(path),
            input_names=["inputs"],
            output_names=["outputs"],
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ModelError(
            "ONNX has no operation for a part of this model: export it with --to torch."
        ) from error
    return path


def _traced(model: LoadedModel) -> torch.export.ExportedProgram:
    """Return the model as traced by torch.export. It computes the same for a batch as the model itself."""
    examples = _examples(model, _BATCH)
    # What is computed once, such as the filters of features, must be computed before tracing.
    model(examples)
    try:
        batches = ({0: torch.export.Dim("batch")},)
        traced = torch.export.export(model, (examples,), dynamic_shapes=batches)
    except RuntimeError as error:
        raise ModelError(
            f"torch.export cannot trace this model ({str(error).strip().splitlines()[0]}): change what its layers do "
            "with a batch."
        ) from error
    probe = _examples(model, _BATCH + 1)
    if not torch.allclose(traced.module()(probe), model(probe), rtol=1e-3, atol=1e-4):
        raise ModelError(
            "This model computes something else for a batch than for its examples one by one, so no export is right: "
            "look for a layer that mixes examples."
        )
    return traced


def _examples(model: LoadedModel, count: int) -> torch.Tensor:
    """Return this many made-up examples; zeros if inputs are integers, such as tokens."""
    if not model.inputs.is_floating_point:
        return torch.zeros(count, *model.shape, dtype=model.inputs)
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, *model.shape, dtype=model.inputs, generator=generator)


def refuse_missing_onnx() -> None:
    """Raise `ModelError` if the packages that write ONNX files are not installed."""
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise ModelError(
            "--to onnx needs packages that are not installed here: pip install 'fedsketch[onnx]', or take --to torch."
        )


def _target(options: argparse.Namespace) -> Path:
    files = RunFolder(options.folder)
    source = files.best if options.best else files.model
    path: Path = options.output or source.with_suffix(SUFFIXES[options.to])
    return path


def _parser() -> Parser:
    parser = Parser(
        "fedsketch-export", description="Write the trained model of a run as a file of its own."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a finished run's folder")
    parser.add_argument(
        "--to",
        choices=sorted(SUFFIXES),
        default="torch",
        help="format (default: torch, a .pt2 file)",
    )
    parser.add_argument(
        "--best", action="store_true", help="the best model, not that of the last round"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="file to write (default: beside the weights in FOLDER)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
