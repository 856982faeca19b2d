"""Communication between ranks: what a communicator can do, and the ones there are."""
