"""Helpers without a domain: files, tables, an import guard."""
