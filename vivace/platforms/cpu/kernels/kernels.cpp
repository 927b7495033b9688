// One family of operations for one instruction set: compiled for each pair, so that the compiler
// works on several at once and a change recompiles its own family only. VV_ISA is the namespace,
// VV_FAMILY the name of the family's table, VV_FILE its source and VV_OPS its list of operations.
#include "op.h"
#include "simd.h"

#include VV_FILE

namespace vivace {
namespace VV_ISA {

static const Op OPS[] = {
    VV_OPS
    {nullptr, 0, nullptr, nullptr},
};

OpTable VV_FAMILY() { return OPS; }

}  // namespace VV_ISA
}  // namespace vivace
