"""What SGLang's documentation says its flags do on Ascend; what it does not name works. Data in
ascend.json."""

from __future__ import annotations

from functools import cache

import msgspec

from vivace.deploy.files import packaged_path
from vivace.files import read_file

LARGEST = 1 << 20
"""bytes of the file"""

ELSEWHERE = {
    "attention_backend": "fa3, flashinfer, triton",
    "moe_a2a_backend": "deepep",
    "disaggregation_transfer_backend": "mooncake, nixl",
    "sampling_backend": "flashinfer, pytorch",
    "hicache_io_backend": "kernel, direct",
}
"""option -> what other devices have where Ascend has its own"""


class AscendFlags(msgspec.Struct, frozen=True):
    """`states`: what is said of flags -> their names, with blanks between them; `values`: option ->
    the values that are documented for Ascend."""

    states: dict[str, str]
    experimental: str
    values: dict[str, tuple[str, ...]]

    def state(self, spellings: list[str]) -> str:
        """Empty for flags that work."""
        found = (said for said, names in self.states.items() if {*names.split()} & {*spellings})
        return next(found, "")

    def is_experimental(self, spellings: list[str]) -> bool:
        return bool({*self.experimental.split()} & {*spellings})


@cache
def ascend_flags() -> AscendFlags:
    raw = read_file(packaged_path("catalogue/ascend.json"), LARGEST)
    return msgspec.json.decode(raw, type=AscendFlags)
