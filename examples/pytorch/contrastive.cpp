// A contrastive model (as CLIP: two encoders, pairs) in LibTorch, on one rank and on four: the same losses and weights.
// Each rank has another number of pairs at every step, sometimes none. A pair is scored against those of all ranks, so every
// rank gathers the embeddings of all, and their gradient comes back from every rank's loss. With GradReduce::slice, only the
// own loss's, the training is another one. contrastive.py does the same under DDP.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <tessera/torch.hpp>

using namespace tessera;

namespace {

constexpr int kRanks = 4, kSteps = 12;
constexpr int64_t kPairs = 16;  // of all ranks, at every step
constexpr double kLearningRate = 0.5;

at::Tensor random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble);
}

// Two encoders of two layers, without biases, and the scale of the scores.
struct Model {
  std::vector<at::Tensor> weights{random({16, 12}, 11) / 4, random({8, 16}, 12) / 4, random({16, 10}, 13) / 4,
                                  random({8, 16}, 14) / 4, at::full({}, 2.0, at::kDouble)};
  Model() {
    for (at::Tensor& weight : weights) weight.requires_grad_();
  }
  at::Tensor encode(size_t first, const at::Tensor& x) const {
    const at::Tensor y = at::linear(at::tanh(at::linear(x, weights[first])), weights[first + 1]);
    return y / y.norm(2, {-1}, true);
  }
  at::Tensor images(const at::Tensor& x) const { return encode(0, x); }
  at::Tensor texts(const at::Tensor& x) const { return encode(2, x); }
  at::Tensor scale() const { return weights[4].exp(); }
};

// Pairs that belong together: two views of the same hidden vector.
std::pair<at::Tensor, at::Tensor> batch(int step) {
  const at::Tensor hidden = random({kPairs, 6}, 100 + static_cast<uint64_t>(step));
  return {at::matmul(hidden, random({6, 12}, 1)), at::matmul(hidden, random({6, 10}, 2))};
}

// How many pairs each rank has at this step; one rank has none.
std::vector<int64_t> rows_of(int step, int ranks) {
  if (ranks == 1) return {kPairs};
  std::vector<int64_t> ends{0, kPairs};
  for (int r = 0; r < ranks - 2; ++r) ends.push_back(7 * (step + 1) * (r + 1) % (kPairs + 1));
  std::sort(ends.begin(), ends.end());
  std::vector<int64_t> rows;
  for (size_t i = 1; i < ends.size(); ++i) rows.push_back(ends[i] - ends[i - 1]);
  rows.insert(rows.begin() + step % ranks, 0);
  return rows;
}

struct Training {
  std::vector<double> losses;
  std::vector<std::vector<at::Tensor>> weights;  // after each step
};

Training train(Comm& comm, GradReduce grad) {
  Model model;
  Training training;
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor sizes = at::tensor(rows_of(step, comm.size()), at::kLong);
    const auto [whole_images, whole_texts] = batch(step);
    const at::Tensor images = model.images(split(comm, whole_images, 0, sizes));
    const at::Tensor texts = model.texts(split(comm, whole_texts, 0, sizes));
    const at::Tensor all_images = all_gather(comm, images, 0, {}, grad).tensor;
    const at::Tensor all_texts = all_gather(comm, texts, 0, {}, grad).tensor;

    const int64_t first = sizes.slice(0, 0, comm.rank()).sum().item<int64_t>();
    const at::Tensor labels = at::arange(first, first + images.size(0), at::kLong);
    const auto score = [&](const at::Tensor& mine, const at::Tensor& all) {
      return at::cross_entropy_loss(model.scale() * at::matmul(mine, all.t()), labels, {}, at::Reduction::Sum);
    };
    // The losses of the ranks add up to that of one rank, and so do the gradients of the weights.
    const at::Tensor loss = (score(images, all_texts) + score(texts, all_images)) / (2 * kPairs);
    const auto gradients = torch::autograd::grad({loss}, model.weights);
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < gradients.size(); ++i) {
      model.weights[i].sub_(all_reduce(comm, gradients[i]), kLearningRate);
    }
    training.losses.push_back(all_reduce(comm, loss.detach()).item<double>());
    training.weights.emplace_back();
    for (const at::Tensor& weight : model.weights) training.weights.back().push_back(weight.detach().clone());
  }
  return training;
}

Training train(int ranks, GradReduce grad) {
  Training result;
  run(ranks, [&](Comm& comm) {
    const Training mine = train(comm, grad);
    if (comm.rank() == 0) result = mine;
  });
  return result;
}

double off(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, (a[i] - b[i]).abs().max().item<double>());
  return most;
}

}  // namespace

int main() {
  const Training alone = train(1, GradReduce::sum), summed = train(kRanks, GradReduce::sum),
                 sliced = train(kRanks, GradReduce::slice);
  bool same = true;
  fmt::print("step    one rank         sum       slice   weights: sum is off by, slice by\n");
  for (size_t step = 0; step < kSteps; ++step) {
    const double sum_off = off(summed.weights[step], alone.weights[step]);
    fmt::print("{:>4} {:>11.8f} {:>11.8f} {:>11.8f}   {:.1e}  {:.1e}\n", step, alone.losses[step], summed.losses[step],
               sliced.losses[step], sum_off, off(sliced.weights[step], alone.weights[step]));
    same = same && sum_off < 1e-9 && std::abs(summed.losses[step] - alone.losses[step]) < 1e-9;
  }
  const bool sliced_same = off(sliced.weights.back(), alone.weights.back()) < 1e-3;
  if (!same) fmt::print("four ranks should have given what one gives\n");
  if (sliced_same) fmt::print("slice should not have given the same weights\n");
  return same && !sliced_same ? 0 : 1;
}
