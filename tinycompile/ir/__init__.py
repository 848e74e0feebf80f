"""The four intermediate representations (Graph, Loops, Plan, Source): for each a type, a printer and a verifier."""
