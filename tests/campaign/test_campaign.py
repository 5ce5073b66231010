"""The campaign itself: it sees what it looks for, and ends where it should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from . import __main__ as campaign
from . import jobs, report, saving

ROOT = Path(__file__).resolve().parent.parent.parent


def _checkpoint(folder: Path, step: int) -> dict[str, bytes]:
    """A folder that looks like a checkpoint of that step; its values."""
    values = {jobs.STEP: np.array([step], np.int64).tobytes(), "w": np.full(4, step, np.float32).tobytes()}
    for name, content in values.items():
        (folder / f"{step:06}" / name).mkdir(parents=True)
        (folder / f"{step:06}" / name / "out").write_bytes(content)
    (folder / f"{step:06}" / "snapshot_done").touch()
    return values


@pytest.fixture
def chain(tmp_path: Path) -> saving._Chain:
    """After a life that began at step 0 and saved steps 1 and 2."""
    expected = {step - 1: (f"loss{step}", jobs.digest(_checkpoint(tmp_path, step))) for step in (1, 2)}
    chain = saving._Chain(0, 0, expected)
    chain._folder = str(tmp_path)
    return chain


OUTPUT = "begins 0\nloss 0 loss1\nsaved 1\nloss 1 loss2\nsaved 2\n"


def test_a_life_without_fault(chain: saving._Chain) -> None:
    assert chain._wrong(OUTPUT, -1, "") == ""
    assert chain._wrong("begins 2\nlo", 2, "") == ""


def test_each_kind_of_loss_is_seen(chain: saving._Chain) -> None:
    assert "could not be loaded" in chain._wrong("", -1, "")
    assert "began at step 1, though step 2" in chain._wrong("begins 1\n", 2, "")
    assert "the loss of step 1 differs" in chain._wrong("begins 0\nloss 1 another\n", -1, "")
    assert "step 3 was saved and is lost" in chain._wrong(OUTPUT + "saved 3\n", -1, "")


def test_half_and_changed_checkpoints_are_seen(chain: saving._Chain) -> None:
    weights = Path(chain._folder) / "000001" / "w" / "out"
    weights.write_bytes(bytes(16))
    assert "000001 does not hold the state of step 1" in chain._wrong(OUTPUT, -1, "")
    (weights.parents[1] / "snapshot_done").unlink()
    assert "000001 is half a checkpoint" in chain._wrong(OUTPUT, -1, "")


def test_budgets_and_tables() -> None:
    assert report.Budget(0, 10, 0.0).allows(0) and not report.Budget(0, 10, 0.0).allows(1)
    assert report.Budget(0, 10, 60.0).allows(9) and not report.Budget(0, 10, 60.0).allows(10)
    rows = report.table([("kills", report.Report(3, ["x"], 1.5, "a note"), "kills")]).splitlines()
    assert rows[1].split("  ")[:2] == ["kills", "3 kills"] and rows[1].endswith("a note")


@pytest.mark.parametrize("fault", ["", "raise RuntimeError('broken')"])
def test_the_command_ends_with_status_1_where_a_part_fails(fault: str) -> None:
    program = f"""
import sys
from tests.campaign import __main__ as campaign
from tests.campaign.report import Part, Report

def run(budget):
    {fault}
    return Report(runs=budget.seed)

campaign.PARTS[:] = [Part("one", run, 5, 1.0, "runs")]
sys.exit(campaign.main(["--seed", "4", "--minutes", "0.1"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=100)
    assert done.returncode == (1 if fault else 0), done.stderr
    assert ("again: python -m tests.campaign --only one --seed 4 --minutes 0.1" in done.stdout) == bool(fault)
    assert ("RuntimeError: broken" in done.stdout) == bool(fault) and "one" in done.stdout.splitlines()[-1]


def test_a_part_that_did_nothing_has_failed() -> None:
    for runs, failures in ((0, ["there were no runs"]), (1, [])):
        part = report.Part("one", lambda budget, runs=runs: report.Report(runs=runs), 5, 1.0, "runs")
        assert campaign._report(part, report.Budget(0, 5, 1.0)).failures == failures
