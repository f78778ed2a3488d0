"""Which machine of the catalog a profiler or a driver means by the name that it prints for a GPU."""

from __future__ import annotations

import re

from slackswap.hardware.catalog import Hardware, catalog

# Names in lower case, words apart, without the vendor's. A pattern holds only the variants whose peaks and memory bandwidth
# are those of the entry; their memory may have another size (V100 16 GB). A V100 PCIe (112 TFLOP/s), a V100S, an H100 NVL
# and a slice of a GPU (MIG, vGPU) are other machines.
_NAMES: tuple[tuple[str, str], ...] = (
    (r"v100 (sxm2|dgxs)( (16|32)gb)?", "v100"),
    (r"a100 sxm4? 80gb|a100 80gb sxm4?", "a100-pcie4"),
    # PG509 is the board of 40 GB that data centers bought under its number.
    (r"a100 (sxm4?|pcie) 40gb|a100 40gb (sxm4?|pcie)|a100 pg509 2[0-9]{2}", "a100-40"),
    (r"a100 pcie 80gb|a100 80gb pcie", "a100-80"),
    (r"gtx titan x( maxwell)?", "titan-x"),  # without GTX it is the Pascal of 2016
    (r"h100 pcie( 80gb)?", "h100-pcie"),
    # The driver calls the SXM5 board by its memory.
    (r"h100 80gb hbm3|h100 sxm5?( 80gb)?", "h100-sxm"),
    (r"h200( sxm5?)?( 141gb)?( hbm3e)?", "h200"),
    # 120 and 480 GB are the CPU's memory; the GPU beside either has 96 GB.
    (r"gh200( (96|120|480)gb)?( hbm3)?", "gh200"),
)
_PATTERNS = tuple((re.compile(pattern), name) for pattern, name in _NAMES)
_VENDOR = re.compile(r"^(nvidia |tesla |geforce )*")
# What a driver prints is short; a trace may hold anything under the same key.
_LONGEST_NAME = 200


def find_gpu(name: str) -> Hardware | None:
    """Return the machine of the catalog that has the GPU of this name, or None.

    Parameters
    ----------
    name : str
        As a driver or a profiler prints it (``Tesla V100-SXM2-32GB``, ``NVIDIA A100-SXM4-80GB``), or the catalog's own.

    Returns
    -------
    Hardware or None
        Its peaks and its memory bandwidth are those of the GPU; its memory size, its link and its efficiencies need not
        be. None where the catalog has no such GPU, or where the name leaves open which variant it is (``NVIDIA A100``).
    """
    if len(name) > _LONGEST_NAME:
        return None
    words = _VENDOR.sub("", re.sub(r"[^a-z0-9]+", " ", name.lower()).strip())
    found = (machine for pattern, machine in _PATTERNS if pattern.fullmatch(words))
    machine = next(found, None)
    return None if machine is None else catalog()[machine]
