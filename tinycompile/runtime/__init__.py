"""From Source to something that runs: compilers, loaders, launchers, and the cache on disk."""
