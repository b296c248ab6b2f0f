#include "comm/statement.hpp"

#include <bit>
#include <cstring>

namespace tessera {
namespace {

void put_bytes(std::vector<int64_t>& words, std::span<const std::byte> bytes) {
  words.push_back(static_cast<int64_t>(bytes.size()));
  const size_t at = words.size();
  words.resize(at + (bytes.size() + 7) / 8);
  if (!bytes.empty()) std::memcpy(words.data() + at, bytes.data(), bytes.size());
}

void put_text(std::vector<int64_t>& words, const std::string& text) {
  put_bytes(words, std::as_bytes(std::span(text)));
}

void put_list(std::vector<int64_t>& words, std::span<const int64_t> values) {
  words.push_back(static_cast<int64_t>(values.size()));
  words.insert(words.end(), values.begin(), values.end());
}

void put_tensor(std::vector<int64_t>& words, const Announced& tensor) {
  words.push_back(static_cast<int64_t>(tensor.dtype));
  put_list(words, tensor.shape);
  words.insert(words.end(), tensor.strides.begin(), tensor.strides.end());
}

// Takes one value after the other; each is copied once and checked afterwards.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  int64_t word() {
    int64_t value = 0;
    if (bytes_.size() < sizeof(value)) fail();
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_ = bytes_.subspan(sizeof(value));
    return value;
  }
  int64_t word_below(int64_t limit) {
    const int64_t value = word();
    if (value < 0 || value >= limit) fail();
    return value;
  }
  size_t count(size_t bytes_each) {
    const int64_t value = word();
    if (value < 0 || static_cast<uint64_t>(value) > bytes_.size() / bytes_each) fail();
    return static_cast<size_t>(value);
  }
  void list(Sizes& values) {
    values.resize(count(8));
    for (int64_t& value : values) value = word();
  }
  Dims dims(size_t length) {
    if (length > kMaxDims) fail();
    Dims values = Dims::filled(length, 0);
    for (int64_t& value : values) value = word();
    return values;
  }
  void text(std::string& value) {
    const size_t length = count(1);
    const size_t padded = (length + 7) / 8 * 8;
    if (padded > bytes_.size()) fail();
    value.assign(reinterpret_cast<const char*>(bytes_.data()), length);
    bytes_ = bytes_.subspan(padded);
  }
  static void require(bool sense) {
    if (!sense) fail();
  }
  void tensor(Announced& t) {
    t.dtype = static_cast<DType>(word_below(kDTypeCount));
    t.shape = dims(count(8));
    t.strides = dims(t.shape.size());
  }
  // The number of the call, where the tensors lie, and the elements of small ones, which come first.
  void changes(Record& record) {
    record.call = word();
    word();
    size_t tensors = count(sizeof(Handle));
    for (Statement& statement : record.statements) {
      for (Announced& tensor : statement.tensors) {
        if (tensors-- == 0) fail();
        for (uint64_t& w : tensor.where.words) w = static_cast<uint64_t>(word());
      }
    }
    if (tensors != 0) fail();
    const size_t bytes = count(1);
    for (Statement& statement : record.statements) {
      for (Announced& tensor : statement.tensors) tensor.inlined = inlined(tensor, bytes);
    }
  }
  ChangedPart skip_changes() {
    const size_t all = bytes_.size();
    word();
    word();
    const size_t tensors = count(sizeof(Handle));
    bytes_ = bytes_.subspan(tensors * sizeof(Handle));
    const size_t payload = count(1), padded = (payload + 7) / 8 * 8;
    if (padded > bytes_.size()) fail();
    bytes_ = bytes_.subspan(padded);
    return {all - bytes_.size() - padded, payload, all - bytes_.size()};
  }

 private:
  // Where the tensor's elements begin in the payload of that many bytes, which is next; null: elsewhere.
  const std::byte* inlined(const Announced& tensor, size_t payload_bytes) const {
    if (tensor.where.words[1] != kInlined) return nullptr;
    const uint64_t at = tensor.where.words[0];
    int64_t bytes = size_bytes(tensor.dtype);
    for (const int64_t extent : tensor.shape) {
      if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) fail();
    }
    if (payload_bytes > bytes_.size() || at > payload_bytes || static_cast<uint64_t>(bytes) > payload_bytes - at)
      fail();
    return bytes_.data() + at;
  }

  [[noreturn]] static void fail() { throw Error("a peer's record makes no sense: it is damaged"); }

  std::span<const std::byte> bytes_;
};

void put_statement(std::vector<int64_t>& words, const Statement& s) {
  words.insert(words.end(), {static_cast<int64_t>(s.op), s.dim, s.split_dim, s.root,
                             static_cast<int64_t>(s.reduction.op), std::bit_cast<int64_t>(s.reduction.factor),
                             std::bit_cast<int64_t>(s.scale), s.extra[0], s.extra[1], s.flags,
                             !s.has_x                           ? 0
                             : s.x().where.words[1] == kInlined ? 2
                                                                : 1,
                             static_cast<int64_t>(s.tensors.size())});
  for (const Announced& tensor : s.tensors) put_tensor(words, tensor);
  put_list(words, s.in_place);
  put_list(words, s.sizes);
  put_list(words, s.recv_sizes);
  put_text(words, s.note);
}

