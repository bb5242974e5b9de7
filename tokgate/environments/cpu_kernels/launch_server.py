"""Start ``sglang.launch_server`` where torchvision is built for CUDA and torch is not.

SGLang and transformers import torchvision, whose compiled half does not load beside a CPU build of
torch; its import then stops at "operator torchvision::nms does not exist". The operator is never called
for a text model, so declaring it is enough. SGLang's processes are spawned, and a spawned process runs
this file again as ``__mp_main__``: hence the declaration at module level.
"""

import runpy
import sys

import torch


def declare_torchvision_operators() -> None:
    """Make ``import torchvision`` work; does nothing where it already does."""
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision  # noqa: F401


# torch drops a library's operators with the object: it must live as long as the process.
LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
declare_torchvision_operators()

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
