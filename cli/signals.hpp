// The signals that the launcher takes, as something to wait for, and what its children get back.
#pragma once

#include <csignal>
#include <optional>

#include "descriptor.hpp"

namespace tessera::cli {

class Signals {
 public:
  // From now on the signals come through the descriptor and interrupt nothing. Before any thread is started.
  Signals();

  int descriptor() const { return descriptor_.get(); }
  std::optional<int> next() const;  // none: no signal is there

  // In a child: everything as it was before.
  void restore() const;

 private:
  sigset_t mask_before_;
  struct sigaction pipe_before_, child_before_;
  Descriptor descriptor_;
};

}  // namespace tessera::cli
