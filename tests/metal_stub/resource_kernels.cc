// A second library: kernels that reach inside a resource variable, which an
// Embedding needs. The C API for that (kernels_experimental.h) is declared but
// not exported by TensorFlow 2.20 and 2.21, so these use the C++ API and are
// built against the headers of the very wheel they are loaded into.
// Load with tf.load_op_library after the plugin.
#include <cstdlib>
#include <cstring>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

extern "C" void metalstub_count(const char* op);  // in the plugin
extern "C" bool metalstub_allows(const char* op, const char* type);

namespace tensorflow {
namespace {

const char* StubDevice() {
  const char* type = getenv("METALSTUB_TYPE");
  return type ? type : "GPU";
}

template <typename Index>
class Gather : public OpKernel {
 public:
  explicit Gather(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("batch_dims", &batch_dims_));
  }
  void Compute(OpKernelContext* c) override {
    metalstub_count("ResourceGather");
    OP_REQUIRES(c, batch_dims_ == 0, errors::Unimplemented("batch_dims"));
    core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(c, LookupResource(c, HandleFromInput(c, 0), &variable));
    tf_shared_lock lock(*variable->mu());
    const Tensor& table = *variable->tensor();
    const Tensor& ids = c->input(1);
    TensorShape shape = ids.shape();
    int64_t row = 1;
    for (int i = 1; i < table.dims(); ++i) {
      shape.AddDim(table.dim_size(i));
      row *= table.dim_size(i);
    }
    Tensor* out = nullptr;
    OP_REQUIRES_OK(c, c->allocate_output(0, shape, &out));
    const Index* id = static_cast<const Index*>(ids.data());
    const float* from = static_cast<const float*>(table.data());
    float* to = static_cast<float*>(out->data());
    for (int64_t i = 0; i < ids.NumElements(); ++i) {
      OP_REQUIRES(c, id[i] >= 0 && id[i] < table.dim_size(0),
                  errors::InvalidArgument("index out of range"));
      std::memcpy(to + i * row, from + id[i] * row, row * sizeof(float));
    }
  }

 private:
  int batch_dims_;
};

enum Update { kAdd, kSub, kAssign };

template <typename Index, Update U>
class Scatter : public OpKernel {
 public:
  explicit Scatter(OpKernelConstruction* c) : OpKernel(c) {}
  void Compute(OpKernelContext* c) override {
    metalstub_count(type_string().c_str());
    core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(c, LookupResource(c, HandleFromInput(c, 0), &variable));
    mutex_lock lock(*variable->mu());
    Tensor* table = variable->tensor();
    if (!table->RefCountIsOne()) {  // a reader holds it: copy on write
      Tensor copy;
      OP_REQUIRES_OK(c,
                     c->allocate_temp(table->dtype(), table->shape(), &copy));
      std::memcpy(copy.data(), table->data(), table->TotalBytes());
      *table = copy;
    }
    const Tensor& ids = c->input(1);
    const Tensor& values = c->input(2);
    int64_t row = 1;
    for (int i = 1; i < table->dims(); ++i) row *= table->dim_size(i);
    float* to = static_cast<float*>(table->data());
    const float* from = static_cast<const float*>(values.data());
    const Index* id = static_cast<const Index*>(ids.data());
    bool scalar = values.dims() == 0;
    for (int64_t i = 0; i < ids.NumElements(); ++i) {
      OP_REQUIRES(c, id[i] >= 0 && id[i] < table->dim_size(0),
                  errors::InvalidArgument("index out of range"));
      for (int64_t k = 0; k < row; ++k) {
        float x = scalar ? from[0] : from[i * row + k];
        float& y = to[id[i] * row + k];
        y = U == kAdd ? y + x : U == kSub ? y - x : x;
      }
    }
  }
};

class Assign : public OpKernel {
 public:
  explicit Assign(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("dtype", &dtype_));
  }
  void Compute(OpKernelContext* c) override {
    metalstub_count("AssignVariableOp");
    core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(c, LookupOrCreateResource<Var>(
                          c, HandleFromInput(c, 0), &variable,
                          [this](Var** made) {
                            *made = new Var(dtype_);
                            return OkStatus();
                          }));
    mutex_lock lock(*variable->mu());
    *variable->tensor() = c->input(1);
    variable->is_initialized = true;
  }

