"""What a training script touches: the sampler, the optimizer, signals and marks."""
