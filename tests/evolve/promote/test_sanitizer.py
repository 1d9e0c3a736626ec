"""What compute-sanitizer says of a version's kernels, told by a stand-in for the tool."""

import subprocess

import pytest

from tilewright.evolve.promote import sanitizer
from tilewright.evolve.promote.verify import Refusal

TEXT = """========= COMPUTE-SANITIZER
all kernels ran
========= Invalid __global__ read of size 16 bytes
=========     at fp8_block+0x2a0
========= {summary}
"""


def reading(tool, text):
    with subprocess.Popen(["printf", "%s", text], stdout=subprocess.PIPE, text=True) as run:
        return sanitizer._reading(tool, run)


def test_faults_refuse_and_hazards_are_counted():
    assert reading("memcheck", TEXT.format(summary="ERROR SUMMARY: 0 errors")) == 0
    hazards = TEXT.format(summary="RACECHECK SUMMARY: 8 hazards displayed (8 errors, 0 warnings)")
    assert reading("racecheck", hazards) == 8
    with pytest.raises(Refusal, match=r"memcheck counts 2 errors in its kernels, first: Invalid __global__ read"):
        reading("memcheck", TEXT.format(summary="ERROR SUMMARY: 2 errors"))


def test_a_tool_that_does_not_end_is_told_and_none_says_nothing():
    assert reading("synccheck", "========= ERROR SUMMARY: 0 errors\nKilled\n") == "did not end: Killed"
    assert reading("synccheck", "") == "did not end: no text"
