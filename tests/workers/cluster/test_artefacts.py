"""What a job knows of earlier artefacts, and what workers are sent of it."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.workers.cluster.artefacts import Artefacts, ReceivedArtefacts, SentArtefacts, message_of


def sent(known, sent):
    return json.loads(json.dumps(message_of(known, sent)))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.booleans()), max_size=60))
def test_a_worker_knows_what_was_there_when_the_job_was_made(steps):
    """Jobs go to three workers, some of which restart; late jobs (retries) are mixed in."""
    artefacts, workers, jobs, sizes = (
        Artefacts(),
        [(SentArtefacts(), ReceivedArtefacts()) for _ in range(3)],
        [],
        [],
    )
    for worker, artefact, restarts in steps:
        artefacts.add(f"a{artefact}")
        jobs.append((artefacts.known(), frozenset(artefacts.between(0, len(artefacts)))))
        if restarts:
            workers[worker] = (workers[worker][0], ReceivedArtefacts())
        for known, wanted in (jobs[-1], jobs[len(jobs) // 2]):
            note, heard = workers[worker]
            message = sent(known, note)
            if (found := heard.receive(message)) is None:
                workers[worker] = (SentArtefacts(), heard)
                message = sent(known, workers[worker][0])
                found = heard.receive(message)
            sizes.append(len(message["new"]))
            assert found is not None and frozenset(found) == frozenset(known) == wanted
            assert len(found) == len(wanted)
            assert all((f"a{n}" in found) is (f"a{n}" in wanted) for n in range(31))
    if not any(restarts for *_, restarts in steps):
        assert sum(sizes) <= 3 * len(artefacts), "each worker receives an artefact once"
