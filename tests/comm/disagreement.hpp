// One body for every way in which a call can be wrong: the same error on every rank, nothing moved, and life goes on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/failures.hpp"

namespace tessera::test {

// Outputs that must still be as they were when the call has failed.
class Untouched {
 public:
  Tensor out(DType dtype, const Dims& shape) {
    outs_.push_back(Tensor::full(dtype, shape, 7));
    before_.push_back(outs_.back().clone());
    return outs_.back();
  }
  // A tensor that the test itself lays out.
  Tensor watch(const Tensor& tensor) {
    outs_.push_back(tensor);
    before_.push_back(tensor.clone());
    return tensor;
  }
  void check() const {
    for (size_t i = 0; i < outs_.size(); ++i)
      EXPECT_TRUE(outs_[i].equals(before_[i])) << "output " << i << " was written to";
  }

 private:
  std::vector<Tensor> outs_, before_;
};

struct WrongCall {
  std::string name;
  std::string type;               // of the error
  std::vector<std::string> says;  // parts of its message
  std::function<void(Comm&, Untouched&)> call;
  int ranks = 3;
};

inline std::string name_of(const ::testing::TestParamInfo<WrongCall>& info) { return info.param.name; }
inline std::ostream& operator<<(std::ostream& out, const WrongCall& wrong) { return out << wrong.name; }

inline void expect_refused(const WrongCall& wrong) {
  std::vector<Thrown> thrown(static_cast<size_t>(wrong.ranks));
  run(wrong.ranks, [&](Comm& comm) {
    Untouched outs;
    thrown[static_cast<size_t>(comm.rank())] = thrown_by([&] { wrong.call(comm, outs); });
    outs.check();
    const Stats stats = comm.stats();
    EXPECT_EQ(stats.bytes_received + stats.bytes_sent + stats.bytes_copied + stats.copies + stats.messages, 0);
    EXPECT_FALSE(comm.recent_calls().back().error.empty());
    expect_alive(comm);
  });
  const Thrown all = same_for_all(thrown);
  EXPECT_EQ(all.type, wrong.type) << all.text;
  for (const std::string& part : wrong.says)
    EXPECT_TRUE(contains(all.text, part)) << part << "\nis not in\n" << all.text;
  EXPECT_TRUE(contains(all.text, "of communicator \"world\"")) << all.text;
  EXPECT_TRUE(contains(all.text, "Nothing was moved.")) << all.text;
}

inline Tensor ones(DType dtype, const Dims& shape) { return Tensor::full(dtype, shape, 1); }

}  // namespace tessera::test
