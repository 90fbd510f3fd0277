"""Facts of this process and its machine, each file one source. Reads only; decides nothing (see topology)."""
