// Says that the library has the kernels of an instruction set. Compiled once per instruction set.
#include "core/level.h"

namespace evenkeel::EVENKEEL_ISA {

const bool is_built = true;

}  // namespace evenkeel::EVENKEEL_ISA
