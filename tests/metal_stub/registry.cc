// Registration of kernels through the C API, and what surrounds each call:
// counting, slowing down, breaking on purpose.
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "stub.h"

namespace stub {

std::string Env(const char* key, const char* otherwise) {
  const char* value = getenv(key);
  return value ? value : otherwise;
}
std::set<std::string> EnvSet(const char* key) {
  std::set<std::string> out;
  std::stringstream stream(Env(key, ""));
  std::string item;
  while (std::getline(stream, item, ','))
    if (!item.empty()) out.insert(item);
  return out;
}
const char* DeviceType() {
  static const auto* type = new std::string(Env("METALSTUB_TYPE", "GPU"));
  return type->c_str();
}
uint64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Counters& Count() {
  static auto* counters = new Counters;  // never destroyed: used at exit
  return *counters;
}
bool IsDevicePointer(const void* p) {
  auto& c = Count();
  std::lock_guard<std::mutex> lock(c.mu);
  auto it = c.blocks.upper_bound(reinterpret_cast<uintptr_t>(p));
  if (it == c.blocks.begin()) return false;
  --it;
  return reinterpret_cast<uintptr_t>(p) < it->first + it->second;
}

Dims Tensor::dims() const {
  Dims d(TF_NumDims(t));
  for (size_t i = 0; i < d.size(); ++i) d[i] = TF_Dim(t, i);
  return d;
}
int64_t Tensor::index(int64_t i) const {
  return TF_TensorType(t) == TF_INT32 ? data<int32_t>()[i]
                                      : data<int64_t>()[i];
}

namespace {
void CheckMemory(const Tensor& t) {
  if (t.n() == 0 || IsDevicePointer(t.data<void>())) return;
  auto& c = Count();
  std::lock_guard<std::mutex> lock(c.mu);
  c.wrong_memory++;
}
}  // namespace

bool Call::In(int i, Tensor* t, bool host) {
  TF_GetInput(ctx, i, &t->t, status);
  if (TF_GetCode(status) != TF_OK) return false;
  if (!host) CheckMemory(*t);
  return true;
}
bool Call::Out(int i, TF_DataType type, const Dims& dims, Tensor* t) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  t->t = TF_AllocateOutput(ctx, i, type, dims.data(), dims.size(),
                           n * TF_DataTypeSize(type), status);
  if (TF_GetCode(status) != TF_OK) return false;
  CheckMemory(*t);
  return true;
}
void Call::Fail(const char* message) {
  TF_SetStatus(status, TF_INVALID_ARGUMENT, message);
}

namespace {

// What is wrong on purpose: set at load, or from a test at any time, for the
// kernels that are made from then on.
struct Damage {
  std::set<std::string> ops = EnvSet("METALSTUB_BREAK_OPS");
  std::string nodes = Env("METALSTUB_BREAK_NODES", "");
  float by = atof(Env("METALSTUB_BREAK_BY", "1").c_str());
};
Damage& TheDamage() {
  static auto* damage = new Damage;
  return *damage;
}

void* Create(const Definition* def, TF_OpKernelConstruction* ctx) {
  auto* k = new Kernel{def};
  TF_Status* st = TF_NewStatus();
  for (auto& a : def->bools) {
    TF_Bool v = 0;
    TF_OpKernelConstruction_GetAttrBool(ctx, a.c_str(), &v, st);
    k->b[a] = v;
  }
  for (auto& a : def->ints)
    TF_OpKernelConstruction_GetAttrInt64(ctx, a.c_str(), &k->i[a], st);
  int32_t size = 0, total = 0;
  for (auto& a : def->strings) {
    TF_OpKernelConstruction_GetAttrSize(ctx, a.c_str(), &size, &total, st);
    std::string v(total, 0);
    TF_OpKernelConstruction_GetAttrString(ctx, a.c_str(), &v[0], total, st);
    k->s[a] = v;
  }
  for (auto& a : def->lists) {
    TF_OpKernelConstruction_GetAttrSize(ctx, a.c_str(), &size, &total, st);
    Dims v(size > 0 ? size : 0);
    TF_OpKernelConstruction_GetAttrInt64List(ctx, a.c_str(), v.data(),
                                             v.size(), st);
    k->l[a] = v;
  }
  TF_StringView view = TF_OpKernelConstruction_GetName(ctx);
  std::string name(view.data, view.len);
  const Damage& damage = TheDamage();
  k->broken = damage.ops.count(def->op) &&
              name.find(damage.nodes) != std::string::npos;
  if (TF_GetCode(st) != TF_OK) TF_OpKernelConstruction_Failure(ctx, st);
  TF_DeleteStatus(st);
  return k;
}

void Run(void* opaque, TF_OpKernelContext* ctx) {
  auto* kernel = static_cast<Kernel*>(opaque);
  static const int slow_us = atoi(Env("METALSTUB_SLOW_US", "0").c_str());
  TF_Status* status = TF_NewStatus();
  Ok(status);
  uint64_t start = NowNs();
  Call call{kernel, ctx, status};
  kernel->def->compute(call);
  if (kernel->broken && TF_GetCode(status) == TF_OK) {
    Tensor out;
    out.t = TF_GetMutableOutput(ctx, 0, status);
    if (out.t && TF_TensorType(out.t) == TF_FLOAT && out.n())
      out.f()[0] += TheDamage().by;
  }
  while (slow_us && NowNs() - start < uint64_t(slow_us) * 1000) {
  }
  if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(ctx, status);
  TF_DeleteStatus(status);
  metalstub_count(kernel->def->op.c_str());
}
void Delete(void* k) { delete static_cast<Kernel*>(k); }

// The C API hands no user pointer to create_func, so that every registration
// needs a function of its own: a template over a slot number gives them.
constexpr int kSlots = 160;
const Definition* g_slots[kSlots];
template <int I>
void* CreateSlot(TF_OpKernelConstruction* ctx) {
  return Create(g_slots[I], ctx);
}
using CreateFn = void* (*)(TF_OpKernelConstruction*);
template <int... I>
constexpr std::array<CreateFn, sizeof...(I)> Table(
    std::integer_sequence<int, I...>) {
  return {{&CreateSlot<I>...}};
}
const auto g_create = Table(std::make_integer_sequence<int, kSlots>{});

}  // namespace

