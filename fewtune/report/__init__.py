"""Reports: tables for people, of what other rooms measured."""
