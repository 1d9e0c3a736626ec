"""A child that answers and ends between two looks at it."""

import os

from tilewright.workers.child.drain import ByteLimits, Drain
from tilewright.workers.child.ending import Ending
from tilewright.workers.child.frames import Frame, FrameReader, encode
from tilewright.workers.child.run_once import ChildLimits, _listen


class EndsWhileItIsAskedFor:
    """A process that writes its answer after the last look at its pipe, and has ended when it is waited for."""

    pid = os.getpid()

    def __init__(self, result):
        self._result = result

    def wait(self, seconds):
        if self._result >= 0:
            os.write(self._result, encode(Frame("done")))
            self._result = -1
        return True

    def end(self):
        return 0


def test_what_it_said_last_is_heard_though_another_holds_its_pipe():
    pipes = [os.pipe() for _ in range(4)]
    (result, theirs), (out, _), (err, _), (_, stdin) = pipes
    limits = ChildLimits(wall_seconds=5.0)
    with Drain(stdin, (out, err), result, b"", FrameReader(1 << 20), ByteLimits(1 << 20, 1 << 20)) as drain:
        stop = _listen(drain, EndsWhileItIsAskedFor(theirs), limits)
        assert stop.ending is Ending.DONE and [frame.kind for frame in drain.frames] == ["done"]
    for pipe in pipes:
        for end in pipe:
            os.close(end)
