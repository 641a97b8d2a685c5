"""What the doctor says of NVIDIA cards, from facts as machines give them."""

import pytest

from keras_pergrad.doctor import cuda

# As TensorFlow 2.21's wheel says of itself.
BUILT = ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"]
MISSING = ["libcudnn.so.9", "libcufft.so.11"]
INSTALL = "tensorflow[and-cuda]"


def judged(*capability, **facts):
    """Return the findings for a card, or for none."""
    cards = [{"name": "a card", "capability": list(capability)}]
    facts = {
        "driver": True,
        "cards": cards if capability else [],
        "built": True,
        "cuda": "12.5.1",
        "kernels": BUILT,
        "missing": [],
        "cudnn": "9.10.2",
        **facts,
    }
    return list(cuda.judge(facts))


@pytest.mark.parametrize(
    ("capability", "level", "text"),
    [
        ((7, 5), "ok", "has kernels"),  # T4: sm_70 runs on it
        ((8, 9), "ok", "has kernels"),  # L4
        ((9, 0), "ok", "PTX"),  # H100
        ((10, 0), "warning", "CUDA_ERROR_INVALID_PTX"),  # B200
        ((12, 0), "warning", "CUDA_ERROR_INVALID_PTX"),  # RTX 5090
        ((5, 2), "error", "sm_60"),  # GTX 980
    ],
)
def test_kernels_for_cards(capability, level, text):
    finding, versions = judged(*capability)
    assert (finding.subject, versions.subject) == ("GPU", "CUDA")
    assert versions.message == "12.5.1, cuDNN 9.10.2"
    assert finding.level == level
    assert text in finding.message
    assert ".".join(map(str, capability)) in finding.message
    assert bool(finding.fix) == (level != "ok")


@pytest.mark.parametrize(
    ("facts", "level", "text", "fix"),
    [
        ({"missing": MISSING}, "error", ", ".join(MISSING), INSTALL),
        ({}, "warning", "lists no GPU", "nvidia-smi"),
        ({"built": False}, "warning", "", INSTALL),
    ],
)
def test_a_card_that_tensorflow_cannot_use(facts, level, text, *, fix):
    first, *others = judged(**facts)
    assert (first.subject, first.level) == ("CUDA", level)
    assert text in first.message
    assert fix in first.fix
    assert bool(others) == ("missing" in facts)


def test_a_machine_without_an_nvidia_driver_hears_nothing():
    assert judged(driver=False) == []


def test_a_wheel_that_does_not_say_what_it_was_built_with():
    silent = {"cuda": None, "kernels": [], "cudnn": None}
    [finding] = judged(10, 0, **silent)
    assert (finding.subject, finding.level) == ("CUDA", "ok")
    assert "unknown version" in finding.message


def test_facts_of_this_machine():
    facts = cuda.facts()
    assert facts["built"] or not facts["kernels"]
    assert not any(f.level == "error" for f in cuda.judge(facts))
