"""Child processes: jobs that native code may crash, and the warm process that is forked."""
