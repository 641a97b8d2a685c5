// Maximum and average pooling with their gradients, NHWC.
#include <algorithm>
#include <limits>
#include <vector>

#include "window.h"

namespace stub {
namespace {

Window PoolWindow(Call& call, const Dims& dims) {
  const Dims& k = call.kernel->l["ksize"];
  return Window(call.kernel, dims, k[1], k[2]);
}

void MaxPool(Call& call) {
  Tensor x, o;
  if (!call.In(0, &x)) return;
  Window win = PoolWindow(call, x.dims());
  if (!call.Out(0, TF_FLOAT, {win.n, win.oh, win.ow, win.c}, &o)) return;
  std::fill(o.f(), o.f() + o.n(), std::numeric_limits<float>::lowest());
  win.Each([&](int64_t from, int64_t, int64_t, int64_t to) {
    for (int64_t c = 0; c < win.c; ++c)
      o.f()[to * win.c + c] =
          std::max(o.f()[to * win.c + c], x.f()[from * win.c + c]);
  });
}

// The first of equal maxima takes the gradient, as on TensorFlow's CPU.
void MaxPoolGrad(Call& call) {
  Tensor x, y, g, o;
  if (!call.In(0, &x) || !call.In(1, &y) || !call.In(2, &g)) return;
  Window win = PoolWindow(call, x.dims());
  if (!call.Out(0, TF_FLOAT, x.dims(), &o)) return;
  std::fill(o.f(), o.f() + o.n(), 0.f);
  std::vector<bool> taken(y.n(), false);
  win.Each([&](int64_t from, int64_t, int64_t, int64_t to) {
    for (int64_t c = 0; c < win.c; ++c) {
      int64_t i = to * win.c + c;
      if (taken[i] || x.f()[from * win.c + c] != y.f()[i]) continue;
      taken[i] = true;
      o.f()[from * win.c + c] += g.f()[i];
    }
  });
}

std::vector<float> Sizes(const Window& win) {
  std::vector<float> count(win.n * win.oh * win.ow, 0.f);
  win.Each([&](int64_t, int64_t, int64_t, int64_t to) { count[to] += 1; });
  return count;
}

void AvgPool(Call& call) {
  Tensor x, o;
  if (!call.In(0, &x)) return;
  Window win = PoolWindow(call, x.dims());
  if (!call.Out(0, TF_FLOAT, {win.n, win.oh, win.ow, win.c}, &o)) return;
  std::fill(o.f(), o.f() + o.n(), 0.f);
  auto count = Sizes(win);
  win.Each([&](int64_t from, int64_t, int64_t, int64_t to) {
    for (int64_t c = 0; c < win.c; ++c)
      o.f()[to * win.c + c] += x.f()[from * win.c + c] / count[to];
  });
}

void AvgPoolGrad(Call& call) {
  Tensor sizes, g, o;
  if (!call.In(0, &sizes, /*host=*/true) || !call.In(1, &g)) return;
  Dims dims = ListOf(sizes);
  Window win = PoolWindow(call, dims);
  if (!call.Out(0, TF_FLOAT, dims, &o)) return;
  std::fill(o.f(), o.f() + o.n(), 0.f);
  auto count = Sizes(win);
  win.Each([&](int64_t from, int64_t, int64_t, int64_t to) {
    for (int64_t c = 0; c < win.c; ++c)
      o.f()[from * win.c + c] += g.f()[to * win.c + c] / count[to];
  });
}

void Add(const char* op, Compute compute, std::vector<std::string> host) {
  Definition def{op, compute, {{"T", TF_FLOAT}}, host};
  def.strings = {"padding", "data_format"};
  def.lists = {"strides", "ksize"};
  Register(def);
}

}  // namespace

void RegisterPooling() {
  Add("MaxPool", MaxPool, {});
  Add("MaxPoolGrad", MaxPoolGrad, {});
  Add("AvgPool", AvgPool, {});
  Add("AvgPoolGrad", AvgPoolGrad, {"orig_input_shape"});
}

}  // namespace stub
