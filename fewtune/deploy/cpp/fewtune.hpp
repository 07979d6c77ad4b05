// A tuned library in C++17: this header, libtvm_runtime.so and libtvm_ffi.so are all it needs.
//
//   fewtune::Session session("model.so");
//   std::vector<fewtune::Array> outputs = session.run({{"x", {data, {1, 3, 224, 224}}}});
//
// It speaks TVM FFI's C ABI (tvm/ffi/c_api.h, version 0.1) and reads the note behind the library.
// Every error is a fewtune::Error with one sentence. The digest of the library is not checked here:
// `fewtune info` and the loader in Python do that.
#pragma once

#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace fewtune {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace abi {

// TVM FFI's structs, as its C header has them.
struct Object {
  uint64_t counts;
  int32_t type;
  uint32_t padding;
  void (*deleter)(void*, int);
};
struct Any {
  int32_t type;
  uint32_t padding;
  union {
    int64_t integer;
    const char* text;
    Object* object;
  };
};
struct Bytes {
  const char* data;
  size_t size;
};
struct Tensor {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};
enum Type : int32_t { kNone = 0, kInt = 1, kText = 8, kFirstObject = 64, kTensor = 70, kArray = 71 };

extern "C" {
int TVMFFIFunctionGetGlobal(const Bytes* name, Object** out);
int TVMFFIFunctionCall(Object* function, Any* arguments, int32_t count, Any* result);
void TVMFFIErrorMoveFromRaised(Object** out);
int TVMFFITensorFromDLPack(ManagedTensor* from, int32_t alignment, int32_t contiguous, Object** out);
int TVMFFIObjectDecRef(Object* object);
}

// An object's content stands behind its header.
template <class T>
T* content(Object* object) {
  return reinterpret_cast<T*>(object + 1);
}

class Ref {
 public:
  explicit Ref(Object* object = nullptr) : object_(object, [](Object* o) {
    if (o) TVMFFIObjectDecRef(o);
  }) {}
  Object* get() const { return object_.get(); }

 private:
  std::shared_ptr<Object> object_;
};

inline void check(int code) {
  if (code == 0) return;
  Object* raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  Ref owned(raised);
  if (!raised) throw Error("TVM says no reason");
  const Bytes& message = content<Bytes>(raised)[1];
  throw Error("TVM: " + std::string(message.data, message.size));
}

inline Any of(int value) {
  Any any{kInt, 0, {}};
  any.integer = value;
  return any;
}
inline Any of(const char* value) {
  Any any{kText, 0, {}};
  any.text = value;
  return any;
}
inline Any of(const Ref& value) {
  Any any{value.get()->type, 0, {}};
  any.object = value.get();
  return any;
}

inline Ref call(const Ref& function, std::vector<Any> arguments) {
  Any result{};
  int32_t count = static_cast<int32_t>(arguments.size());
  check(TVMFFIFunctionCall(function.get(), arguments.data(), count, &result));
  return Ref(result.type >= kFirstObject ? result.object : nullptr);
}

inline Ref global(const std::string& name) {
  Bytes key{name.data(), name.size()};
  Object* found = nullptr;
  check(TVMFFIFunctionGetGlobal(&key, &found));
  if (!found) throw Error("TVM's runtime has no function " + name);
  return Ref(found);
}

inline Ref member(const Ref& module, const std::string& name) {
  Ref found = call(global("ffi.ModuleGetFunction"), {of(module), of(name.c_str()), of(1)});
  if (!found.get()) throw Error("the library has no function " + name);
  return found;
}

}  // namespace abi

// The part of JSON that a note has.
class Json {
 public:
  static Json parse(const std::string& text) {
    size_t at = 0;
    return Json(text, at);
  }
  const Json& operator[](const std::string& name) const {
    for (const auto& field : fields) {
      if (field.first == name) return field.second;
    }
    throw Error("the library's note lacks " + name + ": compile the model again");
  }
  std::string text;
  int64_t number = 0;
  std::vector<Json> items;
  std::vector<std::pair<std::string, Json>> fields;

