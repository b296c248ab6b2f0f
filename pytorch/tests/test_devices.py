"""Tensors on other devices than the CPU: device_cases.py, in a process of its own for each device there is. A machine with
no GPU has the device of twin_device.cpp."""

import os
import subprocess
import sys

import pytest
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
TWIN = os.path.join(HERE, "..", "..", "build-pytorch", "wheel", "pytorch", "tests", "libtwin_device.so")


def run(device):
    environment = dict(os.environ, TESSERA_TEST_DEVICE=device)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", HERE, f"{HERE}/device_cases.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not os.path.exists(TWIN), reason="twin_device.cpp is not built: scripts/pytorch")
def test_on_a_device_of_our_own():
    run(TWIN)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu():
    run("cuda")
