"""Builds what is published, and checks it: python scripts/build_wheels.py [--out dist] [--only NAME]. Needs the extra [release].

A wheel and an sdist of oneflow-jax and of oneflow-jax-native (`native/`). Each is built twice, from the files of the last commit;
both have to be the same bytes. The libraries of the system that the native part needs are compared with a list. Then the wheels
are installed into a fresh virtual environment, whose PATH has no compiler, and used there. docs/releases.md has the rest.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = {"oneflow-jax": ".", "oneflow-jax-native": "native"}
_NATIVE_TAG = "manylinux_2_27_x86_64"
_SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2",
                     "libgcc_s.so.1", "libstdc++.so.6"}  # fmt: skip
_USE = """
import numpy as np, oneflow as flow, oneflow.typing as tp
@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
    loss = flow.math.square(flow.layers.dense(x, 3, name="d") - 1.0)
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    return loss
losses = [float(train(np.ones((8, 4), np.float32)).mean()) for _ in range(20)]
assert losses[-1] < 0.5 * losses[0], losses
print(flow.__version__, flow.__file__)
"""


def run(*command: str, cwd: Path = ROOT, **environment: str) -> str:
    """Runs a command; its output. Ends this program with the output where it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def committed(commit: str, target: Path) -> Path:
    """The files of a commit, without anything that was built or is not committed."""
    archive = target / "files.tar"
    run("git", "archive", "--format=tar", f"--output={archive}", commit)
    shutil.unpack_archive(archive, target, filter="data")
    archive.unlink()
    return target


def build(name: str, commit: str, out: Path) -> list[Path]:
    """An sdist, and a wheel built from it; times in both are that of the commit."""
    epoch = run("git", "log", "-1", "--format=%ct", commit).strip()
    with tempfile.TemporaryDirectory() as copy:
        source = committed(commit, Path(copy)) / DISTRIBUTIONS[name]
        run(sys.executable, "-m", "build", "--outdir", str(out), str(source), SOURCE_DATE_EPOCH=epoch)
    return sorted(out.iterdir())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build_twice(name: str, commit: str, out: Path) -> list[Path]:
    """Builds a distribution twice. Returns the files, which had the same bytes both times."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        one, other = build(name, commit, Path(first)), build(name, commit, Path(second))
        differ = [a.name for a, b in zip(one, other, strict=True) if a.name != b.name or digest(a) != digest(b)]
        if differ:
            raise SystemExit(f"{name}: two builds differ in {', '.join(differ)}")
        return [Path(shutil.copy(path, out)) for path in one]


def audit(wheel: Path) -> None:
    """The libraries of the system that the native wheel needs, and its tag."""
    if _NATIVE_TAG not in wheel.name:
        raise SystemExit(f"{wheel.name} is not tagged {_NATIVE_TAG}")
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(wheel, folder, "zip")
        libraries = sorted(Path(folder).rglob("*.so*"))
        own = {path.name for path in libraries}
        for path in libraries:
            text = run("readelf", "--dynamic", str(path))
            needed = {line.partition("[")[2].rstrip("]") for line in text.splitlines() if "(NEEDED)" in line}
            if extra := needed - own - _SYSTEM_LIBRARIES:
                raise SystemExit(f"{wheel.name}: {path.name} needs {', '.join(sorted(extra))}, which not every Linux has")
    print(run(sys.executable, "-m", "auditwheel", "show", str(wheel)).strip())


def use(wheels: list[Path]) -> None:
    """Installs wheels into a fresh environment without a compiler, and trains there."""
    with tempfile.TemporaryDirectory() as folder:
        environment, work = Path(folder) / "venv", Path(folder) / "work"
        work.mkdir()
        run(sys.executable, "-m", "venv", str(environment))
        path = str(environment / "bin")
        for tool in ("cc", "gcc", "clang", "c++", "g++"):
            if shutil.which(tool, path=path):
                raise SystemExit(f"{tool} is in the fresh environment")
        alone = {"PATH": path, "PYTHONPATH": "", "PIP_NO_INPUT": "1"}
        run(f"{path}/pip", "install", "--quiet", "--only-binary", ":all:", *map(str, wheels), cwd=work, **alone)
        print(run(f"{path}/python", "-c", _USE, cwd=work, **alone).strip().splitlines()[-1])
        print(run(f"{path}/oneflow", "doctor", "--no-speed", cwd=work, **alone).strip())
        print(run(f"{path}/oneflow", "train", "lenet", "--batches", "20", cwd=work, **alone).strip().splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files are written (%(default)s)")
    parser.add_argument("--only", choices=sorted(DISTRIBUTIONS), help="one of the two")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    made, commit = [], run("git", "rev-parse", "HEAD").strip()
    if run("git", "status", "--porcelain"):
        print(f"what is not committed is left out: building {commit[:12]}")
    for name in [options.only] if options.only else DISTRIBUTIONS:
        files = build_twice(name, commit, options.out)
        print("\n".join(f"{digest(path)}  {path.name}" for path in files), flush=True)
        made += [path for path in files if path.suffix == ".whl"]
    for wheel in made:
        if "native" in wheel.name:
            audit(wheel)
    if options.only != "oneflow-jax-native":
        use(made)
    print("all is well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
