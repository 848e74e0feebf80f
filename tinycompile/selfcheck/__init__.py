"""``options={"verify": ...}``: compiled code beside the captured graph run by torch, with float64 as the judge."""
