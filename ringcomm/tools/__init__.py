"""One command per module, each with `main(argv) -> exit status`; nothing here is imported by the library."""
