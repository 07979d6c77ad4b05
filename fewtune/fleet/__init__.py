"""A fleet: machines of one class that tune together, as workers of Dask."""
