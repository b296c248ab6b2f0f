// A ragged gather of at::Tensors on three ranks, and its gradient, by someone who has only what is installed.
#include <atomic>
#include <cstdio>

#include <ATen/ATen.h>
#include <tessera/torch.hpp>

int main() {
  std::atomic<int> right = 0;
  tessera::run(3, [&](tessera::Comm& comm) {
    const at::Tensor mine = at::full({comm.rank() + 1, 8}, comm.rank(), at::kFloat).requires_grad_();
    const auto [all, sizes] = tessera::all_gather(comm, mine);
    all.sum().backward();
    const bool fits = all.sizes() == at::IntArrayRef({6, 8}) && all[5][7].item<float>() == 2;
    if (fits && at::equal(mine.grad(), at::full_like(mine, 3))) ++right;  // every rank's loss has all rows
  });
  std::printf("%d of 3 ranks are right\n", right.load());
  return right == 3 ? 0 : 1;
}
