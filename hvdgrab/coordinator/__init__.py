"""One rank's part in ordering a run: pairs, messages, signs, the next orders."""
