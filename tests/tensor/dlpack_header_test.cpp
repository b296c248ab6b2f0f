// Holds the real header, where there is one, against the layout that tessera's own declarations have in dlpack_test.cpp.
#if __has_include(<dlpack/dlpack.h>)

#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "support/dlpack_layout.hpp"

// In a namespace, as src/tensor/dlpack_abi.hpp declares the same names; its own includes were made above, outside of it.
namespace header {
#include <dlpack/dlpack.h>
}  // namespace header

namespace tessera {
namespace {

TEST(DLPackHeader, HasTheSameLayout) {
  EXPECT_TRUE((testing_support::tensor_layout_fits<header::DLDevice, header::DLDataType, header::DLTensor>()));
  EXPECT_TRUE(testing_support::managed_layout_fits<header::DLManagedTensor>());
  EXPECT_EQ(header::kDLCPU, 1);
  EXPECT_EQ(header::kDLInt, 0);
  EXPECT_EQ(header::kDLUInt, 1);
  EXPECT_EQ(header::kDLFloat, 2);
  EXPECT_EQ(header::kDLBfloat, 4);
  EXPECT_EQ(header::kDLComplex, 5);
#if defined(DLPACK_MAJOR_VERSION)
  EXPECT_TRUE(testing_support::versioned_layout_fits<header::DLManagedTensorVersioned>());
  EXPECT_EQ(header::kDLBool, 6);
#endif
}

}  // namespace
}  // namespace tessera

#endif
