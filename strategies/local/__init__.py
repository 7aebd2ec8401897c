"""The local work of a device, for one client or for several at once."""
