"""The simulator of programs for grids of cores: what they compute, how long they take, and what is wrong with them."""

from tilewright.semantics.cores.device_array import DeviceArray
from tilewright.semantics.cores.run import ProgramRun, run_program
from tilewright.semantics.cores.static_checks import check_program
from tilewright.semantics.cores.timeline import Timeline

__all__ = ["DeviceArray", "ProgramRun", "Timeline", "check_program", "run_program"]
