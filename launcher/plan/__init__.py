"""From a spec and this host's facts to a frozen plan.  Starts nothing."""
