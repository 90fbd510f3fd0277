// A bug that must be caught: one slot where the credits stand for four.
#define RINGCOMM_PLANTED_SINGLE_SLOT
#include "kernel_planted.h"
