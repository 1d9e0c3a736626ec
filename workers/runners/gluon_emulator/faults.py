"""What an emulated program does wrong; each message is one line for a verdict."""


class EmulationError(RuntimeError):
    """A program does what a device forbids, or what the emulator does not know."""


class Race(EmulationError):
    """Two accesses of shared memory that nothing orders, or a value read before it is there."""


class Deadlock(EmulationError):
    """No partition can go on, and no copy is under way."""


class StrayAccess(EmulationError):
    """A pointer outside of the tensor it was made from."""
