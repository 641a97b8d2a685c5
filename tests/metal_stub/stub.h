// A pluggable device for tests: platform "METAL", every byte in host memory,
// every kernel a plain loop that runs synchronously. It shows TensorFlow what
// tensorflow-metal 1.2.0 shows it (names, struct fields, allocator, grappler
// settings), and counts what is asked of it: that is the truth which the
// placement report is tested against. See README.md for its switches.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/c/experimental/grappler/grappler.h"
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/tf_status.h"
#include "tensorflow/c/tf_tensor.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void metalstub_count(const char* op);
// Whether METALSTUB_ONLY_OPS and METALSTUB_DISABLE_OPS leave an op its kernel
// for a type ("float32", "int64->float32", "" for none).
EXPORT bool metalstub_allows(const char* op, const char* type);

namespace stub {

// ---------------------------------------------------------------- settings
std::string Env(const char* key, const char* otherwise);
std::set<std::string> EnvSet(const char* key);
const char* DeviceType();
inline void Ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }
uint64_t NowNs();

// ---------------------------------------------------------------- counters
struct Counters {
  std::mutex mu;
  std::map<std::string, int64_t> kernel_calls;
  int64_t h2d = 0, h2d_bytes = 0, d2h = 0, d2h_bytes = 0;
  int64_t d2d = 0, d2d_bytes = 0, wrong_memory = 0;
  std::set<std::string> registered;  // "op:type", or "op" without a type
  std::map<uintptr_t, uint64_t> blocks;
};
Counters& Count();
bool IsDevicePointer(const void* p);

// ----------------------------------------------------------------- kernels
using Dims = std::vector<int64_t>;

struct Tensor {  // an owning view
  TF_Tensor* t = nullptr;
  Tensor() = default;
  Tensor(const Tensor&) = delete;
  ~Tensor() {
    if (t) TF_DeleteTensor(t);
  }
  Dims dims() const;
  int64_t n() const { return TF_TensorElementCount(t); }
  template <class T>
  T* data() const {
    return static_cast<T*>(TF_TensorData(t));
  }
  float* f() const { return data<float>(); }
  // An element of an int32 or int64 tensor.
  int64_t index(int64_t i) const;
};

struct Kernel;
struct Call {
  Kernel* kernel;
  TF_OpKernelContext* ctx;
  TF_Status* status;
  bool In(int i, Tensor* t, bool host = false);
  bool Out(int i, TF_DataType type, const Dims& dims, Tensor* t);
  void Fail(const char* message);
};
using Compute = std::function<void(Call&)>;

struct Definition {
  std::string op;
  Compute compute;
  std::vector<std::pair<std::string, TF_DataType>> types;
  std::vector<std::string> host;  // arguments kept in host memory
  std::vector<std::string> bools, ints, strings, lists;  // attributes
};
struct Kernel {
  const Definition* def;
  bool broken = false;  // wrong on purpose
  std::map<std::string, bool> b;
  std::map<std::string, int64_t> i;
  std::map<std::string, std::string> s;
  std::map<std::string, Dims> l;
};

void Register(Definition definition);

// The plugin's own graph pass; TensorFlow demands that there be one where
// settings are given.
void Optimize(void*, const TF_Buffer* in, const TF_GrapplerItem* item,
              TF_Buffer* out, TF_Status* status);

// One function a family, called by TF_InitKernel.
void RegisterElementwise();
void RegisterLinear();
void RegisterReductions();
void RegisterShapes();
void RegisterConvolutions();
void RegisterPooling();

}  // namespace stub
