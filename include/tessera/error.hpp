// Errors. Everything tessera throws derives from tessera::Error.
#pragma once

#include <exception>
#include <string>

namespace tessera {

// An error in a collective is the same on every rank and says which rank, which
// field and what to do. Thread safety: as std::exception; add_context() is for
// the thread that caught it.
class Error : public std::exception {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

  // Puts "context: " before the message and keeps the type of the error.
  void add_context(const std::string& context) { message_ = context + ": " + message_; }

  // True where every rank of the communicator threw this same error: nobody
  // needs to be told again.
  bool collective() const noexcept { return collective_; }
  void set_collective() noexcept { collective_ = true; }

 private:
  std::string message_;
  bool collective_ = false;
};

// The ranks of a communicator called different things. Nothing was moved; the
// communicator lives on.
class MismatchError : public Error {
  using Error::Error;
};

// A dimension, a shape, a stride or a list of sizes does not fit.
class ShapeError : public Error {
  using Error::Error;
};

// A dtype that the operation cannot take.
class DTypeError : public Error {
  using Error::Error;
};

// An argument that is none of those there are: a reduction, a gradient, a timeout.
class ArgumentError : public Error {
  using Error::Error;
};

// An argument of a type that the call does not take. Front ends throw it whose
// language finds out types only when it runs; and what a tensor is that
// tessera cannot take, as a sparse one.
class ArgumentTypeError : public Error {
  using Error::Error;
};

// A rank died, threw, or left while others needed it. The communicator is dead;
// Comm::shrink() makes a new one.
class PeerLostError : public Error {
  using Error::Error;
};

// A rank did not come in time. The communicator is dead; Comm::shrink() makes a
// new one.
class TimeoutError : public Error {
  using Error::Error;
};

// The communicator was aborted, or was dead already when the call was made.
class AbortedError : public Error {
  using Error::Error;
};

// What run() throws when a rank ended with an exception that is not tessera's:
// "rank 2: what()". The original is nested in it (std::rethrow_if_nested).
class RankError : public Error, public std::nested_exception {
 public:
  RankError(int rank, const std::string& message)
      : Error("rank " + std::to_string(rank) + ": " + message), rank_(rank) {}
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

}  // namespace tessera
