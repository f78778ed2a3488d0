"""Floor 1: what the machine is. GPUs, host links, roofline times."""

from slackswap.hardware.catalog import DEFAULT_HARDWARE, Hardware, catalog, load_hardware
from slackswap.hardware.gpu import DTYPE_BYTES, Gpu
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link

__all__ = ["DEFAULT_HARDWARE", "DTYPE_BYTES", "Gpu", "Hardware", "InputError", "Link", "catalog", "load_hardware"]