 private:
  Json(const std::string& s, size_t& at, int depth = 0) {
    if (depth > 8) fail();
    char first = next(s, at);
    if (first == '{' || first == '[') {
      const char close = first == '{' ? '}' : ']';
      ++at;
      while (next(s, at) != close) {
        if (first == '[') {
          items.push_back(Json(s, at, depth + 1));
        } else {
          std::string name = Json(s, at, depth + 1).text;
          expect(s, at, ':');
          fields.emplace_back(name, Json(s, at, depth + 1));
        }
        if (next(s, at) != close) expect(s, at, ',');
      }
      ++at;
    } else if (first == '"') {
      read_text(s, at);
    } else {
      size_t end = s.find_first_of(",]} \n", at);
      if (end == std::string::npos || end == at) fail();
      number = std::strtoll(s.c_str() + at, nullptr, 10);
      at = end;
    }
  }
  void read_text(const std::string& s, size_t& at) {
    for (++at; at < s.size() && s[at] != '"'; ++at) {
      if (s[at] != '\\') {
        text += s[at];
      } else if (++at < s.size() && s[at] == 'u') {
        uint32_t code = read_code(s, at);
        if (code >= 0xD800 && code < 0xDC00) {
          ++at;
          code = 0x10000 + ((code - 0xD800) << 10) + (read_code(s, ++at) - 0xDC00);
        }
        add_utf8(code);
      } else if (at < s.size()) {
        const char *from = "nrtbf", *to = "\n\r\t\b\f", *found = std::strchr(from, s[at]);
        text += found ? to[found - from] : s[at];
      }
    }
    if (at++ >= s.size()) fail();
  }
  // Leaves `at` on the last of four digits.
  static uint32_t read_code(const std::string& s, size_t& at) {
    if (at + 4 >= s.size()) fail();
    const auto code = static_cast<uint32_t>(std::strtoul(s.substr(at + 1, 4).c_str(), nullptr, 16));
    at += 4;
    return code;
  }
  void add_utf8(uint32_t code) {
    if (code < 0x80) {
      text += static_cast<char>(code);
      return;
    }
    int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    text += static_cast<char>((0xF00 >> more & 0xFF) | code >> 6 * more);
    while (more--) text += static_cast<char>(0x80 | (code >> 6 * more & 0x3F));
  }
  static char next(const std::string& s, size_t& at) {
    at = s.find_first_not_of(" \n\r\t", at);
    if (at == std::string::npos) fail();
    return s[at];
  }
  static void expect(const std::string& s, size_t& at, char wanted) {
    if (next(s, at) != wanted) fail();
    ++at;
  }
  [[noreturn]] static void fail() {
    throw Error("the library has a damaged note: compile the model again, or copy the file again");
  }
};

// An input's or an output's name, NumPy's name of its type, and shape.
struct Tensor {
  std::string name, dtype;
  std::vector<int64_t> shape;

  size_t size() const {
    size_t count = 1;
    for (int64_t extent : shape) count *= static_cast<size_t>(extent);
    return count;
  }
  size_t item_bytes() const { return dtype == "bool" ? 1 : bits() / 8; }
  size_t bytes() const { return size() * item_bytes(); }
  uint8_t bits() const {
    if (dtype == "bool") return 8;
    return static_cast<uint8_t>(std::stoi(dtype.substr(dtype.find_first_of("123456789"))));
  }
  // DLPack's code of the type.
  uint8_t code() const {
    return dtype == "bool" ? 6 : dtype[0] == 'f' ? 2 : dtype[0] == 'u' ? 1 : 0;
  }
};

template <class T>
std::string dtype_of() {
  if (std::is_same<T, bool>::value) return "bool";
  const std::string bits = std::to_string(8 * sizeof(T));
  return (std::is_floating_point<T>::value ? "float" : std::is_signed<T>::value ? "int" : "uint") +
         bits;
}

// An input: memory of the caller, read in the order of rows.
struct View {
  const void* data;
  std::string dtype;
  std::vector<int64_t> shape;

  template <class T>
  View(const T* data, std::vector<int64_t> shape)
      : data(data), dtype(dtype_of<T>()), shape(std::move(shape)) {}
  View(const void* data, std::string dtype, std::vector<int64_t> shape)
      : data(data), dtype(std::move(dtype)), shape(std::move(shape)) {}
};

// An output, the caller's own.
struct Array : Tensor {
  std::vector<char> memory;

  template <class T>
  const T* data() const {
    if (dtype_of<T>() != dtype) throw Error("output " + name + " is of " + dtype);
    return reinterpret_cast<const T*>(memory.data());
  }
};

inline std::string text_of(const std::vector<int64_t>& shape) {
  std::ostringstream text;
  for (size_t i = 0; i < shape.size(); ++i) text << (i ? "x" : "") << shape[i];
  return shape.empty() ? "()" : text.str();
}

