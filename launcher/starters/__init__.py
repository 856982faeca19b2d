"""How supervisors are started and looked at: on this host, or through a scheduler."""
