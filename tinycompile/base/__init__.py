"""What everything rests on: devices, dtypes, integer algebra of sizes, configuration, errors, logs."""
