"""Processes and fixtures that tests share because they are costly."""

import gc

import pytest
from xdist.scheduler import LoadScopeScheduling

from testkit.templates import SharedTemplate
from testkit.warm_intake import WarmIntake

TOGETHER = "exploits/test_triton.py"
"""One worker starts one station for all exploits. pytest 9.2 keeps no node id that xdist 3.8 could add a group to."""


LONGEST = (
    "tests/test_tutorial.py",
    "tests/test_bring_your_own.py",
    "tests/evolve/intake/",
    "tests/library/",
    "tests/workers/",
    "tests/evolve/",
)
"""First: a worker that begins one last works on alone. pytest 9 merges ``testpaths`` that lie in each other."""


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [not item.nodeid.startswith(place) for place in LONGEST])


class TestOrFile(LoadScopeScheduling):
    """``--dist loadgroup``: every test by itself, those of ``TOGETHER`` in one worker."""

    def _split_scope(self, nodeid):
        file = nodeid.split("::", 1)[0]
        return file if file.endswith(TOGETHER) else nodeid


@pytest.hookimpl(optionalhook=True)  # the study of mutants runs pytest without its plugins
def pytest_xdist_make_scheduler(config, log):
    return TestOrFile(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_configure():
    """A seventh of the time went into collections of a heap that torch and JAX fill and nothing frees."""
    gc.set_threshold(50_000, 50, 1000)


def pytest_collection_finish():
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def shared_templates():
    """What children are forked from starts once for all tests of a process; ``tests/workers/child`` tests its end."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("cascade.modelled", "child.forked_children"):
            patch.setattr(f"tilewright.workers.{module}.Template", SharedTemplate)
        patch.setattr("tilewright.evolve.intake.child.Intake", WarmIntake)
        yield
