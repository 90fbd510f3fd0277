// A bug that must be caught: a head or credit stored without release. On x86-64 every result is right all the same.
#define RINGCOMM_PLANTED_RELAXED_SIGNAL
#include "kernel_planted.h"
