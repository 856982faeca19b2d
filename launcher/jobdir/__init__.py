"""What lies in a job directory, a module a file on disk, and the words used there.  Standard library only."""
