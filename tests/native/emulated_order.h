// Included before everything when the tests are built for the emulator (scripts/native.py aarch64), never in the product.
//
// AArch64 orders a store-release before a later load-acquire (Arm ARM, B2.3.10 "Barrier-ordered-before"); the store-then-look
// protocols of the doorbell stand on it. qemu's translation to x86-64 puts its barrier before the store and after the load,
// none between, so that the host's store buffer breaks the order: qemu 7.2 gives 250 of 600,000 rounds of the
// store-buffering test (memory_order_test.cpp) an outcome no processor may give. These macros replace the three
// instructions in what the compiler writes, and add the missing barrier.
__asm__(
    ".macro stlr from, to\n\tdmb ish\n\tstr \\from, \\to\n\tdmb ish\n.endm\n"
    ".macro stlrb from, to\n\tdmb ish\n\tstrb \\from, \\to\n\tdmb ish\n.endm\n"
    ".macro stlrh from, to\n\tdmb ish\n\tstrh \\from, \\to\n\tdmb ish\n.endm\n");
