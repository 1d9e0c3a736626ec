"""What a confined child may still import, list and read."""

import json
import os
import subprocess
import sys

from testkit import ROOT

CHILD = """
import importlib, json, os, sys
from pathlib import Path
root = Path(sys.argv[1])
sys.path.insert(0, str(root))
from tilewright.workers.child import confine
limits = {"memory_bytes": 1 << 40, "cpu_seconds": 60, "file_bytes": 1 << 20}
isolation = confine.confine_child(root, os.getppid(), limits)
imported = importlib.import_module("tilewright.library.plans.format").__name__
refused = []
for name in ("library/tilewright_library/store.py", "evolve/run.py", "README.md"):
    try:
        (root / name).read_text()
    except PermissionError:
        refused.append(name)
print(json.dumps({"isolation": isolation, "imported": imported, "refused": refused}))
"""


def test_a_confined_child_imports_plans_and_reads_no_other_part_of_tilewright(tmp_path):
    """Its first import of ``tilewright.library`` comes after the confinement, as in the runner of a device."""
    command = [sys.executable, "-c", CHILD, str(ROOT)]
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["imported"] == "tilewright.library.plans.format"
    if answer["isolation"]["files"]:  # Landlock is there
        assert answer["refused"] == ["library/tilewright_library/store.py", "evolve/run.py", "README.md"]