// The type a kernel computes in, as the table of kernels lists it.
std::string DataType(const Definition& definition) {
  static const std::map<TF_DataType, std::string> names = {
      {TF_FLOAT, "float32"}, {TF_INT32, "int32"}, {TF_INT64, "int64"},
      {TF_BOOL, "bool"}};
  std::map<std::string, std::string> found;
  for (auto& type : definition.types) found[type.first] = names.at(type.second);
  if (found.count("SrcT")) return found["SrcT"] + "->" + found["DstT"];
  for (const char* key : {"T", "dtype", "Tparams"})
    if (found.count(key)) return found[key];
  return "";
}

void Register(Definition definition) {
  static int next = 0;
  static const int priority = atoi(Env("METALSTUB_PRIORITY", "0").c_str());
  const std::string& op = definition.op;
  const std::string type = DataType(definition);
  if (!metalstub_allows(op.c_str(), type.c_str())) return;
  if (next >= kSlots) {
    fprintf(stderr, "metal stub: no slot left for %s\n", op.c_str());
    return;
  }
  auto* def = new Definition(std::move(definition));
  g_slots[next] = def;
  TF_Status* st = TF_NewStatus();
  TF_KernelBuilder* b = TF_NewKernelBuilder(
      def->op.c_str(), DeviceType(), g_create[next++], Run, Delete);
  for (auto& type : def->types)
    TF_KernelBuilder_TypeConstraint(b, type.first.c_str(), type.second, st);
  for (auto& argument : def->host)
    TF_KernelBuilder_HostMemory(b, argument.c_str());
  if (priority) TF_KernelBuilder_Priority(b, priority);
  TF_RegisterKernelBuilder(("MetalStub" + def->op).c_str(), b, st);
  if (TF_GetCode(st) == TF_OK)
    Count().registered.insert(type.empty() ? def->op : def->op + ":" + type);
  else
    fprintf(stderr, "metal stub: %s: %s\n", def->op.c_str(), TF_Message(st));
  TF_DeleteStatus(st);
}

}  // namespace stub

EXPORT void TF_InitKernel() {
  stub::RegisterElementwise();
  stub::RegisterLinear();
  stub::RegisterReductions();
  stub::RegisterShapes();
  stub::RegisterConvolutions();
  stub::RegisterPooling();
}

EXPORT bool metalstub_allows(const char* op, const char* type) {
  static const auto disabled = stub::EnvSet("METALSTUB_DISABLE_OPS");
  static const auto only = stub::EnvSet("METALSTUB_ONLY_OPS");
  if (disabled.count(op)) return false;
  return only.empty() || only.count(op) ||
         only.count(std::string(op) + ":" + type);
}

EXPORT void metalstub_count(const char* op) {
  auto& c = stub::Count();
  std::lock_guard<std::mutex> lock(c.mu);
  c.kernel_calls[op]++;
}

EXPORT const char* metalstub_report() {
  static auto* out = new std::string;
  auto& c = stub::Count();
  std::lock_guard<std::mutex> lock(c.mu);
  std::ostringstream o;
  const char* comma = "";
  o << "{\"kernel_calls\":{";
  for (auto& kv : c.kernel_calls) {
    o << comma << '"' << kv.first << "\":" << kv.second;
    comma = ",";
  }
  o << "},\"registered\":[";
  comma = "";
  for (auto& op : c.registered) {
    o << comma << '"' << op << '"';
    comma = ",";
  }
  o << "],\"h2d\":" << c.h2d << ",\"h2d_bytes\":" << c.h2d_bytes
    << ",\"d2h\":" << c.d2h << ",\"d2h_bytes\":" << c.d2h_bytes
    << ",\"d2d\":" << c.d2d << ",\"d2d_bytes\":" << c.d2d_bytes
    << ",\"wrong_memory\":" << c.wrong_memory << "}";
  *out = o.str();
  return out->c_str();
}

EXPORT void metalstub_break(const char* op, const char* nodes, float by) {
  stub::TheDamage() = {{op}, nodes, by};
}

EXPORT void metalstub_reset() {
  auto& c = stub::Count();
  std::lock_guard<std::mutex> lock(c.mu);
  c.kernel_calls.clear();
  c.h2d = c.h2d_bytes = c.d2h = c.d2h_bytes = c.d2d = c.d2d_bytes = 0;
  c.wrong_memory = 0;
}
