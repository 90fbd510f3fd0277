// A bug that must be caught: a block signals before all its threads are through.
#define RINGCOMM_PLANTED_MISSING_BARRIER
#include "kernel_planted.h"
