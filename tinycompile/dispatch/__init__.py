"""Which kernel a call runs: op schemas, dispatch-key sets, and the dispatcher's table."""