// A tuned library, ready to run. Calls from several threads take turns. All sessions of a file have
// as many threads as the last one asked for.
class Session {
 public:
  // `threads`: 0 for as many as the library was tuned for, or as there are cores if these are fewer.
  explicit Session(const std::string& path, int threads = 0) {
    read_note(path);
    check_cpu(path);
    const int count = threads_for(threads);
    const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
    abi::Ref library = abi::call(abi::global("ffi.Module.load_from_file.so"),
                                 {abi::of(file.c_str()), abi::of("so")});
    machine_ = abi::call(abi::member(library, "vm_load_executable"), {});
    // The first CPU, with the allocator that keeps freed memory.
    abi::call(abi::member(machine_, "vm_initialization"), {abi::of(1), abi::of(0), abi::of(2)});
    abi::call(abi::member(library, "fewtune_set_threads"), {abi::of(count)});
    for (Function& each : functions_) each.call = abi::member(machine_, each.symbol);
  }

  // Of the first set of shapes; others have the same names and types.
  const std::vector<Tensor>& inputs() const { return functions_.front().inputs; }
  const std::vector<Tensor>& outputs() const { return functions_.front().outputs; }

  std::vector<Array> run(const std::map<std::string, View>& given) {
    const Function& function = chosen(given);
    std::vector<Argument> arguments;
    arguments.reserve(function.inputs.size());
    for (const Tensor& input : function.inputs) {
      const View& view = given.at(input.name);
      check_limits(input, view);
      arguments.emplace_back(input, view);
    }
    std::vector<abi::Any> values;
    for (const Argument& each : arguments) values.push_back(abi::of(each.tensor));
    std::lock_guard<std::mutex> lock(calling_);
    return taken(function, abi::call(function.call, std::move(values)));
  }

 private:
  struct Function {
    std::string symbol;
    std::vector<Tensor> inputs, outputs;
    abi::Ref call;
  };

  // A tensor on the caller's memory, or on a copy where that is not aligned as kernels want it.
  struct Argument {
    Argument(const Tensor& spec, const View& view) : shape(spec.shape), copy(nullptr, std::free) {
      void* data = const_cast<void*>(view.data);
      if (reinterpret_cast<uintptr_t>(data) % kAlignment || !data) {
        copy.reset(std::aligned_alloc(kAlignment, (spec.bytes() / kAlignment + 1) * kAlignment));
        if (!copy) throw Error("no memory is left for input " + spec.name);
        if (data) std::memcpy(copy.get(), data, spec.bytes());
        data = copy.get();
      }
      int32_t ndim = static_cast<int32_t>(shape.size());
      managed.reset(new abi::ManagedTensor{
          {data, 1, 0, ndim, spec.code(), spec.bits(), 1, shape.data(), nullptr, 0}, 0, nullptr});
      abi::Object* made = nullptr;
      abi::check(abi::TVMFFITensorFromDLPack(managed.get(), 0, 1, &made));
      tensor = abi::Ref(made);
    }
    std::vector<int64_t> shape;
    std::unique_ptr<void, void (*)(void*)> copy;
    std::unique_ptr<abi::ManagedTensor> managed;
    abi::Ref tensor;
  };

