// The small helpers of code that pads: local, and with the results that such
// code expects. tessera itself never pads. Negative dims work in all of them; a
// dim out of range is a ShapeError.
#pragma once

#include <span>
#include <vector>

#include <tessera/tensor.hpp>

namespace tessera {

// t with zeros behind, up to `length` along dim; a shorter length crops. A new
// tensor.
Tensor pad_dim_to(const Tensor& t, int64_t length, int64_t dim = 0);

// t with pad_size zeros behind along dim, in a new tensor; t itself for 0. A
// negative pad_size crops.
Tensor pad_tensor(const Tensor& t, int64_t dim, int64_t pad_size);

// A view of t without its last pad_size elements along dim; t itself for 0.
Tensor unpad_tensor(const Tensor& t, int64_t dim, int64_t pad_size);

// Appends `count` times one shared tensor to the list: like its first, but
// empty along dim. Returns the list.
std::vector<Tensor>& fill_empty_tensor_to_shards(std::vector<Tensor>& shards, int64_t dim, int64_t count);

// Whether all are equal to the first. Throws ShapeError for none, as there is
// no first.
bool has_only_one_value(std::span<const int64_t> values);
bool has_only_one_value(const Tensor& t);

}  // namespace tessera
