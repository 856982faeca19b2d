"""`hvdgrab-launch doctor`: what this host offers for training, what is missing, and how to get it."""