 private:
  static absl::Status OkStatus() { return absl::OkStatus(); }
  DataType dtype_;
};

template <typename T, Update U>
class AssignUpdate : public OpKernel {
 public:
  explicit AssignUpdate(OpKernelConstruction* c) : OpKernel(c) {}
  void Compute(OpKernelContext* c) override {
    metalstub_count(type_string().c_str());
    core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(c, LookupResource(c, HandleFromInput(c, 0), &variable));
    mutex_lock lock(*variable->mu());
    Tensor* held = variable->tensor();
    const Tensor& by = c->input(1);
    Tensor result;  // a reader may hold the old one
    OP_REQUIRES_OK(c,
                   c->allocate_temp(held->dtype(), held->shape(), &result));
    const T* a = static_cast<const T*>(held->data());
    const T* b = static_cast<const T*>(by.data());
    T* out = static_cast<T*>(result.data());
    for (int64_t i = 0; i < held->NumElements(); ++i)
      out[i] = U == kAdd ? a[i] + b[i] : a[i] - b[i];
    *held = result;
  }
};

// The macros register while the library loads: what is not wanted goes to a
// device that nobody has.
template <typename T>
const char* DeviceFor(const char* op) {
  const std::string type = DataTypeString(DataTypeToEnum<T>::value);
  const bool wanted =
      metalstub_allows(op, type == "float" ? "float32" : type.c_str());
  return wanted ? StubDevice() : "METALSTUB_UNUSED";
}
template <typename T>
const char* AssignDevice(const char* op) {
  return getenv("METALSTUB_ASSIGN") ? DeviceFor<T>(op) : "METALSTUB_UNUSED";
}

}  // namespace

#define ASSIGN(op, T)                \
  Name(op)                           \
      .Device(AssignDevice<T>(op))   \
      .HostMemory("resource")        \
      .TypeConstraint<T>("dtype")
REGISTER_KERNEL_BUILDER(ASSIGN("AssignVariableOp", float), Assign);
REGISTER_KERNEL_BUILDER(ASSIGN("AssignVariableOp", int64_t), Assign);
REGISTER_KERNEL_BUILDER(ASSIGN("AssignAddVariableOp", float),
                        AssignUpdate<float, kAdd>);
REGISTER_KERNEL_BUILDER(ASSIGN("AssignAddVariableOp", int64_t),
                        AssignUpdate<int64_t, kAdd>);
REGISTER_KERNEL_BUILDER(ASSIGN("AssignSubVariableOp", float),
                        AssignUpdate<float, kSub>);
REGISTER_KERNEL_BUILDER(ASSIGN("AssignSubVariableOp", int64_t),
                        AssignUpdate<int64_t, kSub>);

// METALSTUB_ONLY_OPS does not reach these: TensorFlow places a step before it
// optimises it, and without a kernel on the variable's device it gives up on
// an op that the optimised step no longer has.
#define ON_DEVICE(op, Index) \
  Name(op)                   \
      .Device(StubDevice())  \
      .HostMemory("resource") \
      .TypeConstraint<float>("dtype") \
      .TypeConstraint<Index>("Tindices")
#define STUB_KERNELS(Index)                                        \
  REGISTER_KERNEL_BUILDER(ON_DEVICE("ResourceGather", Index),      \
                          Gather<Index>);                          \
  REGISTER_KERNEL_BUILDER(ON_DEVICE("ResourceScatterAdd", Index),  \
                          Scatter<Index, kAdd>);                   \
  REGISTER_KERNEL_BUILDER(ON_DEVICE("ResourceScatterSub", Index),  \
                          Scatter<Index, kSub>);                   \
  REGISTER_KERNEL_BUILDER(ON_DEVICE("ResourceScatterUpdate", Index), \
                          Scatter<Index, kAssign>)
STUB_KERNELS(int32);
STUB_KERNELS(int64_t);

}  // namespace tensorflow
