"""What was released to whom, what it costs, and the mechanisms that pay for it on the device."""
