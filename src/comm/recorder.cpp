#include "comm/recorder.hpp"

#include <algorithm>
#include <cstring>

namespace tessera {
namespace {

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') quoted += "\\n";
    else if (static_cast<unsigned char>(c) < 0x20) quoted += fmt::format("\\u{:04x}", static_cast<int>(c));
    else quoted += c;
  }
  return quoted + '"';
}

std::string operation_text(OpCode op, size_t batch) {
  return batch <= 1 ? std::string(name(op)) : fmt::format("{} and {} more", name(op), batch - 1);
}

}  // namespace

const char* file_of(const Site& site) {
  const char* slash = std::strrchr(site.file_name(), '/');
  return slash == nullptr ? site.file_name() : slash + 1;
}

std::string site_text(const Site& site) { return fmt::format("{}:{}", file_of(site), site.line()); }

void Recorder::begin(int64_t call, OpCode op, size_t batch, const Site& site, int64_t bytes_received) {
  last_ = call;
  Entry& e = entry(call);
  e.call = call;
  e.op = op;
  e.batch = batch;
  e.site = site;
  e.bytes_received = bytes_received;
  e.start = ticks_now();
  e.end.store(0, std::memory_order_relaxed);
  e.schedule.clear();
  e.error.clear();
}

void Recorder::end(int64_t call, int64_t bytes_received, const std::string* schedule, const char* error) {
  Entry& e = entry(call);
  e.bytes_received = bytes_received;
  end(call);
  if (schedule != nullptr) e.schedule = *schedule;
  if (error != nullptr) e.error = error;
}

int64_t Recorder::begin_message(OpCode op, std::string with, const Site& site) {
  if (messages_.empty()) messages_ = std::vector<Message>(kRecordedCalls);
  Message& m = messages_[static_cast<size_t>(++last_message_ % kRecordedCalls)];
  m.call = last_message_;
  m.op = op;
  m.with = std::move(with);
  m.site = site;
  m.bytes_received = 0;
  m.start = ticks_now();
  m.end.store(0, std::memory_order_relaxed);
  m.error.clear();
  return m.call;
}

void Recorder::end_message(int64_t message, int64_t bytes_received, const char* error) {
  Message& m = messages_[static_cast<size_t>(message % kRecordedCalls)];
  if (m.call != message) return;  // many began since
  m.bytes_received = bytes_received;
  m.end.store(ticks_now(), std::memory_order_relaxed);
  if (error != nullptr) m.error = error;
}

std::vector<CallRecord> Recorder::calls() const {
  // How long a tick is shows over the whole life of the recorder.
  const auto now = std::chrono::steady_clock::now();
  const double tick_ns = std::chrono::duration<double, std::nano>(now - born_).count() /
                         static_cast<double>(std::max<uint64_t>(ticks_now() - born_ticks_, 1));
  const auto time_of = [&](uint64_t ticks) {
    return born_ + std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(ticks - born_ticks_) * tick_ns));
  };
  std::vector<CallRecord> list;
  for (int64_t call = std::max<int64_t>(1, last_ - kRecordedCalls + 1); call <= last_; ++call) {
    const Entry& e = entries_[static_cast<size_t>(call % kRecordedCalls)];
    if (e.call != call) continue;
    const uint64_t end = e.end.load(std::memory_order_relaxed);
    list.push_back({e.call, operation_text(e.op, e.batch), site_text(e.site), end != 0 ? e.bytes_received : 0,
                    time_of(e.start), time_of(end != 0 ? end : e.start), end != 0, e.error, e.schedule});
  }
  for (const Message& m : messages_) {
    if (m.call == 0) continue;
    const uint64_t end = m.end.load(std::memory_order_relaxed);
    list.push_back({0,
                    fmt::format("{} {}", name(m.op), m.with),
                    site_text(m.site),
                    m.bytes_received,
                    time_of(m.start),
                    time_of(end != 0 ? end : m.start),
                    end != 0,
                    m.error,
                    {}});
  }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  if (list.size() > kRecordedCalls) list.erase(list.begin(), list.end() - kRecordedCalls);
  return list;
}

std::string Recorder::summary() const {
  constexpr size_t kShown = 4;
  const auto list = calls();
  std::string text;
  for (size_t i = list.size() > kShown ? list.size() - kShown : 0; i < list.size(); ++i) {
    const CallRecord& c = list[i];
    if (!text.empty()) text += ", ";
    if (c.number > 0) text += fmt::format("#{} ", c.number);
    text += fmt::format("{} at {}", c.operation, c.site);
    if (c.finished && c.error.empty()) text += fmt::format(" ({} bytes)", c.bytes_received);
  }
  return text;
}

std::string chrome_trace(const std::vector<CallRecord>& calls, const std::string& comm, int rank) {
  const auto microseconds = [](auto time) { return std::chrono::duration<double, std::micro>(time).count(); };
  std::string text = "{\"traceEvents\": [";
  for (const CallRecord& c : calls) {
    if (text.back() != '[') text += ',';
    text += fmt::format(
        "\n  {{\"name\": {}, \"cat\": {}, \"ph\": \"{}\", \"pid\": 0, \"tid\": "
        "{}, \"ts\": {:.3f}, \"dur\": {:.3f}, "
        "\"args\": {{\"call\": {}, \"site\": {}, \"bytes_received\": {}, "
        "\"error\": {}{}}}}}",
        json_text(c.operation), json_text(comm), c.finished ? "X" : "B", rank, microseconds(c.start.time_since_epoch()),
        c.finished ? microseconds(c.end - c.start) : 0.0, c.number, json_text(c.site), c.bytes_received,
        json_text(c.error), c.schedule.empty() ? "" : ", \"schedule\": " + json_text(c.schedule));
  }
  return text + "\n]}\n";
}

}  // namespace tessera
