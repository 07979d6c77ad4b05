"""Default schedules: by rule, without a search."""
