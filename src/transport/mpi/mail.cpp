#include "transport/mpi/mail.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <tessera/collective.hpp>

#include "tensor/copy.hpp"
#include "tensor/strided.hpp"
#include "transport/chunks.hpp"

namespace tessera::mpi {
namespace {

constexpr int64_t kMostPayloadBytes = int64_t{1} << 30;  // in one message of MPI's
constexpr uint64_t kPayloadTags = 1024;

struct Answer {
  uint64_t order = 0;
  uint32_t kind = 0;
  // The text follows.
};

Dims shape_of(const Letter& letter) {
  if (letter.dtype >= static_cast<uint64_t>(kDTypeCount) || letter.ndim > kMaxDims) {
    throw Error("a message makes no sense: it is damaged");
  }
  return Dims(std::span(letter.shape, letter.ndim));
}

bool fits(const Message& receive, int from, const Letter& letter) {
  return !receive.is_send && receive.state == Message::waiting && receive.tag == letter.tag &&
         (receive.peer == tessera::kAnySource || receive.peer == from);
}

}  // namespace

Mail::Mail(World& world, CommHandle comm, int rank, std::function<bool(int)> has_left,
           std::function<void(int, int64_t)> count)
    : world_(world), comm_(comm), rank_(rank), has_left_(std::move(has_left)), count_(std::move(count)) {
  world_.enlist(*this);
}

Mail::~Mail() {
  world_.dismiss(*this);
  while (!messages_.empty()) forget(std::shared_ptr<Message>(messages_.front()));
}

std::shared_ptr<Message> Mail::send(const Tensor& tensor, int to, int64_t tag, const std::string& site) {
  auto message = std::make_shared<Message>(Message{true, tensor, to, tag, site});
  Letter letter;
  letter.tag = tag;
  letter.dtype = static_cast<uint64_t>(tensor.dtype());
  letter.ndim = tensor.shape().size();
  std::copy(tensor.shape().begin(), tensor.shape().end(), letter.shape);
  std::strncpy(letter.site, site.c_str(), sizeof(letter.site) - 1);
  {
    std::lock_guard lock(guard_);
    message->order = letter.order = ++orders_;
    messages_.push_back(message);
  }
  world_.send_text(comm_, to, kLetter, {reinterpret_cast<const char*>(&letter), sizeof(letter)});
  progress();
  return message;
}

std::shared_ptr<Message> Mail::receive(const Tensor& out, int from, int64_t tag, const std::string& site) {
  auto message = std::make_shared<Message>(Message{false, out, from, tag, site});
  {
    std::lock_guard lock(guard_);
    messages_.push_back(message);
  }
  progress();
  return message;
}

bool Mail::is_over(const std::shared_ptr<Message>& message) {
  world_.check_thread();
  progress();
  std::lock_guard lock(guard_);
  if (message->state >= Message::done) return true;
  if (!has_left_(message->peer)) return false;
  // What it sent before it left is on its way.
  if (message->lost_by == Deadline()) message->lost_by = Clock::now() + kSettling;
  return message->state == Message::waiting || Clock::now() >= message->lost_by;
}

Message::State Mail::end(const std::shared_ptr<Message>& message) {
  std::lock_guard lock(guard_);
  if (message->state == Message::waiting) messages_.remove(message);
  return message->state;
}

// Of many the first may have waited for all.
void Mail::forget(const std::shared_ptr<Message>& message) {
  std::vector<RequestHandle> requests;
  {
    std::lock_guard lock(guard_);
    messages_.remove(message);
    requests.swap(message->requests);
    if (requests.empty()) return;
    if (world_.may_call() && settled_by_ == Deadline()) settled_by_ = Clock::now() + kSettling;
  }
  if (world_.may_call()) {
    for (const RequestHandle request : requests) {
      if (!message->is_send) world_.api().cancel(request);
    }
    world_.settle(requests, settled_by_);
  }
  for (const RequestHandle request : requests) {
    if (request != 0) world_.keep(request, message);
  }
}

// A message with that tag, if one has come.
bool Mail::fetch(int32_t tag, Found& found, std::vector<std::byte>& bytes) {
  const Api& api = world_.api();
  int32_t flag = 0;
  world_.check(api.find(mpi::kAnySource, tag, comm_, &flag, &found), "MPI_Improbe");
  if (flag == 0) return false;
  bytes.resize(static_cast<size_t>(found.bytes));
  RequestHandle request = 0;
  world_.check(api.irecv_found(bytes.data(), found.bytes, &found, &request), "MPI_Imrecv");
  for (int32_t done = 0, which = 0; done == 0;) world_.check(api.test_some(1, &request, &done, &which), "MPI_Test");
  return true;
}

void Mail::progress() {
  std::lock_guard lock(guard_);
  Found found;
  std::vector<std::byte> bytes;
  while (fetch(kLetter, found, bytes)) {
    Arrived arrived{found.source, {}};
    if (bytes.size() != sizeof(Letter)) throw Error(fmt::format("rank {}'s message is damaged", found.source));
    std::memcpy(&arrived.letter, bytes.data(), sizeof(Letter));
    arrived_.push_back(arrived);
  }
  match();
  while (fetch(kAnswer, found, bytes)) hear_answer(found.source, bytes);
  for (const auto& message : messages_) {
    if (message->state == Message::moving) finish(*message);
  }
}

// The receive that was posted first takes the message that came first.
void Mail::match() {
  for (auto it = arrived_.begin(); it != arrived_.end();) {
    const auto found = std::find_if(messages_.begin(), messages_.end(),
                                    [&](const auto& message) { return fits(*message, it->from, it->letter); });
    if (found == messages_.end()) {
      ++it;
      continue;
    }
    begin(**found, *it);
    it = arrived_.erase(it);
  }
}

void Mail::begin(Message& message, const Arrived& arrived) {
  message.peer = arrived.from;
  message.order = arrived.letter.order;
  try {
    const Dims shape = shape_of(arrived.letter);
    const auto dtype = static_cast<DType>(arrived.letter.dtype);
    if (!message.tensor.defined()) message.tensor = Tensor::empty(dtype, shape);
    if (message.tensor.dtype() == dtype && message.tensor.shape() == shape) {
      message.state = Message::moving;
      move_elements(message);
      return answer(arrived, ErrorKind::none, "");
    }
    message.kind = ErrorKind::mismatch;
    message.error = fmt::format(
        "a message of tag {} does not fit its receive\n  rank {} sends {} {} at {}\n  rank {} receives {} {} at "
        "{}\nGive the "
        "same dtype and shape on both sides. Nothing was moved.",
        message.tag, arrived.from, dtype, shape, arrived.letter.site, rank_, message.tensor.dtype(),
        message.tensor.shape(), message.site);
  } catch (const std::exception& error) {
    message.kind = ErrorKind::other;
    message.error = fmt::format("rank {} could not receive from rank {}: {}", rank_, arrived.from, error.what());
  }
  message.state = Message::failed;
  answer(arrived, message.kind, message.error);
}

void Mail::answer(const Arrived& arrived, ErrorKind kind, const std::string& text) {
  const Answer head{arrived.letter.order, static_cast<uint32_t>(kind)};
  world_.send_text(comm_, arrived.from, kAnswer,
                   std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + text.substr(0, kMostControlBytes));
}

void Mail::hear_answer(int from, const std::vector<std::byte>& bytes) {
  Answer head;
  if (bytes.size() < sizeof(head)) throw Error(fmt::format("rank {}'s message is damaged", from));
  std::memcpy(&head, bytes.data(), sizeof(head));
  const auto found = std::find_if(messages_.begin(), messages_.end(), [&](const auto& message) {
    return message->is_send && message->peer == from && message->order == head.order;
  });
  if (found == messages_.end()) return;  // this rank has given up
  Message& message = **found;
  if (head.kind == 0 && message.tensor.bytes() > 0 && has_left_(from)) return;  // or the other one
  if (head.kind == 0) {
    message.state = Message::moving;
    return move_elements(message);
  }
  message.state = Message::failed;
  message.kind = static_cast<ErrorKind>(head.kind);
  message.error.assign(reinterpret_cast<const char*>(bytes.data()) + sizeof(head), bytes.size() - sizeof(head));
}

void Mail::move_elements(Message& message) {
  const Api& api = world_.api();
  const Tensor& tensor = message.tensor;
  const auto tag = static_cast<int32_t>(kFirstPayload + message.order % kPayloadTags);
  std::byte* data = tensor.data();
  message.missing_bytes = tensor.bytes();
  if (!tensor.is_contiguous()) {
    message.buffer.resize(static_cast<size_t>(tensor.bytes()));
    data = message.buffer.data();
    if (message.is_send) copy_box({data, tensor.dtype(), tensor.shape(), row_major(tensor.shape())}, view_of(tensor));
  }
  for (int64_t at = 0; at < tensor.bytes(); at += kMostPayloadBytes) {
    const int64_t bytes = std::min(kMostPayloadBytes, tensor.bytes() - at);
    RequestHandle& request = message.requests.emplace_back();
    if (message.is_send) world_.check(api.isend(data + at, bytes, message.peer, tag, comm_, &request), "MPI_Isend");
    else world_.check(api.irecv(data + at, bytes, message.peer, tag, comm_, &request), "MPI_Irecv");
  }
}

void Mail::finish(Message& message) {
  World::Over over;
  if (!message.requests.empty()) {
    world_.check(world_.test_some(message.requests, over), "MPI_Testsome");
    std::erase(message.requests, RequestHandle{0});
  }
  // Pieces that come together have their sum; where this MPI does not say, it is as it should be.
  for (size_t i = 0; i < over.count; ++i) message.missing_bytes -= std::max<int64_t>(over.bytes[i], 0);
  if (!message.requests.empty()) return;
  const Tensor& to = message.tensor;
  if (!message.is_send) {
    if (world_.tells_lengths()) check_length(message.peer, to.bytes() - message.missing_bytes, to.bytes());
    count_(message.peer, to.bytes());
    if (!message.buffer.empty()) {
      copy_box(view_of(to), {message.buffer.data(), to.dtype(), to.shape(), row_major(to.shape())});
    }
  }
  message.state = Message::done;
}

bool MailTicket::await(Deadline deadline) {
  for (; !mail_.is_over(message_); patience_.pause()) {
    if (!patience_.should_look_around()) continue;
    look_around_();
    if (Clock::now() >= deadline) return false;
  }
  return true;
}

void MailTicket::wait(Deadline deadline) {
  const bool over = await(deadline);
  const Message::State state = mail_.end(message_);
  if (state == Message::failed) throw_error(message_->kind, message_->error);
  if (state == Message::done) return;
  mail_.forget(message_);  // no peer may touch its memory when this throws
  throw PeerTrouble{over ? PeerTrouble::closed : PeerTrouble::timed_out, message_->peer};
}

}  // namespace tessera::mpi
