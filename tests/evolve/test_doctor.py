"""``tilewright doctor``: the line on the sandbox."""

from __future__ import annotations

import pytest

from tilewright.evolve import doctor


@pytest.mark.parametrize(
    ("printed", "good", "words"),
    [
        ("print(True, True)", True, "network off, files restricted"),
        ("print(True, False)", False, "not restricted in candidates' processes; use a container"),
        ("print(False, True)", False, "network reachable"),
        ("raise SystemExit(1)", False, "network reachable, files not restricted"),
    ],
)
def test_the_sandbox_line_says_what_is_enforced(
    monkeypatch: pytest.MonkeyPatch, printed: str, good: bool, words: str
) -> None:
    monkeypatch.setattr(doctor, "_CONFINE", printed)
    finding = doctor._sandbox()
    assert finding.good is good and words in finding.sentence and not finding.needed


def test_the_sandbox_is_tried_in_a_process_of_its_own() -> None:
    assert doctor._sandbox().sentence.startswith("network ")
    open("/etc/hostname").close()  # this process stays as it was