  void read_note(const std::string& path) {
    // The file's end: a digest of the note, the note's length, a mark.
    const size_t end_bytes = 48;
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) throw Error(path + " cannot be read: give the path of a library of fewtune");
    const size_t size = static_cast<size_t>(std::max<std::streamoff>(file.tellg(), 0));
    char end[end_bytes] = {};
    uint64_t length = 0;
    if (size > end_bytes) {
      file.seekg(size - end_bytes);
      file.read(end, end_bytes);
      std::memcpy(&length, end + 32, sizeof length);
    }
    if (std::memcmp(end + 40, "fewtune2", 8) || length > size - end_bytes || length > 1 << 20) {
      throw Error(path + " is no library of this fewtune, or is cut off: copy the file again");
    }
    std::string text(length, '\0');
    file.seekg(size - end_bytes - length);
    file.read(&text[0], length);
    note_ = Json::parse(text);
    for (const Json& each : note_["functions"].items) {
      functions_.push_back(
          {each["function"].text, tensors(each["inputs"]), tensors(each["outputs"]), abi::Ref()});
    }
    if (functions_.empty()) throw Error(path + " has a damaged note: copy the file again");
  }

  static std::vector<Tensor> tensors(const Json& list) {
    std::vector<Tensor> found;
    for (const Json& each : list.items) {
      found.push_back({each["name"].text, each["dtype"].text, {}});
      for (const Json& extent : each["shape"].items) found.back().shape.push_back(extent.number);
    }
    return found;
  }

  void check_cpu(const std::string& path) const {
#if defined(__x86_64__)
    const std::string here = "x86_64";
#elif defined(__aarch64__)
    const std::string here = "aarch64";
#else
    const std::string here = "another";
#endif
    const std::string made = note_["architecture"].text;
    if (made != here) throw Error(path + " was made for " + made + ", and this CPU is " + here);
    std::ifstream cpuinfo("/proc/cpuinfo");
    for (std::string line; std::getline(cpuinfo, line);) {
      if (line.compare(0, 5, "flags") && line.compare(0, 8, "Features")) continue;
      line += ' ';
      for (const Json& each : note_["extensions"].items) {
        if (line.find(' ' + each.text + ' ') != std::string::npos) continue;
        throw Error(path + " was made for a CPU with " + each.text +
                    ", which this one lacks: tune the model here");
      }
      return;
    }
  }

  // How many threads the library runs on, with the calling one.
  int threads_for(int asked) const {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    const int usable = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
    if (asked < 0 || asked > usable) {
      throw Error(std::to_string(asked) + " threads were asked for: this process may use " +
                  std::to_string(usable) + " cores");
    }
    const int tuned = static_cast<int>(note_["threads"].number);
    return asked ? asked : std::min(tuned, usable);
  }

  const Function& chosen(const std::map<std::string, View>& given) const {
    std::string wanted;
    for (const Function& function : functions_) {
      bool fits = given.size() == function.inputs.size();
      wanted += wanted.empty() ? "the library takes " : ", or ";
      for (const Tensor& input : function.inputs) {
        auto found = given.find(input.name);
        fits = fits && found != given.end() && found->second.dtype == input.dtype &&
               found->second.shape == input.shape;
        wanted += input.name + " (" + input.dtype + ", " + text_of(input.shape) + ") ";
      }
      if (fits) return function;
    }
    wanted += "and these were given:";
    for (const auto& each : given) {
      wanted += " " + each.first + " (" + each.second.dtype + ", " + text_of(each.second.shape) + ")";
    }
    throw Error(wanted);
  }

  // An index beyond its table would read foreign memory.
  void check_limits(const Tensor& input, const View& view) const {
    for (const auto& limit : note_["limits"].fields) {
      if (limit.first != input.name) continue;
      const int64_t lowest = limit.second.items.at(0).number;
      const int64_t highest = limit.second.items.at(1).number;
      for (size_t i = 0; i < input.size(); ++i) {
        const int64_t value = integer_at(input, view.data, i);
        if (value >= lowest && value <= highest) continue;
        throw Error("input " + input.name + " has the value " + std::to_string(value) +
                    ": as an index it may be " + std::to_string(lowest) + " to " +
                    std::to_string(highest));
      }
    }
  }

  static int64_t integer_at(const Tensor& spec, const void* data, size_t i) {
    const char* at = static_cast<const char*>(data) + i * spec.item_bytes();
    const bool is_signed = spec.dtype[0] == 'i';
    if (spec.bits() == 8) return is_signed ? read<int8_t>(at) : read<uint8_t>(at);
    if (spec.bits() == 16) return is_signed ? read<int16_t>(at) : read<uint16_t>(at);
    if (spec.bits() == 32) return is_signed ? read<int32_t>(at) : read<uint32_t>(at);
    return is_signed ? read<int64_t>(at) : std::min<uint64_t>(read<uint64_t>(at), INT64_MAX);
  }
  template <class T>
  static T read(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }

  static std::vector<Array> taken(const Function& function, const abi::Ref& result) {
    std::vector<abi::Object*> given{result.get()};
    if (result.get() && result.get()->type == abi::kArray) {
      struct Sequence {
        abi::Any* data;
        int64_t size;
      }* sequence = abi::content<Sequence>(result.get());
      given.clear();
      for (int64_t i = 0; i < sequence->size; ++i) given.push_back(sequence->data[i].object);
    }
    if (given.size() != function.outputs.size() || !given.front()) {
      throw Error("the library gave other outputs than its note says: compile the model again");
    }
    std::vector<Array> found;
    for (size_t i = 0; i < given.size(); ++i) {
      const abi::Tensor& tensor = *abi::content<abi::Tensor>(given[i]);
      Array array{function.outputs[i], {}};
      const char* data = static_cast<const char*>(tensor.data) + tensor.byte_offset;
      array.memory.assign(data, data + array.bytes());
      found.push_back(std::move(array));
    }
    return found;
  }

  static constexpr size_t kAlignment = 64;
  Json note_ = Json::parse("0 ");
  std::vector<Function> functions_;
  abi::Ref machine_;
  std::mutex calling_;
};

}  // namespace fewtune
