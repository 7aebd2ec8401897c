"""Code that several strategies share. It has its own folder, so that `strategies/` lists only strategies."""
