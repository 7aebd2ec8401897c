"""Runs the tests in which rounding matters under settings that make the libraries behave as on other processors.

    python tests/processors.py [pytest's arguments]

Each setting prints one line, and the output of pytest if it fails. The exit code is 1 if one failed. torch multiplies
matrices by MKL, convolves by oneDNN, and has kernels of its own (ATen); numpy and scipy have OpenBLAS, and numpy has
kernels too. Each library has a variable of its own for the instructions that it may use.

MKL obeys MKL_ENABLE_INSTRUCTIONS on Intel's processors only, and takes another path on others. Where there is a C
compiler, a small library that is loaded first tells MKL that the processor is Intel's, so that both paths are tested on
any processor.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
CPUINFO = Path("/proc/cpuinfo")  # Linux
TESTS = [
    *("sketching", "strategies", "privacy", "tasks", "delivery", "client", "server/report"),
    "runtime/test_batched_grid.py",
]
OLD = {
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OPENBLAS_CORETYPE": "Nehalem",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
}
AVX2 = {
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
AVX512 = {"MKL_ENABLE_INSTRUCTIONS": "AVX512", "OPENBLAS_CORETYPE": "SkylakeX"}
INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; } int mkl_serv_intel_cpu(void) { return 1; }"


def settings(intel: dict[str, str]) -> dict[str, dict[str, str]]:
    """The variables of each setting, by its name: those that this processor can obey."""
    chosen: dict[str, dict[str, str]] = {"this processor": {}}
    if platform.machine() == "x86_64" and CPUINFO.exists():
        flags = CPUINFO.read_text().split()
        chosen["SSE4.2"] = {**intel, **OLD}
        chosen["MKL without vector instructions"] = {"MKL_CBWR": "COMPATIBLE"}
        chosen["ATen without vector instructions"] = {"ATEN_CPU_CAPABILITY": "default"}
        if "avx2" in flags:
            chosen["AVX2"] = {**intel, **AVX2}
        if "avx512f" in flags:
            chosen["AVX-512"] = {**intel, **AVX512}
    return chosen


def as_intel(folder: str) -> dict[str, str]:
    """The variable that loads the library for MKL; empty if it cannot be made."""
    library = Path(folder) / "intel.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    try:
        subprocess.run(command, input=INTEL, text=True, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print("No C compiler: MKL keeps to the path of this processor's maker.", flush=True)
        return {}
    return {"LD_PRELOAD": str(library)}


def passes(name: str, variables: dict[str, str], threads: int, arguments: list[str]) -> bool:
    # Threads that wait sleep: on a busy machine they would keep those from working for which they wait.
    variables = {**variables, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    tests = [str(ROOT / "tests" / package) for package in TESTS]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", str(2 // threads), *tests, *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    *_, last = done.stdout.splitlines() or ["pytest did not start"]
    print(f"{name}, threads: {threads}: {last} ({time.monotonic() - started:.0f} s)", flush=True)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", flush=True)
    return done.returncode == 0


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        results = [
            passes(name, variables, threads, sys.argv[1:])
            for name, variables in settings(as_intel(folder)).items()
            for threads in (1, 2)
        ]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
