// Which instruction sets a library was built for.
#pragma once

#include "core/types.h"

namespace evenkeel {

EVENKEEL_VARIANTS(bool, is_built)

}  // namespace evenkeel
