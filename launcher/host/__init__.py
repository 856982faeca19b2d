"""This machine: files, processes, signals, other programs, ssh.  Knows no job; standard library only."""
