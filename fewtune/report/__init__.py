"""Reports: tables of the measurements of other packages."""
