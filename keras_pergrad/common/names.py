"""Names that a user gives, misspelt or not."""

import difflib

#: What TensorFlow Privacy, Opacus, Keras and others call the same, in lower
#: case: functions, classes and arguments.
_PEERS = {
    "compute_gradients": "PerGradModel",
    "dpkerasadamoptimizer": "PrivateTraining",
    "dpkerasmodel": "PrivateTraining",
    "dpkerassgdoptimizer": "PrivateTraining",
    "dpmodel": "PrivateTraining",
    "gradientaccumulatemodel": "Accumulated",
    "gradientaccumulator": "Accumulated",
    "gradsamplemodule": "per_sample_gradients",
    "jacobian": "input_gradients",
    "privacyengine": "PrivateTraining",
    "accumulate_grad_batches": "steps",
    "accumulation_steps": "steps",
    "aggregation": "gradient_mode",
    "clip_norm": "aggregation",
    "clipnorm": "clip_norm",
    "epsilon": "target_epsilon",
    "global_clipnorm": "clip_norm",
    "gradient_accumulation_steps": "steps",
    "l2_norm_clip": "clip_norm",
    "max_grad_norm": "clip_norm",
    "max_physical_batch_size": "microbatch_size",
    "micro_batch_size": "microbatch_size",
    "num_samples": "samples",
    "sample_size": "samples",
    "target_delta": "delta",
}


def did_you_mean(name, known):
    """Return " Did you mean 'x'?" for the known name that is most alike, or "".

    `known`: strings; others are passed over.
    """
    alike = most_alike(name, known)
    return f" Did you mean {alike!r}?" if alike else ""


def most_alike(name, known):
    """Return the known name that is most alike, or None."""
    lower = {k.lower(): k for k in known if isinstance(k, str)}
    name = name.lower() if isinstance(name, str) else ""
    peer = _PEERS.get(name)
    while peer and peer not in lower.values():
        peer = _PEERS.get(peer)
    if peer:
        return peer
    found = [k for k in lower if k.endswith(f"_{name}")]
    # 0.7: of shorter words the default, 0.6, takes others for the same.
    found = found or difflib.get_close_matches(name, lower, 1, 0.7)
    found = found or [k for k in lower if len(name) > 2 and k.startswith(name)]
    return lower[found[0]] if found else None
