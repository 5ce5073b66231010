"""``Image.ANTIALIAS``, whichever of Pillow and this library is imported first."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHECK = "\nassert Image.ANTIALIAS == Image.LANCZOS; Image.new('L', (9, 9)).resize((3, 3), Image.ANTIALIAS)"
RESTORE = "from oneflow.data._pillow import restore_antialias; restore_antialias()"


@pytest.mark.parametrize(
    "program",
    [
        f"{RESTORE}\nfrom PIL import Image",
        f"{RESTORE}\nimport PIL.Image as Image",
        f"{RESTORE}\nimport PIL.ImageDraw, PIL.Image as Image",
        f"from PIL import Image\n{RESTORE}",
        f"import PIL\n{RESTORE}\nfrom PIL import Image",
        f"{RESTORE}\nrestore_antialias()\nfrom PIL import Image\nrestore_antialias()",
        f"{RESTORE}\nfrom PIL import Image\nimport importlib; importlib.reload(Image)",
        f"{RESTORE}\nfrom PIL import Image\nimport sys; del sys.modules['PIL.Image']\nimport PIL.Image as Image",
        f"{RESTORE}\nimport importlib\nImage = importlib.import_module('PIL.Image')",
    ],
)
def test_antialias(program: str) -> None:
    run(program + CHECK)


def test_pillow_is_as_it_was_otherwise() -> None:
    run(
        f"""
{RESTORE}
import sys
assert 'PIL' not in sys.modules
from PIL import Image
import inspect
from importlib.machinery import SourceFileLoader
assert type(Image.__loader__) is type(Image.__spec__.loader) is SourceFileLoader
assert inspect.getsource(Image.open)
assert sum(type(finder).__module__ == 'oneflow.data._pillow' for finder in sys.meta_path) == 1
"""
    )


def test_without_pillow() -> None:
    run(
        f"""
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] == 'PIL':
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Nothing())
{RESTORE}
try:
    from PIL import Image
except ModuleNotFoundError as error:
    assert error.name == 'PIL'
else:
    raise SystemExit('imported')
"""
    )


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
