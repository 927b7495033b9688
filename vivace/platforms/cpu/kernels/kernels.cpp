// All operations for one instruction set. Compiled once for each, with VV_ISA as the namespace.
#include "op.h"
#include "simd.h"

#include "elementwise.inc"
#include "linear.inc"
#include "attention.inc"
#include "sampling.inc"

namespace vivace {
namespace VV_ISA {

static const Op OPS[] = {
    VV_ELEMENTWISE_OPS
    VV_LINEAR_OPS
    VV_ATTENTION_OPS
    VV_SAMPLING_OPS
    {nullptr, 0, nullptr, nullptr},
};

OpTable table() { return OPS; }

}  // namespace VV_ISA
}  // namespace vivace
