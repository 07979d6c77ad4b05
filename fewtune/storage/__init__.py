"""Storage: journal, database, archive of tuning logs."""
