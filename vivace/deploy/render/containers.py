"""What a container needs from its node for the devices."""

from __future__ import annotations

ASCEND_FILES = {
    "driver": "/usr/local/Ascend/driver",
    "dcmi": "/usr/local/dcmi",
    "npu-smi": "/usr/local/bin/npu-smi",
    "install-info": "/etc/ascend_install.info",
    "hccn": "/etc/hccn.conf",
}
"""name of the volume -> path: the driver and its tools, where they are installed, and the addresses
of the devices' network ports"""
ASCEND_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
AMD_DEVICES = ("/dev/kfd:/dev/kfd", "/dev/dri:/dev/dri")
