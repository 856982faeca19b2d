"""The record of all jobs: SQLite, with a lease that says which daemon may write."""