void get_statement(Reader& reader, Statement& s) {
  s.op = static_cast<OpCode>(reader.word_below(static_cast<int64_t>(OpCode::recv) + 1));
  s.dim = reader.word();
  s.split_dim = reader.word();
  s.root = reader.word();
  s.reduction.op = static_cast<ReduceOp>(reader.word_below(static_cast<int64_t>(ReduceOp::premul_sum) + 1));
  s.reduction.factor = std::bit_cast<double>(reader.word());
  s.scale = std::bit_cast<double>(reader.word());
  for (int64_t& value : s.extra) value = reader.word();
  s.flags = reader.word();
  s.has_x = reader.word_below(3) != 0;  // 2: and it is in the record. What follows from that is another call's
  s.tensors.resize(reader.count(8));
  for (Announced& tensor : s.tensors) reader.tensor(tensor);
  reader.list(s.in_place);
  reader.require(s.tensors.size() == s.in_place.size() + (s.has_x ? 1 : 0));
  reader.list(s.sizes);
  reader.list(s.recv_sizes);
  reader.text(s.note);
}

}  // namespace

void Statement::reset() {
  op = OpCode::none;
  dim = split_dim = root = extra[0] = extra[1] = flags = 0;
  reduction = {};
  scale = 1;
  has_x = false;
  tensors.clear();
  in_place.clear();
  sizes.clear();
  recv_sizes.clear();
  note.clear();
}

void throw_error(ErrorKind kind, const std::string& text) {
  const auto raise = [&]<class E>(E error) {
    error.set_collective();
    throw error;
  };
  switch (kind) {
    case ErrorKind::mismatch: raise(MismatchError(text)); break;
    case ErrorKind::shape: raise(ShapeError(text)); break;
    case ErrorKind::dtype: raise(DTypeError(text)); break;
    case ErrorKind::argument: raise(ArgumentError(text)); break;
    case ErrorKind::argument_type: raise(ArgumentTypeError(text)); break;
    case ErrorKind::peer_lost: raise(PeerLostError(text)); break;
    case ErrorKind::timed_out: raise(TimeoutError(text)); break;
    case ErrorKind::aborted: raise(AbortedError(text)); break;
    case ErrorKind::none:
    case ErrorKind::other: break;
  }
  Error error(text);
  error.set_collective();
  throw error;
}

std::string_view name(OpCode op) {
  switch (op) {
    case OpCode::none: return "nothing yet";
    case OpCode::barrier: return "barrier";
    case OpCode::split_comm: return "Comm::split";
    case OpCode::gather_sizes: return "gather_sizes";
    case OpCode::all_gather: return "all_gather";
    case OpCode::all_gather_parts: return "all_gather_parts";
    case OpCode::all_gather_same: return "all_gather_same";
    case OpCode::reduce_scatter: return "reduce_scatter";
    case OpCode::all_reduce: return "all_reduce";
    case OpCode::all_to_all: return "all_to_all";
    case OpCode::all_to_all_v: return "all_to_all_v";
    case OpCode::broadcast: return "broadcast";
    case OpCode::scatter: return "scatter";
    case OpCode::gather: return "gather";
    case OpCode::reduce: return "reduce";
    case OpCode::redistribute: return "redistribute";
    case OpCode::scatter_parts: return "mesh_scatter";
    case OpCode::send: return "send";
    case OpCode::recv: return "recv";
  }
  return "?";
}

OpCode detail::find_op(std::string_view wanted) {
  for (auto op = OpCode::none; op <= OpCode::recv; op = static_cast<OpCode>(static_cast<int>(op) + 1)) {
    if (name(op) == wanted) return op;
  }
  throw Error(fmt::format("{} is no operation", wanted));
}

bool needs_x(OpCode op, int64_t root, int rank) {
  if (op == OpCode::barrier || op == OpCode::split_comm || op == OpCode::redistribute) return false;
  return (op != OpCode::broadcast && op != OpCode::scatter && op != OpCode::scatter_parts) || root == rank;
}

bool cuts(OpCode op) {
  switch (op) {
    case OpCode::all_gather:
    case OpCode::all_gather_parts:
    case OpCode::gather_sizes:
    case OpCode::reduce_scatter:
    case OpCode::all_to_all:
    case OpCode::all_to_all_v:
    case OpCode::scatter:
    case OpCode::gather: return true;
    default: return false;
  }
}

void encode(const Record& record, std::vector<int64_t>& words) {
  words.push_back(record.call);
  words.push_back(0);  // its version: see Replay
  const size_t tensors = words.size();
  words.push_back(0);
  for (const Statement& statement : record.statements) {
    for (const Announced& tensor : statement.tensors) {
      for (const uint64_t word : tensor.where.words) words.push_back(static_cast<int64_t>(word));
      ++words[tensors];
    }
  }
  put_bytes(words, record.payload);
  words.push_back(static_cast<int64_t>(record.problem));
  words.push_back(static_cast<int64_t>(record.statements.size()));
  for (const Statement& statement : record.statements) put_statement(words, statement);
  words.push_back(record.line);
  put_text(words, record.file);
  put_text(words, record.problem_text);
}

uint64_t version_of(std::span<const std::byte> bytes) {
  uint64_t words[2] = {};
  if (bytes.size() < sizeof(words)) throw Error("a record makes no sense: it is damaged");
  std::memcpy(words, bytes.data(), sizeof(words));
  return words[1];
}

void decode(std::span<const std::byte> bytes, Record& record) {
  Reader reader(bytes);
  reader.skip_changes();
  record.problem = static_cast<ErrorKind>(reader.word_below(static_cast<int64_t>(ErrorKind::other) + 1));
  record.statements.resize(reader.count(8));
  for (Statement& statement : record.statements) get_statement(reader, statement);
  record.line = reader.word();
  reader.text(record.file);
  reader.text(record.problem_text);
  decode_changes(bytes, record);
}

ChangedPart changed_part(std::span<const std::byte> bytes) { return Reader(bytes).skip_changes(); }

void decode_changes(std::span<const std::byte> bytes, Record& record) { Reader(bytes).changes(record); }

}  // namespace tessera
