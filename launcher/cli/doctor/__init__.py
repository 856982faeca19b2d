"""`hvdgrab-launch doctor`: what this host offers for training, what is missing, and how to get it.

A room of small files: each judges one thing, from answers that `tools` and `launcher.bootstrap.probes` fetched; `collect` puts
them together, `show` prints them.
"""
