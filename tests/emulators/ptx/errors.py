"""What the emulator raises about a program: each message names the instruction, its line and the block."""


class MemoryFault(Exception):
    """An access outside of the memory that a kernel was given, or one that is not aligned to its width."""


class SharedRace(Exception):
    """Two warps touch a byte of shared memory with no barrier between, or one is read before its copy was awaited."""


class Deadlock(Exception):
    """Threads wait at barriers that no other thread will reach."""


class Divergence(Exception):
    """An instruction of a whole warp is executed without some of the lanes that it names."""


class BarrierMisuse(Exception):
    """An mbarrier or a named barrier is used against its rules: too many arrivals, a phase that its waiter missed."""


class RegisterRace(Exception):
    """A register is touched that an asynchronous instruction still reads or writes, or that no fence gave to it."""


class TensorMemoryFault(Exception):
    """Tensor memory is touched where it is not allocated, by a warp that cannot, or before an operation on it ended."""
