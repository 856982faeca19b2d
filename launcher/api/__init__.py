"""The daemon over HTTP on a Unix socket."""
